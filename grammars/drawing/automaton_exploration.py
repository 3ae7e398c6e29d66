"""The states of an automaton and the characters that lead from one to the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.automaton.distinct_items_core import DistinctItemsCore
from sgl.grammars.automaton.python_automaton_core import DEAD

_LEADS = ((0xC2, 0xE0, 1), (0xE0, 0xF0, 2), (0xF0, 0xF5, 3))  # first byte, end, continuation bytes


class SteppableAutomaton(Protocol):
    """What is needed of an automaton."""

    def live(self, state: int) -> int: ...
    def advance(self, state: int, data: bytes) -> int: ...


def moves(automaton: SteppableAutomaton, state: int) -> dict[int, CharSet]:
    """Whole characters from a state, by the state that they lead to; only ASCII where each leads to a different one."""
    found: dict[int, list[tuple[int, int]]] = {}
    for low, high, target in _ascii(automaton, state):
        found.setdefault(target, []).append((low, high))
    remembering = isinstance(getattr(automaton, "core", None), DistinctItemsCore)
    for low, end, more in () if remembering else _LEADS:
        for byte in range(low, end):
            target = automaton.advance(state, bytes([byte]))
            if target != DEAD:
                bits = byte & (0x3F >> more)
                for first, last, after in _continued(automaton, target, bits, more):
                    found.setdefault(after, []).append((first, last))
    return {target: charset.normalise(ranges) for target, ranges in found.items()}


def _ascii(automaton: SteppableAutomaton, state: int) -> Iterator[tuple[int, int, int]]:
    live = automaton.live(state)
    for byte in range(128):
        if live >> byte & 1:
            target = automaton.advance(state, bytes([byte]))
            if target != DEAD:
                yield byte, byte, target


def _continued(automaton: SteppableAutomaton, state: int, bits: int, more: int) -> Iterator[tuple[int, int, int]]:
    """(first, last, target) code points of the characters that begin with `bits`."""
    if more == 0:
        yield bits, bits, state
        return
    start, run = 0x80, automaton.advance(state, b"\x80")
    for byte in range(0x81, 0xC1):
        target = automaton.advance(state, bytes([byte])) if byte < 0xC0 else None
        if target != run:
            if run != DEAD:
                yield from _run(automaton, run, bits, start & 0x3F, (byte - 1) & 0x3F, more)
            start, run = byte, target if target is not None else DEAD


def _run(
    automaton: SteppableAutomaton, state: int, bits: int, low: int, high: int, more: int
) -> Iterator[tuple[int, int, int]]:
    """Neighbouring continuation bytes lead to one state: look on from there once."""
    if more == 1:
        yield bits << 6 | low, bits << 6 | high, state
        return
    shift = 6 * (more - 1)
    for first, last, target in _continued(automaton, state, 0, more - 1):
        whole = first == 0 and last == (1 << shift) - 1
        for value in [low] if whole else range(low, high + 1):
            base = (bits << 6 | value) << shift
            top = (bits << 6 | high) << shift if whole else base
            yield base | first, top | last, target
