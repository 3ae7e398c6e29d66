"""Where drafts come from and how long they are, against plain searches."""

from __future__ import annotations

import random
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sgl.grammars import Vocabulary, compile_regex
from sgl.grammars.automaton.automaton import GUESSED, Automaton
from sgl.runtime.cache import IntRow
from sgl.runtime.sequences.draft import Draft, Source
from sgl.runtime.speculative import suffix
from sgl.runtime.speculative.control import GAIN, MEASURED, PROBE, Control
from sgl.runtime.speculative.drafter import fitted, may_build
from sgl.runtime.speculative.suffix import KEY, LONGEST, SuffixDrafter


def sequence(tokens: list[int], namespace: str = "", tenant: str = "") -> Any:
    return SimpleNamespace(tokens=IntRow(tokens), namespace=namespace, terms=SimpleNamespace(tenant=tenant))


def longest(text: list[int], tail: list[int]) -> int:
    """The most tokens before any place within `text` that are the last ones of `tail`."""
    best = 0
    for place in range(KEY, len(text)):
        length = 0
        while length < min(place, len(tail), LONGEST) and text[place - 1 - length] == tail[-1 - length]:
            length += 1
        best = max(best, length)
    return best if best >= KEY else 0


@pytest.mark.parametrize("seed", range(60))
def test_a_draft_follows_the_longest_match(seed: int) -> None:
    draw = random.Random(seed)
    drafter, letters = SuffixDrafter(), draw.choice([2, 3, 9])
    others = [draw.choices(range(letters), k=draw.randrange(1, 30)) for _ in range(3)]
    for other in others:
        drafter.learn(sequence(other), SimpleNamespace(prompt_tokens=len(other)))  # type: ignore[arg-type]
    tokens = draw.choices(range(letters), k=draw.randrange(1, 30))
    most = draw.randrange(1, 9)
    found = drafter.propose(sequence(tokens), None, most)  # type: ignore[arg-type]
    kept = [other[-suffix.LEAD :] for other in others]
    whole = max([longest(tokens, tokens), *(longest(text, tokens) for text in kept)])
    if found is None or whole < KEY:  # of few letters more places match than are kept
        assert whole < KEY or letters == 2
        assert found is None or found.source.length < KEY
        return
    assert 1 <= len(found.tokens) <= most
    if letters > 2:
        tail = tokens[-whole:]
        seen = [text[place : place + len(found.tokens)] for text in (tokens, *kept) for place in range(whole, len(text)) if text[place - whole : place] == tail]
        assert found.tokens in seen
        assert found.source == Source("suffix", max(least for least in suffix.CLASSES if least <= whole))


def test_finished_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "TEXT", 100)
    monkeypatch.setattr(suffix, "ALL_TEXTS", 250)
    drafter = SuffixDrafter()
    for number in range(200):
        drafter.learn(sequence(list(range(40)), f"namespace {number % 7}"), SimpleNamespace(prompt_tokens=5))  # type: ignore[arg-type]
        assert sum(len(each.tokens) for each in drafter._finished.values()) <= 250
        assert all(len(each.tokens) <= 100 for each in drafter._finished.values())
    newest = drafter.propose(sequence([7, 8, 9], "namespace 3"), None, 4)  # type: ignore[arg-type]
    assert newest is not None and newest.tokens == [10, 11, 12, 13]
    assert drafter.propose(sequence([7, 8, 9], "namespace 4"), None, 4) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_as_much_is_drafted_as_is_expected_to_pay(seed: int) -> None:
    draw, control = random.Random(seed), Control()
    time = {rows: 1.0 + draw.random() * rows for rows in range(1, 20)}
    drafts = [(Source("told", index), draw.randrange(1, 4)) for index in range(draw.randrange(1, 4))]
    for source, _ in drafts:
        control.tried(source, 50, draw.randrange(50))
    rows = draw.randrange(len(drafts), 6)
    for more, seconds in time.items():
        if more >= rows:
            control.took(rows, more, seconds)

    def rate(lengths: tuple[int, ...]) -> float:
        gain = sum(sum(control.survival(source, length)) for (source, _), length in zip(drafts, lengths, strict=True))
        return (rows + gain) / control._time(rows, rows + sum(lengths))

    best = max(rate(lengths) for lengths in product(*(range(length + 1) for _, length in drafts)))
    found, none = rate(tuple(control.lengths(rows, drafts))), rate((0,) * len(drafts))
    assert found == pytest.approx(best if best > GAIN * none else none)


def test_what_was_not_kept_is_tried_again_once_in_a_while() -> None:
    control, source = Control(), Source("told")
    for _ in range(MEASURED):
        for rows in range(1, 9):
            control.took(1, rows, float(rows))
    control.tried(source, 400, 0)
    for _ in range(200):
        control.tried(source, 1, 0)
    tries = [control.lengths(1, [(source, 2)])[0] for _ in range(2 * PROBE)]
    assert sorted(tries) == [0] * (2 * PROBE - 2) + [2, 2]
    assert sum(control.worth(1) for _ in range(2 * PROBE)) == 2


def test_guesses_take_nothing_of_what_texts_need() -> None:
    """Every guess another text: the automaton grows to a bound, and a text that needs all of its states has them."""
    grammar = compile_regex("[ab]{0,300}", Vocabulary([bytes([byte]) for byte in range(256)] + [b""], eos_ids=[256]))
    grammar._automaton = Automaton(grammar._automaton.network, grammar.vocabulary, limit=320)
    matcher, core = grammar.matcher(), grammar.automaton.core
    decoding: Any = SimpleNamespace(matcher=matcher, jumps=False, output=[], limit=500)
    while may_build(matcher):
        assert fitted(Draft([97] * (core.size() + 1), Source("told")), decoding, 500) is not None
    assert core.size() < 320 // GUESSED + 4
    known = fitted(Draft([97] * 300, Source("told")), decoding, 500)
    assert known is None or len(known.tokens) <= core.size()
    before = core.size()
    assert fitted(Draft([98] * 300, Source("told")), decoding, 500) is None or core.size() == before
    for _ in range(300):
        assert matcher.accept(97)


def test_agreement() -> None:
    draft = Draft([5, 6, 7], Source("told"))
    assert [draft.agrees(chosen) for chosen in ([], [5], [6, 6], [5, 6, 7], [5, 6, 8], [5, 9, 7])] == [0, 1, 0, 3, 2, 1]


def test_a_row_with_something_behind_it() -> None:
    row = IntRow([1, 2])
    row.lay_behind([3, 4])
    assert row.array.tolist() == [1, 2] and row.reaching(4).tolist() == [1, 2, 3, 4]
    row.append(9)
    assert row.array.tolist() == [1, 2, 9]
    row.lay_behind(np.arange(100))
    assert len(row) == 3 and row.reaching(103).tolist() == [1, 2, 9, *range(100)]
