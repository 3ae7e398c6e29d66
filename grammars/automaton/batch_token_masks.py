"""The masks of a whole batch in one call: what is remembered is looked up, the rest is worked out together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from sgl.grammars.automaton.automaton_work_budget import WorkUnfinished, current
from sgl.grammars.automaton.grammar_automaton import Automaton
from sgl.grammars.automaton.grammar_matcher import Matcher
from sgl.grammars.automaton.native_automaton_core import NativeCore, fill_rows
from sgl.grammars.automaton.python_automaton_core import PAUSED

MaskOrError = np.ndarray | Exception | None


class _Missing(NamedTuple):
    """A state of which there is no mask yet, the one that no token can tell from it, and who asked."""

    automaton: Automaton
    core: NativeCore
    state: int
    alike: int
    place: int


def fill_masks(matchers: Sequence[Matcher | None], out: np.ndarray | None = None) -> list[MaskOrError]:
    """Compute the masks of many matchers, of any grammars of one vocabulary. New masks are computed without the GIL.

    Args:
        matchers: None for an unconstrained row.
        out: int32 [n, ceil(V / 32)], or None. The masks are also written to its rows; other rows are left alone.

    Within a `meter`, what it leaves no time for, or another thread is working on, has `WorkUnfinished` for its error.

    Returns:
        For each matcher the same object as `Matcher.mask` returns, and None for None. If a grammar fails, its error
        (usually a GrammarError) takes the place of its mask; the others are not affected.
    """
    masks: list[MaskOrError] = [None if matcher is None else matcher.known_mask() for matcher in matchers]
    missing = {i: m for i, m in enumerate(matchers) if m is not None and masks[i] is None}
    if missing:
        _fill_missing(missing, masks)
    if out is not None:
        for i, mask in enumerate(masks):
            if isinstance(mask, np.ndarray):
                out[i] = mask
    return masks


def _fill_missing(missing: dict[int, Matcher], masks: list[MaskOrError]) -> None:
    """Many at once under all their locks; then, one by one, what needs a rule built or fails."""
    if len(missing) > 1:
        _fill_together(missing, masks)
    for i, matcher in missing.items():
        if masks[i] is None:
            try:
                masks[i] = matcher.mask()
            except Exception as error:  # of this matcher alone
                masks[i] = error


def _fill_together(missing: dict[int, Matcher], masks: list[MaskOrError]) -> None:
    """Locks are taken in one order in all threads, and no thread waits for a second one elsewhere."""
    meter = current()
    with ExitStack() as locks:
        held = _locked({id(m.automaton): m.automaton for m in missing.values()}, locks)
        found = [_wanted(m, i, masks) for i, m in missing.items() if id(m.automaton) in held]
        wanted = [each for each in found if each is not None]
        if not wanted:
            return
        rows = np.empty((len(wanted), wanted[0].automaton.vocabulary.words), np.uint32)
        digests = fill_rows([w.core for w in wanted], [w.alike for w in wanted], rows, meter)
        for (automaton, _, state, alike, place), row, digest in zip(wanted, rows, digests, strict=True):
            if digest >= 0:
                masks[place] = shared = automaton.masks.add(alike, row, digest)
                automaton.masks.keep(state, shared)
            elif digest == PAUSED:
                masks[place] = WorkUnfinished()


def _locked(automata: dict[int, Automaton], locks: ExitStack) -> set[int]:
    """Take the locks of automata; who is in a hurry leaves out those that others hold."""
    meter, held = current(), set()
    for key in sorted(automata):
        if meter is None or not meter.hasty:
            held.add(key)
            locks.enter_context(automata[key].lock)
        elif automata[key].lock.acquire(blocking=False):
            held.add(key)
            locks.callback(automata[key].lock.release)
    return held


def _wanted(matcher: Matcher, index: int, masks: list[MaskOrError]) -> _Missing | None:
    """What is to be worked out for a matcher, if it is not remembered after all and the C core can do it."""
    automaton, state = matcher.automaton, matcher.state
    if state < 0 or not isinstance(automaton.core, NativeCore):
        return None
    alike = automaton.core.canonical(state)
    if alike < 0:
        return None
    masks[index] = found = automaton.masks.get(alike)
    if found is None:
        return _Missing(automaton, automaton.core, state, alike, index)
    automaton.masks.keep(state, found)
    return None
