"""Where drafts come from and how long they are, against plain searches."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sgl.grammars import Vocabulary, compile_regex
from sgl.grammars.automaton.grammar_automaton import GUESSED, Automaton
from sgl.runtime.cache import GrowableIntArray
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.sequences.draft_tokens import DraftSource, DraftTokens
from sgl.runtime.speculative import choice_list_drafter, suffix_drafter
from sgl.runtime.speculative.automaton_drafter import UNREAD, AutomatonDrafter
from sgl.runtime.speculative.choice_list_drafter import ListDrafter, first_item
from sgl.runtime.speculative.draft_length_control import (
    ENOUGH,
    GAIN,
    LONG_PROBE,
    MEASURED,
    PROBE,
    REMEMBERED,
    RUN,
    DraftLengthControl,
)
from sgl.runtime.speculative.draft_trials import MOST, SETTLES, STRETCH, DraftTrials
from sgl.runtime.speculative.drafter import fitted, may_build_states
from sgl.runtime.speculative.run_ahead_policy import RunAheadPolicy
from sgl.runtime.speculative.suffix_drafter import SuffixDrafter
from sgl.runtime.speculative.suffix_lookup import END, KEY, LONGEST, earlier_places, searched


def sequence(tokens: list[int], namespace: str = "", tenant: str = "") -> Any:
    return SimpleNamespace(
        tokens=GrowableIntArray(tokens), namespace=namespace, terms=SimpleNamespace(tenant=tenant), guarded=False
    )


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
    kept = [other[-suffix_drafter.LEAD :] for other in others]
    whole = max([longest(tokens, tokens), *(longest(text, tokens) for text in kept)])
    if found is None or whole < KEY:  # of few letters more places match than are kept
        assert whole < KEY or letters == 2
        assert found is None or found.source.length < KEY
        return
    assert 1 <= len(found.tokens) <= most
    if letters > 2:
        tail = tokens[-whole:]
        seen = [
            text[place : place + len(found.tokens)]
            for text in (tokens, *kept)
            for place in range(whole, len(text))
            if text[place - whole : place] == tail
        ]
        assert found.tokens in seen
        assert found.source == DraftSource("suffix", max(least for least in suffix_drafter.CLASSES if least <= whole))


@pytest.mark.parametrize("seed", range(60))
def test_the_kernels_find_the_places_that_the_plain_search_finds(seed: int) -> None:
    assert cpu_kernels.kernels is not None
    draw = random.Random(seed)
    letters = draw.choice([1, 2, 3, 9])
    text = np.array(draw.choices(range(letters), k=draw.choice([0, 1, 2, 3, 5, 40, 200])), np.int32)
    others = (
        np.array(draw.choices(range(END, letters), k=draw.randrange(0, 120)), np.int32) if draw.random() < 0.8 else None
    )
    for least in range(1, KEY + 2):
        found, expected = (
            [(length, place, there is others) for length, place, there in each(text, others, least)]
            for each in (earlier_places, searched)
        )
        assert found == expected


def test_finished_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_drafter, "TEXT", 100)
    monkeypatch.setattr(suffix_drafter, "ALL_TEXTS", 250)
    drafter = SuffixDrafter()
    for number in range(200):
        drafter.learn(sequence(list(range(40)), f"namespace {number % 7}"), SimpleNamespace(prompt_tokens=5))  # type: ignore[arg-type]
        assert sum(len(each) for each in drafter._finished.values()) <= 250
        assert all(len(each) <= 100 for each in drafter._finished.values())
    newest = drafter.propose(sequence([7, 8, 9], "namespace 3"), None, 4)  # type: ignore[arg-type]
    assert newest is not None and newest.tokens == [10, 11, 12, 13]
    assert drafter.propose(sequence([7, 8, 9], "namespace 4"), None, 4) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_as_much_is_drafted_as_is_expected_to_pay(seed: int) -> None:
    draw, control = random.Random(seed), DraftLengthControl()
    time = {rows: 1.0 + draw.random() * rows for rows in range(1, 20)}
    drafts = [(DraftSource("told", index), draw.randrange(1, 4)) for index in range(draw.randrange(1, 4))]
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
    found, none = (
        rate(tuple(control.lengths(rows, [(source, control.survival(source, length)) for source, length in drafts]))),
        rate((0,) * len(drafts)),
    )
    assert found == pytest.approx(best if best > GAIN * none else none)


def test_what_was_not_kept_is_tried_again_once_in_a_while() -> None:
    control, source = DraftLengthControl(), DraftSource("told")
    for _ in range(MEASURED):
        for rows in range(1, 9):
            control.took(1, rows, float(rows))
    control.tried(source, 400, 0)
    for _ in range(200):
        control.tried(source, 1, 0)
    tries = [control.lengths(1, [(source, control.survival(source, 2))])[0] for _ in range(2 * PROBE)]
    assert sorted(tries) == [0] * (2 * PROBE - 2) + [2, 2]
    assert sum(control.worth(1) for _ in range(2 * PROBE)) == 2


def _asked(control: DraftLengthControl, texts: int, kept: int, steps: int) -> int:
    """How many of some steps ask for drafts, of which each keeps so many
    guesses, with a row for each text and four more.
    """
    count = 0
    for _ in range(steps):
        if control.worth(texts):
            count += 1
            control.took(texts, texts + 4, 1.2)
            control.came(texts, texts + 4, 0.1, kept)
        else:
            control.took(texts, texts, 1.0)
    return count


@pytest.mark.parametrize("texts", [1, 8])
def test_drafts_are_asked_for_where_what_came_of_it_pays(texts: int) -> None:
    """A step with guesses takes 1.3 times one without: a guess kept for each text pays, none
    does not, and it is noticed when that changes.
    """
    control = DraftLengthControl()
    for _ in range(MEASURED):
        control.took(texts, texts, 1.0)
    steps = 64 * PROBE
    _asked(control, texts, 0, ENOUGH)
    assert _asked(control, texts, 0, steps) <= max(2, RUN // texts) * (5 + steps / LONG_PROBE) + ENOUGH // texts
    back = _asked(control, texts, texts, 2 * LONG_PROBE)
    assert back > LONG_PROBE / 2
    assert _asked(control, texts, texts, steps) == steps - steps // PROBE
    assert _asked(control, texts, 0, 3 * REMEMBERED) < 2 * REMEMBERED


@pytest.mark.parametrize("texts", [1, 8, 64])
def test_where_drafts_do_not_pay_most_steps_need_not_be_asked_about(texts: int) -> None:
    """And as many drafts are tried as without such rests."""
    tries = []
    for rests in (False, True):
        control, asked, left = DraftLengthControl(), 0, 0
        for _ in range(MEASURED):
            control.took(texts, texts, 1.0)
        for _ in range(64 * PROBE):
            if left:
                left -= 1
            elif control.worth(texts):
                asked += 1
                control.came(texts, texts + 4, 0.3, 0)
            else:
                left = control.rest(texts) if rests else 0
        tries.append(asked)
    assert tries[0] == tries[1] > 0


@pytest.mark.parametrize("texts, gain", [(1, 1.24), (8, 0.99), (64, 0.88), (64, 1.0)])
def test_stretches_with_guesses_are_timed_beside_others_where_steps_run_ahead(texts: int, gain: float) -> None:
    """gain: times as many tokens a second with guesses. Hardly less comes of it than of the
    faster way alone, and it is noticed when that changes.
    """
    trials, draw = DraftTrials(), random.Random(texts)

    def ran(gain: float, steps: int) -> float:
        """Tokens a second, where a plain step takes one; so much is kept as makes the gain at 1.5 times the time."""
        tokens = seconds = 0.0
        for _ in range(steps):
            guesses = trials.drafting(texts)
            taken = (1.5 if guesses else 1.0) * draw.uniform(0.97, 1.03)
            kept = round(texts * (1.5 * gain - 1) + draw.uniform(-0.5, 0.5)) if guesses else 0
            trials.took(texts, texts + kept, taken)
            tokens, seconds = tokens + texts + kept, seconds + taken
        return tokens / seconds / texts

    ran(gain, 4 * STRETCH)
    assert ran(gain, 400 * STRETCH) > 0.99 * max(1.0, gain)
    ran(2 - gain, 2 * MOST * STRETCH)
    assert ran(2 - gain, 400 * STRETCH) > 0.99 * max(1.0, 2 - gain)


def test_turns_of_other_kinds_are_not_timed() -> None:
    """Prompts, and steps behind those of fewer texts, which a turn may end."""
    trials = DraftTrials()
    for _ in range(4 * STRETCH):
        for texts in (0, 8, 64):
            trials.took(texts, texts, 1.0)
    assert trials.drafting(8) and trials.drafting(64)
    for _ in range(2 * STRETCH + SETTLES + 1):
        trials.took(8, 8, 1.0)
    assert not trials.drafting(8) and trials.drafting(64)


def test_what_the_first_stretch_of_a_way_takes_is_not_counted() -> None:
    """Graphs are captured in it. Guesses that bring more tokens in as much time are found to be faster all the same."""
    trials, seen = DraftTrials(), 0
    for step in range(40 * STRETCH):
        guesses = trials.drafting(1)
        seen += guesses
        trials.took(1, 3 if guesses else 1, 100.0 if step < STRETCH else 1.0)
    assert seen > 34 * STRETCH


def test_a_draft_goes_on_where_that_may_be_kept() -> None:
    control, told = DraftLengthControl(), DraftSource("told", 14)
    for _ in range(100):
        control.tried(told, 1, 1)
    sure, unsure = [(told, False)], [(told, False), *[(DraftSource("told", 1), True)] * 4]
    assert all(control.goes_on(sure) for _ in range(PROBE))
    assert sum(control.goes_on(unsure) for _ in range(2 * PROBE)) == 2
    assert all(DraftLengthControl(by_outcome=False).goes_on(unsure) for _ in range(PROBE))


def written(grammar: Any, text: bytes) -> Any:
    """The generation of a text of a grammar, at its end."""
    matcher = grammar.matcher()
    assert all(map(matcher.accept, text))
    return SimpleNamespace(matcher=matcher, prompt_tokens=1)


def test_what_followed_is_counted_as_a_walk_through_the_grammar_counts_it() -> None:
    draw, vocabulary = random.Random(5), Vocabulary([bytes([byte]) for byte in range(256)] + [b""], eos_ids=[256])
    grammar, drafter = compile_regex("((ab|cd|a[x-z])*;)*", vocabulary), AutomatonDrafter()
    op: Any = SimpleNamespace(decoding=SimpleNamespace(matcher=grammar.matcher()))
    expected: dict[tuple[int, int], Counter[int]] = {}
    for _ in range(6):
        text = b"".join(draw.choices([b"ab", b"cd", b"ax", b"az", b";"], k=8))
        drafter.learn(sequence(list(text)), written(grammar, text))
        matcher, last = grammar.matcher(), -1
        for token in text:
            for place in {(matcher.state, last), (matcher.state, -1)}:
                expected.setdefault(place, Counter())[token] += 1
            assert matcher.accept(token)
            last = token
    drafter.propose(sequence(list(b"x")), op, 2)
    [home] = drafter._of[grammar.automaton].values()
    known = {place: next_ for place, next_ in home.followed.items() if next_ is not None}
    assert {place: next_.counts for place, next_ in known.items()} == expected
    assert all(
        next_.total == expected[place].total() and next_.counts[next_.best] == max(expected[place].values())
        for place, next_ in known.items()
    )


def test_finished_texts_of_a_grammar_are_walked_when_a_draft_is_asked_for() -> None:
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [b""], eos_ids=[256])
    grammar, drafter = compile_regex("(ab|cd)*", vocabulary), AutomatonDrafter()
    op: Any = SimpleNamespace(decoding=SimpleNamespace(matcher=grammar.matcher(), prompt_tokens=1))
    for text in (b"cd", b"cdab", b"cdcd"):
        drafter.learn(sequence(list(b"x" + text)), written(grammar, text))
    [home] = drafter._of[grammar.automaton].values()
    assert len(home.unread) == 3 and not home.followed
    found = drafter.propose(sequence(list(b"x")), op, 2)
    assert found is not None and bytes(found.tokens) == b"cd" and not home.unread
    for _ in range(3 * UNREAD):
        drafter.learn(sequence(list(b"xcd")), written(grammar, b"cd"))
    assert len(home.unread) == UNREAD


def test_guesses_take_nothing_of_what_texts_need() -> None:
    """Every guess another text: the automaton grows to a bound, and a text that needs all of its states has them."""
    grammar = compile_regex("[ab]{0,300}", Vocabulary([bytes([byte]) for byte in range(256)] + [b""], eos_ids=[256]))
    grammar._automaton = Automaton(grammar._automaton.network, grammar.vocabulary, limit=320)
    matcher, core = grammar.matcher(), grammar.automaton.core
    decoding: Any = SimpleNamespace(matcher=matcher, jumps=False, output=[], limit=500)
    while may_build_states(matcher):
        assert fitted(DraftTokens([97] * (core.size() + 1), DraftSource("told")), decoding, 500) is not None
    assert core.size() < 320 // GUESSED + 4
    known = fitted(DraftTokens([97] * 300, DraftSource("told")), decoding, 500)
    assert known is None or len(known.tokens) <= core.size()
    before = core.size()
    assert fitted(DraftTokens([98] * 300, DraftSource("told")), decoding, 500) is None or core.size() == before
    for _ in range(300):
        assert matcher.accept(97)


def test_agreement() -> None:
    draft = DraftTokens([5, 6, 7], DraftSource("told"))
    assert [draft.agrees(chosen) for chosen in ([], [5], [6, 6], [5, 6, 7], [5, 6, 8], [5, 9, 7])] == [0, 1, 0, 3, 2, 1]


def test_a_row_with_something_behind_it() -> None:
    row = GrowableIntArray([1, 2])
    row.append_rows([3, 4])
    assert row.array.tolist() == [1, 2] and row.reaching(4).tolist() == [1, 2, 3, 4]
    row.append(9)
    assert row.array.tolist() == [1, 2, 9]
    row.append_rows(np.arange(100))
    assert len(row) == 3 and row.reaching(103).tolist() == [1, 2, 9, *range(100)]


def test_steps_wait_less_and_less_often_for_nothing() -> None:
    """Twice as many steps run ahead each time, until there is a guess again."""
    turns, waited = RunAheadPolicy(), []
    for step in range(60):
        turns.planned(known=turns.waits or not step, hopes=True, drafted=False)
        waited += [step] if turns.waits else []
    assert waited == [1, 4, 9, 18, 35, 52]
    turns.planned(True, True, True)
    turns.planned(False, False, False)
    assert not turns.waits, "nothing could be guessed for"
    turns.planned(False, True, False)
    assert turns.waits


@pytest.mark.parametrize("seed", range(40))
def test_the_first_item_stands_behind_what_most_different_ones_stand_behind(seed: int) -> None:
    draw = random.Random(seed)
    text = draw.choices(range(6), k=draw.randrange(1, 40))
    allowed = set(draw.sample(range(6), draw.randrange(0, 4)))
    places = [place for place, token in enumerate(text) if token in allowed]
    behind = {place: text[place - 1] for place in places if place}
    different = {
        marker: len({text[place] for place, mark in behind.items() if mark == marker}) for marker in behind.values()
    }
    found = first_item(np.array(text), np.array(places, np.int64))
    if not behind:
        assert found == 0
        return
    assert different[text[found - 1]] == max(different.values())
    assert found == min(place for place, mark in behind.items() if mark == text[found - 1])


@pytest.mark.parametrize("seed", range(60))
def test_the_kernels_find_the_list_that_the_plain_search_finds(seed: int) -> None:
    draw = random.Random(seed)
    letters = draw.choice([3, 20, 400])
    text = np.array(draw.choices(range(letters), k=draw.choice([0, 1, 2, 40, 1500])), np.int32)
    mask = np.zeros(draw.choice([2, 13]), np.int32)
    for token in draw.sample(range(32 * len(mask)), draw.choice([0, 1, 2, 9, 30, 32 * len(mask)])):
        mask.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))
    assert choice_list_drafter.find_listed_value(text, mask) == choice_list_drafter.searched(text, mask)


def _decoding(grammar: Any) -> Any:
    return SimpleNamespace(matcher=grammar.matcher(), jumps=False, output=[], limit=500)


def test_a_draft_goes_on_with_another_guess_where_the_grammar_refuses_it() -> None:
    grammar = compile_regex("ab(cd|ef)gh", Vocabulary([bytes([byte]) for byte in range(256)] + [b""], eos_ids=[256]))
    asked: list[list[int]] = []

    def onward(draft: DraftTokens, matcher: Any) -> list[int]:
        asked.append(list(draft.tokens))
        assert matcher.accepted == len(draft.tokens)
        return list(b"efx") if len(asked) == 1 else list(b"gq")

    found = fitted(DraftTokens(list(b"abx"), DraftSource("told")), _decoding(grammar), 16, onward)
    assert found is not None and bytes(found.tokens) == b"abefg" and asked == [list(b"ab"), list(b"abef")]
    told, other = DraftSource("told"), DraftSource("onward")
    assert found.kinds() == [(told, False), (told, True), (other, False), (other, True), (other, False)]
    assert found.cut(3).kinds() == found.kinds()[:3]
    assert (
        fitted(DraftTokens(list(b"x"), DraftSource("told")), _decoding(grammar), 16, onward) is None and len(asked) == 2
    )


def test_fields_are_guessed_in_the_order_in_which_a_prompt_names_them() -> None:
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [b""], eos_ids=[256])
    matcher = compile_regex("(name;)?(age;)?(kind;)?", vocabulary).matcher()
    seq, drafter = sequence(list(b"no kind man -name; -age; -kind; ")), ListDrafter()
    op: Any = SimpleNamespace(decoding=SimpleNamespace(matcher=matcher))
    found = [drafter.propose(seq, op, 4)]
    for token in b"name;":
        assert matcher.accept(token)
    found.append(drafter.propose(seq, op, 4))
    assert [bytes(draft.tokens) for draft in found if draft is not None] == [b"name", b"age;"]
    assert found[0] is not None and found[0].source == DraftSource("named")
    assert drafter.propose(seq, SimpleNamespace(decoding=SimpleNamespace(matcher=None)), 4) is None  # type: ignore[arg-type]


def test_a_match_is_not_taken_where_the_grammar_refuses_what_follows() -> None:
    """The newest place says x, which may not come; an older one says what may."""
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [b""], eos_ids=[256])
    matcher = compile_regex("[a-f]*", vocabulary).matcher()
    op: Any = SimpleNamespace(decoding=SimpleNamespace(matcher=matcher))
    text = sequence(list(b"1234abc 234x 1234"))
    found = SuffixDrafter().propose(text, op, 3)
    assert found is not None and bytes(found.tokens) == b"abc" and found.source == DraftSource("suffix", 4)
    op.decoding.matcher = compile_regex("x*", vocabulary).matcher()
    found = SuffixDrafter().propose(text, op, 1)
    assert found is not None and bytes(found.tokens) == b"x" and found.source == DraftSource("suffix", 3)
