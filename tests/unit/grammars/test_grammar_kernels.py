"""The automaton on a device, in Triton's interpreter on the CPU, against the matcher."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("tests/gpu runs these kernels on the GPU itself", allow_module_level=True)

from device_walks import Walk, apply_by_numpy, shown  # noqa: E402
from grammar_support import CORES, JSON_PIECES, allowed, byte_vocabulary, random_vocabulary  # noqa: E402
from test_grammar_regex import patterns  # noqa: E402

from sgl.grammars import GrammarLimitError, Matcher, compile_json_schema, compile_regex  # noqa: E402
from sgl.grammars.automaton.grammar_automaton import Automaton  # noqa: E402
from sgl.grammars.automaton.python_automaton_core import NEED  # noqa: E402
from sgl.grammars.device import DevicePool  # noqa: E402
from sgl.grammars.device.device_state_codes import ENDED, LANES, NO_MASK, NO_PLACE, REFUSED, UNKNOWN, UNSEEN  # noqa: E402
from sgl.grammars.device.device_token_blocks import TokenBlocks  # noqa: E402
from sgl.grammars.network.transition_network import TransitionNetwork  # noqa: E402
from sgl.grammars.regex import parse_regex  # noqa: E402
from sgl.grammars.schema.schema_builder import SchemaOptions, schema_expr  # noqa: E402

LONG = [b"abcdefgh" * 3, "日本語".encode()]
VOCABULARY = byte_vocabulary([*JSON_PIECES, *LONG])
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "additionalProperties": False,
        }
    },
}
FINITE = [r"[a-c]{1,4}(?:0|é)?", r"(?:ab|cd)+x?", r"\d{3}-\d{2}", "(?:name|namely|nil)"]


def grammars():
    found = [compile_regex(pattern, VOCABULARY) for pattern in [*FINITE, r".{0,90}!", r"\w+@\w+\.(?:com|org)"]]
    schemas = [TREE, {}, {"type": "string", "maxLength": 60}, {"enum": ["a", "abc", 12]}, {"type": "number"}]
    return found + [compile_json_schema(schema, VOCABULARY) for schema in schemas]


@pytest.mark.whole
def test_the_kernels_compile_for_a_gpu(tmp_path):
    script = Path(__file__).with_name("compile_kernels.py")
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_DISABLE_LINE_INFO": "1"}
    environment.pop("TRITON_INTERPRET")
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_token_blocks_hold_every_token():
    vocabulary = random_vocabulary(random.Random(3), ["abcé😀" * 5, '{"name": "aé"}'])
    blocks = TokenBlocks(vocabulary)
    for token, place in enumerate(blocks.places.tolist()):
        if token in vocabulary.eos_ids:
            assert place < -1
            continue
        if token not in vocabulary.text_ids:
            assert place == NO_PLACE and vocabulary.tokens[token][0] >= 0xF8
            continue
        block, lane = divmod(place, LANES)
        length, offset = blocks.lengths[block], blocks.offsets[block]
        words = blocks.words[offset + lane : offset + (length + 3) // 4 * LANES : LANES]
        assert words.astype("<i4").tobytes()[:length] == vocabulary.tokens[token]


@pytest.mark.parametrize("core", CORES)
def test_exported_rows_are_the_steps(core):
    machine = Automaton(TransitionNetwork(parse_regex(r"(?:ab|c\d{2})*é?")), VOCABULARY, core)
    rows = explored(machine, rounds=3)
    assert rows.tolist() == [[machine.advance(s, bytes([b])) for b in range(256)] for s in range(len(rows))]


@pytest.mark.skipif(len(CORES) < 2, reason="the C core is not built")
def test_exported_rows_are_those_of_the_twin():
    expr = schema_expr(TREE, SchemaOptions())
    rows = [explored(Automaton(TransitionNetwork(expr), VOCABULARY, core), rounds=14) for core in CORES]
    assert len(rows[0]) > 20 and np.array_equal(*rows)


def explored(machine, rounds):
    """The rows of all states there are, several times over."""
    for _ in range(rounds):
        states = np.arange(machine.core.size(), dtype=np.int32)
        rows = np.full((len(states), 256), UNKNOWN, np.int32)
        while machine.core.rows(states, rows) == NEED:
            machine._build(machine.core.wanted)
    return rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [len(VOCABULARY.tokens), 200, 5000])
def test_masks_are_applied_as_by_numpy(dtype, width):
    rng = np.random.default_rng(width)
    pool = DevicePool(VOCABULARY, "cpu", slots=8, most_states=64, most_rows=32)
    pool.tables.masks.copy_(torch.from_numpy(rng.integers(-(2**31), 2**31, pool.tables.masks.shape).astype(np.int32)))
    rows = [3, NO_MASK, 7, 7, NO_MASK, 31, 0, 1]
    pool.rows.copy_(torch.tensor(rows))
    wide = torch.from_numpy(rng.normal(size=(8, width + 9)).astype(np.float32)).to(dtype)
    logits = wide[:, :width]
    expected = apply_by_numpy(logits.float().numpy(), rows, pool.tables.masks.numpy())
    behind = wide[:, width:].clone()
    pool.apply(logits)
    assert np.array_equal(logits.float().numpy(), expected)
    assert torch.equal(wide[:, width:], behind)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [0, 2])
def test_walks_of_mixed_batches_beside_the_matcher(seed):
    walk = Walk(
        DevicePool(VOCABULARY, "cpu", slots=5, most_states=4096, most_rows=256),
        grammars(),
        random.Random(seed),
    )
    walk.run(14, wrong=0.05)
    assert walk.missed < walk.steps and walk.refused


@settings(max_examples=6, deadline=None)
@given(st.lists(patterns, min_size=2, max_size=2), st.integers(0, 10**6))
def test_walks_of_random_patterns_beside_the_matcher(sources, seed):
    rng = random.Random(seed)
    vocabulary = random_vocabulary(rng, ["abcé😀", "aab0\nbc", "cc0c0c"])
    pool = DevicePool(vocabulary, "cpu", slots=3, most_states=512, most_rows=64)
    Walk(pool, [compile_regex(source, vocabulary) for source in sources], rng).run(5)


@pytest.mark.whole
def test_a_small_pool_starts_over_and_stays_right():
    pool = DevicePool(VOCABULARY, "cpu", slots=4, most_states=40, most_rows=8)
    walk = Walk(pool, grammars(), random.Random(1))
    walk.run(16)
    assert pool._numbers.round > 1


def test_what_has_grown_to_its_end_never_misses():
    pool = DevicePool(VOCABULARY, "cpu", slots=4, most_states=2048, most_rows=256)
    finite = [compile_regex(pattern, VOCABULARY) for pattern in FINITE]
    for grammar in finite:
        pool.add(grammar)
    while pool.grow(16):
        pass
    walk = Walk(pool, finite, random.Random(2))
    walk.run(12)
    assert walk.missed == 0
    assert not pool.tables.incomplete.any()


def test_rows_worked_out_on_the_device_are_the_matchers_bit_for_bit():
    pool = DevicePool(VOCABULARY, "cpu", slots=2, most_states=2048, most_rows=512)
    resident = pool.add(compile_regex(r"(?a)(?:\w+ ){2}é{3}[^a-f]?", VOCABULARY))
    while pool.grow(64):
        pass
    machine = resident.automaton
    states = [state for state in range(machine.core.size()) if state in resident._done]
    for first in range(0, len(states), 2):
        pair = states[first : first + 2]
        pool.states[: len(pair)] = torch.tensor([resident.number(state) for state in pair])
        pool.advance(torch.tensor([-1, -1]))
        for slot, state in enumerate(pair):
            assert np.array_equal(pool.tables.masks[pool.rows[slot]].numpy(), machine.mask(state))


def test_a_state_that_is_not_there_is_a_miss_and_allows_nothing():
    grammar = compile_regex("abc[0-9]{2}", VOCABULARY)
    pool = DevicePool(VOCABULARY, "cpu", slots=3, most_states=64, most_rows=16)
    matchers = {0: grammar.matcher(), 2: grammar.matcher()}
    pool.assign(matchers)
    pool.advance(torch.tensor([ord("a"), 5, ord("z")]))
    assert pool.misses.tolist() == [UNSEEN, 0, REFUSED]
    masks = shown(pool, VOCABULARY.size)
    assert masks == [set(), set(range(VOCABULARY.size)), set()]
    pool.advance(torch.tensor([ord("b"), 5, ord("a")]))  # what misses stands still
    assert matchers[0].accept(ord("a")) and not matchers[2].accept(ord("z"))
    assert pool.sync_misses() == [0, 2]
    assert [shown(pool, VOCABULARY.size)[slot] for slot in (0, 2)] == [
        allowed(matchers[slot].mask()) for slot in (0, 2)
    ]


def test_an_ended_sequence_may_only_end_and_a_released_slot_is_free():
    pool = DevicePool(VOCABULARY, "cpu", slots=2, most_states=64, most_rows=16)
    eos = VOCABULARY.eos_ids[0]
    matcher = compile_regex("(?:a|b)?", VOCABULARY).matcher()
    pool.assign({1: matcher})
    pool.advance(torch.tensor([0, eos]))
    assert pool.states.tolist()[1] == ENDED and not pool.misses.any()
    assert shown(pool, VOCABULARY.size)[1] == {eos}
    pool.release([1])
    assert shown(pool, VOCABULARY.size)[1] == set(range(VOCABULARY.size))


def test_a_grammar_over_its_limit_fails_alone():
    letters = "abcdefghijklmnopqrstuvwxyz"
    machine = Automaton(TransitionNetwork(parse_regex(letters)), VOCABULARY, None, 12)
    good = compile_regex(letters, VOCABULARY)
    matchers = {0: Matcher(machine), 1: good.matcher()}
    pool = DevicePool(VOCABULARY, "cpu", slots=2, most_states=64, most_rows=16)
    pool.assign(matchers)
    for letter in letters[:11]:
        assert not pool.failed
        assert [matcher.accept(ord(letter)) for matcher in matchers.values()] == [True, True]
        pool.advance(torch.tensor([ord(letter)] * 2))
        pool.sync_misses()
    assert list(pool.failed) == [0] and isinstance(pool.failed[0], GrammarLimitError)
    assert shown(pool, VOCABULARY.size) == [set(VOCABULARY.eos_ids), allowed(matchers[1].mask())]


def test_what_does_not_fit_the_slots_is_refused():
    pool = DevicePool(VOCABULARY, "cpu", slots=2, most_states=16, most_rows=8)
    with pytest.raises(ValueError, match="3 tokens for 2 slots"):
        pool.advance(torch.zeros(3, dtype=torch.int64))
    for logits in (torch.zeros(3, 8), torch.zeros(8, 2).T):
        with pytest.raises(ValueError, match="for 2 slots"):
            pool.apply(logits)


def test_too_small_a_pool_is_refused():
    with pytest.raises(ValueError, match="needs more than 512 states"):
        DevicePool(VOCABULARY, "cpu", slots=256, most_states=512)
