"""Matchers: acceptance, the end, the way back, forced bytes, completions, and the memo."""

import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from grammar_support import JSON_PIECES, accepts, allowed, byte_vocabulary, walk

from sgl.grammars import (
    GrammarLimitError,
    InvalidGrammarError,
    Vocabulary,
    compile_choices,
    compile_json_schema,
    compile_regex,
    core_name,
)
from sgl.grammars.automaton import native_automaton_core, shortest_completion
from sgl.grammars.automaton.grammar_automaton import Automaton
from sgl.grammars.network.transition_network import TransitionNetwork
from sgl.grammars.regex import parse_regex

VOCABULARY = byte_vocabulary(JSON_PIECES)
EOS = VOCABULARY.eos_ids[0]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2},
        "child": {"$ref": "#"},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}


def feed(matcher, text):
    for byte in text.encode():
        assert matcher.accept(byte), (text, chr(byte))
    return matcher


def test_mask_is_a_read_only_int32_row_that_is_reused():
    grammar = compile_regex("[ab]+", VOCABULARY)
    first, second = grammar.matcher(), grammar.matcher()
    row = first.mask()
    assert row.dtype == np.int32 and row.shape == ((VOCABULARY.size + 31) // 32,)
    assert not row.flags.writeable
    assert second.mask() is row
    feed(first, "a")
    feed(second, "b")
    assert first.mask() is second.mask()


def test_the_end():
    matcher = compile_regex("ab?", VOCABULARY).matcher()
    assert not matcher.can_end and not matcher.accept(EOS)
    feed(matcher, "a")
    assert matcher.can_end and not matcher.finished
    assert EOS in allowed(matcher.mask())
    feed(matcher, "b")
    assert matcher.finished and allowed(matcher.mask()) == {EOS}
    assert matcher.accept(EOS) and matcher.finished
    assert not matcher.accept(EOS) and not matcher.accept(ord("a"))
    assert allowed(matcher.mask()) == {EOS}
    assert matcher.shortest_end() == matcher.forced() == b""
    matcher.rollback(2)
    assert matcher.can_end and matcher.accept(ord("b"))


def test_several_ends_and_special_tokens():
    vocabulary = Vocabulary.from_bytes([b"a", b"<s>", b"</s>", b"", b"<end>"], [2, 4], [1])
    matcher = compile_regex("(a|<s>)+", vocabulary).matcher()
    assert allowed(matcher.mask()) == {0}
    assert not matcher.accept(1) and not matcher.accept(3) and not matcher.accept(99) and not matcher.accept(-1)
    assert matcher.accept(0)
    assert allowed(matcher.mask()) == {0, 2, 4}
    assert matcher.accept(4)


def test_refused_tokens_change_nothing():
    matcher = feed(compile_regex("abc", VOCABULARY).matcher(), "a")
    row = matcher.mask()
    assert not matcher.accept(ord("z")) and not matcher.accept(ord("z"))
    assert matcher.mask() is row and matcher.accepted == 1


def test_rollback_and_copy():
    rng = random.Random(5)
    grammar = compile_json_schema(SCHEMA, VOCABULARY)
    matcher, rows = grammar.matcher(), []
    for _ in range(40):
        choices = sorted(allowed(matcher.mask()) - {EOS})
        if not choices:
            break
        rows.append(matcher.mask())
        matcher.accept(rng.choice(choices))
    other = matcher.copy()
    for row in reversed(rows):
        matcher.rollback(1)
        assert matcher.mask() is row
    assert other.accepted == len(rows) and matcher.accepted == 0
    with pytest.raises(ValueError, match="cannot roll back 1 tokens; only 0 were accepted"):
        matcher.rollback(1)


@pytest.mark.parametrize("seed", range(15))
def test_forced_bytes_are_all_that_may_come(seed):
    rng = random.Random(seed)
    matcher = compile_json_schema(SCHEMA, VOCABULARY).matcher()
    for _ in range(30):
        forced = matcher.forced()
        probe = matcher.copy()
        for byte in forced:
            singles = {t for t in allowed(probe.mask()) if t < 256}
            assert singles == {byte} and not probe.can_end
            assert probe.accept(byte)
        choices = sorted(allowed(matcher.mask()) - {EOS})
        if not choices or not matcher.accept(rng.choice(choices)):
            break


def test_forced_keys():
    matcher = compile_json_schema(SCHEMA, VOCABULARY, whitespace="compact").matcher()
    assert matcher.forced() == b'{"name":"'


def _distance(matcher, limit):
    """Length of a shortest completion by breadth-first search over bytes."""
    level = [matcher]
    for length in range(limit + 1):
        if any(m.can_end for m in level):
            return length
        seen = {}
        for m in level:
            for token in allowed(m.mask()):
                if token < 256:
                    n = m.copy()
                    n.accept(token)
                    seen.setdefault(n._states[-1], n)
        level = list(seen.values())
    return None


@pytest.mark.parametrize("pattern", ["a{3,5}b|c{9}", "(ab){2,4}|a{7,9}", "x(y|zz|é)w", "(a{2,}b){2,}", "[^a]{3}"])
def test_shortest_end_is_shortest_for_regexes(pattern):
    rng = random.Random(pattern)
    for _ in range(4):
        matcher = compile_regex(pattern, VOCABULARY).matcher()
        for _ in range(8):
            end = matcher.shortest_end()
            assert len(end) == _distance(matcher, 12)
            feed_copy = matcher.copy()
            assert all(feed_copy.accept(b) for b in end) and feed_copy.can_end
            choices = sorted(t for t in allowed(matcher.mask()) if t < 256)
            if not choices or not matcher.accept(rng.choice(choices)):
                break


def test_shortest_end_of_an_object():
    matcher = compile_json_schema(SCHEMA, VOCABULARY).matcher()
    assert matcher.shortest_end() == b'{"name":"00","tags":["a","a"]}'
    feed(matcher, '{"name": "x')
    assert matcher.shortest_end() == b'0","tags":["a","a"]}'


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 10**9},
        {"type": "array", "minItems": 10**9},
        {"type": "string", "pattern": "^(a?){900000}$", "minLength": 900000},
    ],
)
def test_a_completion_that_nobody_could_wait_for_is_refused(schema):
    with pytest.raises(GrammarLimitError, match="shortest text"):
        compile_json_schema(schema, VOCABULARY).matcher().shortest_end()


def _chain(length: int, order: list[int]) -> dict:
    """Rules that call the next one, all of them known to the first in some order; the last but 100 is wanted."""
    links = {
        f"r{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/r{i + 1}"}}, "required": ["x"]}
        for i in range(length)
    }
    known = {f"p{i}": {"$ref": f"#/$defs/r{i}"} for i in order}
    return {
        "type": "object",
        "properties": known,
        "required": [f"p{length - 100}"],
        "$defs": {**links, f"r{length}": {"type": "boolean"}},
    }


@pytest.mark.parametrize("length, order", [(1200, 1), (200, -1), (200, 0)])
def test_the_way_through_a_long_chain_of_rules(length, order):
    names = list(range(length))[:: order or 1]
    matcher = compile_json_schema(
        _chain(length, names if order else random.Random(0).sample(names, length)), VOCABULARY
    ).matcher()
    assert len(matcher.shortest_end()) == len(f'{{"p{length - 100}":true}}') + 100 * len('{"x":}')


def test_ways_that_take_too_long_to_find_are_given_up(monkeypatch):
    monkeypatch.setattr(shortest_completion, "MOST_VISITS", 10_000)
    matcher = compile_json_schema(_chain(200, list(range(200))), VOCABULARY).matcher()
    with pytest.raises(GrammarLimitError, match="visits"):
        matcher.shortest_end()


@pytest.mark.parametrize("seed", range(10))
def test_walks_end(seed):
    walk(compile_json_schema(SCHEMA, VOCABULARY).matcher(), random.Random(seed), most=80)


def test_choices():
    words = [f"choice number {i}" for i in range(3000)] + ["é", "choice"]
    grammar = compile_choices(words, VOCABULARY)
    assert accepts(grammar, "choice number 2999") and accepts(grammar, "é") and accepts(grammar, "choice")
    assert not accepts(grammar, "choice number 3000") and not accepts(grammar, "choice ")


@pytest.mark.parametrize("choices", [[], ["a", 1], "abc", ["\ud800"]], ids=str)
def test_bad_choices(choices):
    with pytest.raises(InvalidGrammarError):
        compile_choices(choices, VOCABULARY)


def test_the_empty_choice_may_end_at_once():
    matcher = compile_choices(["", "a"], VOCABULARY).matcher()
    assert matcher.can_end and allowed(matcher.mask()) == {EOS, ord("a")}


def test_grammars_are_cached_per_vocabulary():
    assert compile_regex("a+b", VOCABULARY) is compile_regex("a+b", VOCABULARY)
    assert compile_json_schema({"type": "null"}, VOCABULARY) is compile_json_schema('{"type": "null"}', VOCABULARY)
    assert compile_regex("a+b", byte_vocabulary()) is not compile_regex("a+b", VOCABULARY)


def test_threads_that_come_first_share_the_vocabularys_tables(monkeypatch):
    made, together = [], threading.Barrier(6)
    make = native_automaton_core._Vocabulary.of

    def slowly(vocabulary):
        time.sleep(0.05)
        made.append(make(vocabulary))
        return made[-1]

    def work(number):
        together.wait(10)
        compile_regex(f"a{{{number}}}b*", vocabulary).matcher().mask()

    monkeypatch.setattr(native_automaton_core._Vocabulary, "of", slowly)
    vocabulary = byte_vocabulary(JSON_PIECES)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(vocabulary.compiled) == 6 and len(made) == (core_name() == "C")


def test_threads_share_a_grammar():
    grammar = compile_json_schema({}, byte_vocabulary(JSON_PIECES))
    failures = []

    def work(seed):
        try:
            for i in range(5):
                walk(grammar.matcher(), random.Random(seed * 100 + i), most=40)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_crowded_automaton_is_replaced_for_new_matchers():
    grammar = compile_regex("[a-z]{0,3000}", byte_vocabulary())
    network = grammar._automaton.network
    grammar._automaton = Automaton(network, grammar.vocabulary, limit=400, fresh=lambda: network)
    old = grammar.matcher()
    feed(old, "a" * 150)
    new = grammar.matcher()
    assert new._automaton is not old._automaton
    feed(new, "abc")
    feed(old, "b" * 100)


def test_a_cap_on_states_is_an_error():
    machine = Automaton(TransitionNetwork(parse_regex("[a-z]{0,3000}")), byte_vocabulary(), limit=50)
    with pytest.raises(GrammarLimitError, match="states"):
        machine.advance(machine.start, b"a" * 100)


def test_the_memo_is_bounded():
    """In distinct rows: here every state has one of its own."""
    text = "".join(chr(ord("a") + i % 26) + chr(ord("a") + i // 26) for i in range(150))
    grammar = compile_regex(text, byte_vocabulary(t.encode() for t in (text[i : i + 3] for i in range(298))))
    memo = grammar.automaton.masks
    memo._most = 8
    matcher = grammar.matcher()
    seen = set()
    for byte in text.encode():
        row = matcher.mask()
        seen.add(row.tobytes())
        assert (matcher.mask() == row).all() and matcher.accept(byte)
    rows = {id(row) for row in (*memo.young.values(), *memo._old.values())}
    assert len(seen) > 100 and len(rows) <= 17 and memo.memory <= 18 * row.nbytes
    assert len(memo) <= 17


def test_the_twin_is_chosen_by_the_environment():
    script = "import sgl.grammars as g; print(g.core_name())"
    result = subprocess.run(
        [sys.executable, "-c", script], env={"SGL_PURE_PYTHON": "1"}, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "python"


def test_only_whole_characters():
    matcher = compile_regex(".*", VOCABULARY).matcher()
    assert matcher.accept(0xC3) and not matcher.can_end
    assert not matcher.accept(ord("a")) and matcher.accept(0xA9) and matcher.can_end
    for bad in (b"\xed\xa0", b"\xc0", b"\xf5", b"\xff", b"\x80"):
        probe = matcher.copy()
        assert not all(probe.accept(b) for b in bad)
