"""The automaton on a GPU against the matcher, in eager steps and in a captured CUDA graph."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "grammars"))

from device_walks import Walk, apply_by_numpy  # noqa: E402
from grammar_support import JSON_PIECES, byte_vocabulary  # noqa: E402

from sgl.grammars import Grammar, Vocabulary, compile_json_schema, compile_regex  # noqa: E402
from sgl.grammars.device import DevicePool  # noqa: E402
from sgl.grammars.device.device_state_codes import NO_MASK, NO_TOKEN  # noqa: E402

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
SCHEMAS = [TREE, {}, {"type": "string", "maxLength": 60}, {"enum": ["a", "abc", 12]}, {"type": "number"}]
PATTERNS = [r"[a-c]{1,4}(?:0|é)?", r"(?:ab|cd)+x?", r"\d{3}-\d{2}", r".{0,90}!", r"\w+@\w+\.(?:com|org)"]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """Twenty thousand pieces of random text, of up to 70 bytes, besides the single bytes."""
    rng = random.Random(5)
    letters = 'abcdé日 "\\{}[]:,0123456789-.\n'
    pieces = ("".join(rng.choices(letters, k=min(rng.randint(2, 9) ** 2 // 2, 50))) for _ in range(20_000))
    return byte_vocabulary([*JSON_PIECES, *(piece.encode() for piece in pieces)])


def grammars(vocabulary: Vocabulary) -> list[Grammar]:
    found = [compile_regex(pattern, vocabulary) for pattern in PATTERNS]
    return found + [compile_json_schema(schema, vocabulary) for schema in SCHEMAS]


class Captured(DevicePool):
    """A pool whose steps are replays of one CUDA graph of all its slots."""

    def __init__(self, vocabulary: Vocabulary, slots: int) -> None:
        super().__init__(vocabulary, "cuda", slots)
        self.logits = torch.zeros(slots, vocabulary.size, device="cuda")
        self.tokens = torch.full((slots,), NO_TOKEN, device="cuda")
        super().advance(self.tokens)
        super().apply(self.logits)
        self.moving, self.masking = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.moving):
            super().advance(self.tokens)
        with torch.cuda.graph(self.masking):
            super().apply(self.logits)

    def advance(self, tokens: torch.Tensor) -> None:
        self.tokens.copy_(tokens)
        self.moving.replay()

    def apply(self, logits: torch.Tensor) -> None:
        self.logits.copy_(logits)
        self.masking.replay()
        logits.copy_(self.logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [20_011, 131_072])
def test_masks_are_applied_as_by_numpy(vocabulary, dtype, width):
    rng = np.random.default_rng(width)
    pool = DevicePool(vocabulary, "cuda", slots=64, most_states=512, most_rows=128)
    masks = rng.integers(-(2**31), 2**31, pool.tables.masks.shape).astype(np.int32)
    pool.tables.masks.copy_(torch.from_numpy(masks))
    rows = rng.integers(NO_MASK, 128, 64)
    pool.rows.copy_(torch.from_numpy(rows))
    logits = torch.from_numpy(rng.normal(size=(64, width)).astype(np.float32)).to("cuda", dtype)
    expected = apply_by_numpy(logits.float().cpu().numpy(), rows.tolist(), masks)
    pool.apply(logits)
    assert np.array_equal(logits.float().cpu().numpy(), expected)


@pytest.mark.parametrize("slots", [5, 40])
def test_walks_of_mixed_batches_beside_the_matcher(vocabulary, slots):
    walk = Walk(DevicePool(vocabulary, "cuda", slots), grammars(vocabulary), random.Random(slots))
    walk.run(60, wrong=0.05)
    assert walk.missed < walk.steps and walk.refused


def test_walks_in_a_captured_graph_while_the_tables_grow(vocabulary):
    pool = Captured(vocabulary, 33)
    walk = Walk(pool, grammars(vocabulary), random.Random(9))
    for _ in range(40):
        walk.run(1)
        pool.grow(32)
    assert walk.missed < walk.steps


def test_a_small_pool_starts_over_and_stays_right(vocabulary):
    pool = DevicePool(vocabulary, "cuda", slots=4, most_states=40, most_rows=8)
    Walk(pool, grammars(vocabulary), random.Random(1)).run(60)
    assert pool._numbers.round > 1


def test_rows_worked_out_on_the_device_are_the_matchers_bit_for_bit(vocabulary):
    pool = DevicePool(vocabulary, "cuda", slots=64)
    resident = pool.add(compile_regex(r"(?:\w+ ){2}é{3}[^a-f]?", vocabulary))
    while pool.grow(1000):
        pass
    machine = resident.automaton
    states = sorted(resident._done)
    for first in range(0, len(states), 64):
        batch = states[first : first + 64]
        pool.states[: len(batch)] = torch.tensor([resident.number(state) for state in batch])
        pool.advance(torch.full((len(batch),), NO_TOKEN, device="cuda"))
        found = pool.tables.masks[pool.rows[: len(batch)].long()].cpu().numpy()
        assert np.array_equal(found, np.stack([machine.mask(state) for state in batch]))
