"""Sums over ranks of long steps in pieces, beside the products around them: what is taken at once, for any number of rows. Kernels interpreted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with GPUs, tests/gpu does the same", allow_module_level=True)

from family_cases import write_family
from family_checks import close, prompt
from rig import Rig, Row
from test_ranks_fused import steps_of_ranks
from turns import cut_from

from sgl.runtime.adapters.product import Adapted
from sgl.runtime.kernels.join import NormWeights
from sgl.runtime.layers.linear import Linear
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.models import decoder
from sgl.runtime.models.joins import Join, RmsJoin, here_summed
from sgl.runtime.models.over_ranks import Summed, Underway, cut
from sgl.runtime.parallel import algorithms
from sgl.runtime.parallel.algorithms import MB, Beside, beside
from sgl.runtime.quantization import FewBitsLinear

LEAST = 9  # rows that are cut


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
def test_pieces_are_whole_tiles_and_all_of_the_rows(ranks: int) -> None:
    """With the limits that stand, whatever they are."""
    least, _, most, _ = beside(ranks)
    for rows in [*range(1, 3000, 97), 2048, 4095, 8192, 8193, 20_000]:
        for width in (2048, 8192, 16384):
            found = algorithms.pieces(ranks, rows, rows * width)
            if rows * width < least or most == 1:
                assert found == ()
                continue
            assert 2 <= len(found) <= most and all((piece.stop - piece.start) % algorithms.TILE == 0 for piece in found[:-1])
            assert [row for piece in found for row in range(rows)[piece]] == list(range(rows))


def test_how_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithms, "BESIDE", {2: Beside(MB, MB, 1), 4: Beside(16 * MB, 16 * MB, 4)})
    ends = {8192: [2048, 4096, 6144, 8192], 2048: [1024, 2048], 5000: [2560, 5000], 2047: []}
    for rows, stops in ends.items():
        assert [piece.stop for piece in algorithms.pieces(3, rows, rows * 8192)] == stops
    assert algorithms.told(4).endswith("then NCCL, from 16 MB on in up to 4 pieces beside products")
    assert algorithms.pieces(2, 8192, 64 * MB) == () and algorithms.told(2).endswith("then NCCL")  # most=1 is the switch


class Beside2:
    """Of two ranks whose parts are alike."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def cut(self, x: torch.Tensor) -> list[slice]:
        return [slice(0, 3), slice(3, 4), slice(4, len(x))]

    def begun(self, x: torch.Tensor) -> Any:
        number = sum("begun" in event for event in self.events)
        self.events.append(f"begun {number}")
        return lambda: self.events.append(f"awaited {number}") or 2 * x


@pytest.mark.parametrize("kind", ["rms", "both norms", "layer norm behind the sum", "no norm"])
def test_additions_and_norms_by_pieces_have_the_bits_of_the_whole(kind: str) -> None:
    generator = torch.Generator().manual_seed(5)
    x, part = (torch.randn(11, 48, generator=generator) for _ in range(2))
    norm, after = (NormWeights(torch.rand(48, generator=generator), None, 1e-5) for _ in range(2))
    join = {
        "rms": RmsJoin(norm),
        "both norms": Join(after, norm, 0.5, torch.tensor([1.5])),
        "layer norm behind the sum": Join(after._replace(bias=after.weight, layer=True), norm, of_sum=True),
        "no norm": Join(None, None),
    }[kind]
    expected_x, events = x.clone(), []
    expected = join(expected_x, 2 * part)
    ranks = Beside2(events)
    product = Summed(Linear(torch.eye(48)), ranks)
    pieces = cut(product, x)
    delta = Underway.of(product, ((rows, part[rows]) for rows in pieces))
    assert events == ["begun 0", "begun 1", "begun 2"]
    found = join(x, delta)
    assert torch.equal(found, expected) and torch.equal(x, expected_x)
    assert events[3:] == ["awaited 0", "awaited 1", "awaited 2"]
    assert torch.equal(here_summed(Underway.of(product, ((rows, part[rows]) for rows in pieces))), 2 * part)


def test_products_that_cannot_be_cut_are_not() -> None:
    ranks, x, plain = Beside2([]), torch.zeros(7, 8), Linear(torch.zeros(8, 8))
    law: Any = SimpleNamespace()
    assert len(cut(Summed(plain, ranks), x)) == 3
    assert cut(plain, x) == () and cut(Summed(Adapted(plain, law, law), ranks), x) == () and not FewBitsLinear.in_pieces


CASES = {"llama": 2, "gemma2": 2, "opt": 2, "lfm2": 2, "qwen3 moe": 1, "cohere2": 0}  # sums of a layer that are cut: of both branches, of the mixer's alone, of neither


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_compute_in_pieces_what_one_computes(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 19, 13 and 9 rows, in three pieces, of which the last may be shorter; 8 are too few."""
    path = write_family(case, tmp_path)
    model = open_checkpoint(path).model
    tokens = prompt(model.vocab_size)
    one, other = Row(tokens[:32]), Row(tokens[20:44])
    walk = [[(one, 7), (other, 12)], [(one, 8)], [(other, 1), (one, 12)]]
    rig = Rig(path, attention="torch_native")
    expected = [rig.step(step, every_row=True) for step in walk]
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    cut_from(monkeypatch, LEAST * model.hidden_size * 4)
    begun: dict[int, list[int]] = {0: [], 1: []}
    found, decided = steps_of_ranks(path, walk, before=lambda model, rank, number: begun[rank].append(sums_of(model).pieces))
    for ours, asked in zip(found, expected, strict=True):
        close(ours.float(), asked, 1e-4, case)
    begun[0].append(sums_of(decided).pieces)
    assert begun[0] == [3 * CASES[case] * len(model.layers) * steps for steps in (0, 1, 1, 2)] and begun[0][:-1] == begun[1]


def sums_of(model: Any) -> Any:
    return model.head.product.ranks
