"""Small batches with 4-bit and 8-bit weights: each product alone at several tilings, and a chain of layers as in the
engine.

Each kernel starts under the tail of the one before it, if not said otherwise. Lines are printed as they are found; the
fastest tiling of each product runs in the chain, and so does the default choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from gpu_kernel_few_bits import FORMS, int4, packed, size_of
from gpu_kernel_lab import Lab
from gpu_kernel_matmul import sizes

from sgl.runtime.kernels.packed.packed_weight import PackedWeight
from sgl.runtime.kernels.quantized import quantized_gemm
from sgl.runtime.kernels.quantized.quantized_gemm import NormedInput
from sgl.runtime.kernels.quantized.skinny_gemm import SkinnyGemmTile
from sgl.runtime.kernels.quantized.split_k_gemm import SplitKTile
from sgl.runtime.quantization.quantized_weight import QuantizedWeight

ROWS = (16, 32, 8)
LAYER = ("gate_up", "down", "qkv", "output")
EPS = 1e-5
Cut = SplitKTile | SkinnyGemmTile | None
SHARED = 226 * 1024
CUTS: dict[
    str, tuple[tuple[int, ...], ...]
] = {  # outputs, parts, warps along the outputs, slices, programs a multiprocessor, blocks ahead
    "qkv": (
        (64, 4, 4, 4, 1, 2),
        (32, 4, 2, 4, 2, 2),
        (32, 8, 1, 4, 2, 1),
        (64, 4, 2, 8, 2, 1),
        (64, 8, 2, 4, 1, 1),
        (128, 4, 4, 8, 1, 1),
        (64, 4, 2, 4, 2, 1),
    ),
    "output": (
        (64, 4, 4, 2, 1, 2),
        (32, 4, 2, 2, 2, 2),
        (64, 4, 2, 4, 2, 1),
        (32, 8, 1, 2, 2, 1),
        (128, 2, 4, 8, 2, 1),
        (128, 4, 4, 4, 1, 1),
        (64, 8, 2, 2, 1, 1),
        (32, 8, 2, 1, 1, 2),
    ),
    "gate_up": (
        (64, 4, 4, 1, 1, 2),
        (32, 8, 2, 1, 1, 2),
        (32, 16, 1, 1, 1, 1),
        (64, 4, 4, 1, 1, 3),
        (64, 8, 2, 1, 1, 1),
        (64, 4, 2, 2, 2, 1),
        (32, 8, 1, 2, 2, 1),
        (32, 4, 2, 2, 2, 2),
        (64, 4, 2, 4, 2, 1),
        (128, 4, 4, 1, 1, 1),
        (64, 2, 4, 2, 2, 2),
    ),
    "down": (
        (64, 2, 4, 8, 2, 2),
        (128, 2, 8, 4, 1, 2),
        (128, 2, 4, 8, 2, 1),
        (64, 4, 2, 7, 2, 1),
        (128, 2, 4, 7, 2, 1),
        (256, 2, 8, 8, 1, 1),
        (128, 4, 4, 4, 1, 1),
    ),
    "head int8": ((64, 8, 2, 1, 1, 1), (32, 16, 1, 1, 1, 2), (64, 4, 4, 1, 1, 3), (128, 4, 4, 1, 1, 1)),
    "gate_up int8": (
        (64, 8, 2, 1, 1, 1),
        (64, 4, 4, 1, 1, 3),
        (32, 16, 1, 1, 1, 2),
        (128, 4, 4, 1, 1, 1),
        (64, 4, 2, 4, 2, 2),
    ),
    "down int8": ((128, 2, 4, 8, 2, 1), (64, 2, 4, 8, 2, 3), (256, 2, 8, 8, 1, 1), (128, 4, 4, 4, 1, 2)),
    "qkv float8": ((64, 4, 4, 4, 1, 2), (32, 8, 1, 4, 2, 2), (64, 4, 2, 4, 2, 2)),
    "output float8": ((128, 4, 4, 4, 1, 2), (64, 8, 2, 2, 1, 2), (64, 4, 2, 4, 2, 2)),
    "gate_up float8": ((64, 8, 2, 1, 1, 1), (64, 4, 4, 1, 1, 3), (128, 4, 4, 1, 1, 1)),
    "down float8": ((128, 2, 4, 8, 2, 1), (256, 2, 8, 8, 1, 1), (128, 4, 4, 4, 1, 2)),
}
OLD = {"gate_up": ((256, 1, 8, 1), (256, 2, 4, 1)), "down": ((128, 2, 4, 1), (256, 2, 4, 1))}  # SkinnyGemmTile


def measure(lab: Lab) -> None:
    stored: dict[str, list[PackedWeight]] = {}
    for rows in ROWS:
        best = {}
        for name, form, size in _weights(lab):
            weights = stored[name] = stored.get(name) or packed(lab, form, size)
            best[name] = _fastest(lab, name, rows, weights)
            if name == LAYER[-1]:
                _chains(lab, stored, rows, {name: best[name] for name in LAYER})


def _fastest(lab: Lab, name: str, rows: int, weights: list[PackedWeight]) -> Cut:
    x, cuts = lab.random(rows, weights[0].inputs), list(_cuts(name, rows, weights[0]))
    lab.compile_ahead([lambda cut=cut: quantized_gemm.matmul(x, weights[0], tile=cut, overlap=True) for cut in cuts])
    found = {
        cut: lab.attempt(
            f"{name} {rows} {cut}", lambda w, cut=cut: quantized_gemm.matmul(x, w, tile=cut, overlap=True), weights
        )
        for cut in cuts
    }
    moved = size_of(weights[0])
    for cut, seconds in found.items():
        rate = moved / seconds
        lab.say(
            f"{name:15}{rows:3} rows {1e6 * seconds:7.1f} us {rate / 1e12:5.2f} TB/s "
            f"({100 * rate / lab.roof.copy:3.0f} %)  {_describe(cut)}"
        )
    return min((cut for cut in cuts if not math.isnan(found[cut])), key=lambda cut: found[cut], default=None)


def _weights(lab: Lab) -> Iterator[tuple[str, Callable[[int, int], QuantizedWeight], tuple[int, int]]]:
    """The four bits of a layer first."""
    found = sizes(lab)
    yield from ((name, int4, found[name]) for name in LAYER)
    yield "head int8", FORMS["int8, an output"], (lab.shape.vocab, lab.shape.hidden)
    yield from ((f"{name} float8", _float8_rows, found[name]) for name in LAYER)
    yield from ((f"{name} int8", FORMS["int8, an output"], found[name]) for name in ("gate_up", "down"))


def _float8_rows(outputs: int, inputs: int) -> QuantizedWeight:
    codes = (torch.randint(0, 256, (outputs, inputs), dtype=torch.uint8) & 0xBF).view(torch.float8_e4m3fn)  # no NaN
    return QuantizedWeight.float8(codes, torch.rand(outputs, 1) / 500 + 1e-4, inputs)


def _cuts(name: str, rows: int, weight: PackedWeight) -> Iterator[Cut]:
    yield None
    found = [SplitKTile(*cut) for cut in CUTS.get(name, ())]
    if rows != 16:
        found = found[: 2 if rows == 8 else 3]
    yield from (cut for cut in found if cut.room(rows, weight.inputs, weight.form) < SHARED)
    if rows == 16:
        yield from (SkinnyGemmTile(*cut) for cut in OLD.get(name, ()))


def _describe(cut: Cut) -> str:
    return "as chosen" if cut is None else f"{type(cut).__name__}{tuple(cut)}"


def _chains(lab: Lab, stored: dict[str, list[PackedWeight]], rows: int, cuts: dict[str, Cut]) -> None:
    layers = [{name: stored[name][at % len(stored[name])] for name in cuts} for at in range(lab.sizes.chain)]
    norm, entry = lab.random(lab.shape.hidden), lab.random(rows, lab.shape.hidden)
    for title, chosen in (("as chosen", dict.fromkeys(cuts)), ("fastest cuts", cuts)):
        for overlap in (True, False):
            lab.compile_ahead([lambda chosen=chosen, overlap=overlap: _chain(layers[:1], chosen, entry, norm, overlap)])
            seconds = lab.attempt(
                f"chain {rows}",
                lambda _, chosen=chosen, overlap=overlap: _chain(layers, chosen, entry, norm, overlap),
                [None],
            )
            lab.say(
                f"a layer of {len(layers)} in a chain, {rows} rows, {title}, {'overlapped' if overlap else 'apart'}: "
                f"{1e6 * seconds / len(layers):.1f} us"
            )


def _chain(
    layers: list[dict[str, PackedWeight]], cuts: dict[str, Any], entry: torch.Tensor, norm: torch.Tensor, overlap: bool
) -> torch.Tensor:
    x, ready = entry.clone(), (norm, EPS)
    y: Any = entry
    for layer in layers:
        qkv: Any = quantized_gemm.matmul(y, layer["qkv"], tile=cuts["qkv"], overlap=overlap)
        y = quantized_gemm.matmul(
            qkv[:, : layer["output"].inputs],
            layer["output"],
            added_to=x,
            ready=ready,
            tile=cuts["output"],
            overlap=overlap,
        )
        inner: Any = quantized_gemm.matmul(y, layer["gate_up"], name="silu", tile=cuts["gate_up"], overlap=overlap)
        y = quantized_gemm.matmul(inner, layer["down"], added_to=x, ready=ready, tile=cuts["down"], overlap=overlap)
        assert isinstance(y, NormedInput)
    return x
