"""Few rows with weights of bfloat16 as they lie: each product alone at several cuts beside cuBLAS, and a chain of layers' products and norms.

Lines are printed as they are found; the fastest cut of each product stands in a chain beside what is chosen without being told, and
beside cuBLAS with norms and activations in kernels of their own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from gpu_kernel_lab import Lab
from gpu_kernel_matmul import sizes

from sgl.runtime.kernels.activation import activate_gated
from sgl.runtime.kernels.few_rows_plain import PlainTile, matmul
from sgl.runtime.kernels.norm import add_rms_norm

ROWS = (8, 32, 64)
EPS = 1e-5
Cut = PlainTile | None
CUTS = {
    "qkv": ((256, 5, 8), (128, 6, 8), (128, 6, 0), (128, 8, 16)),
    "output": ((256, 5, 8), (128, 6, 8), (128, 6, 0), (128, 8, 16)),
    "gate_up": ((128, 3, 8), (128, 3, 0), (128, 4, 8), (128, 5, 8), (64, 6, 8), (64, 4, 4)),
    "down": ((256, 5, 8), (128, 6, 8), (128, 6, 0), (128, 8, 16)),
    "head": ((128, 4, 8), (128, 4, 0), (64, 6, 8), (128, 6, 8)),
}  # depth, stages, lines


def measure(lab: Lab) -> None:
    stored = {name: lab.weights(size) for name, size in {**sizes(lab), "head": (lab.shape.vocab, lab.shape.hidden)}.items()}
    for rows in ROWS:
        best = {name: _fastest(lab, name, rows, weights) for name, weights in stored.items()}
        _chains(lab, stored, rows, best)


def _fastest(lab: Lab, name: str, rows: int, weights: list[torch.Tensor]) -> Cut:
    x, gate = lab.random(rows, weights[0].shape[1]), "silu" if name == "gate_up" else ""
    cuts: list[Cut] = [None, *(PlainTile(64, depth, stages, lines=lines) for depth, stages, lines in CUTS[name])]
    lab.compile_ahead([lambda cut=cut: matmul(x, weights[0], name=gate, tile=cut, overlap=x.is_cuda) for cut in cuts])
    found = {cut: lab.attempt(f"{name} {rows} {cut}", lambda w, cut=cut: matmul(x, w, name=gate, tile=cut, overlap=x.is_cuda), weights) for cut in cuts}
    library = lab.attempt(f"{name} {rows} cuBLAS", lambda w: F.linear(x, w), weights)
    for what, seconds in {**found, "cuBLAS": library}.items():
        rate = weights[0].nbytes / seconds
        lab.say(f"{name:8}{rows:3} rows {1e6 * seconds:7.1f} us {rate / 1e12:5.2f} TB/s ({100 * rate / lab.roof.copy:3.0f} %)  {'as chosen' if what is None else what}")
    return min((cut for cut in cuts if not math.isnan(found[cut])), key=lambda cut: found[cut], default=None)


def _chains(lab: Lab, stored: dict[str, list[torch.Tensor]], rows: int, best: dict[str, Cut]) -> None:
    layers = [{name: weights[at % len(weights)] for name, weights in stored.items()} for at in range(lab.sizes.chain)]
    norm, entry = lab.random(lab.shape.hidden), lab.random(rows, lab.shape.hidden)
    for title, cuts in (("as chosen", dict.fromkeys(best)), ("fastest cuts", best)):
        lab.compile_ahead([lambda cuts=cuts: _chain(layers[:1], cuts, entry, norm)])
        seconds = lab.attempt(f"chain {rows}", lambda _, cuts=cuts: _chain(layers, cuts, entry, norm), [None])
        lab.say(f"a layer of {len(layers)} in a chain, {rows} rows, {title}: {1e6 * seconds / len(layers):.1f} us")
    seconds = lab.attempt(f"chain {rows} cuBLAS", lambda _: _library(layers, entry, norm), [None])
    lab.say(f"a layer of {len(layers)} in a chain, {rows} rows, cuBLAS: {1e6 * seconds / len(layers):.1f} us")


def _chain(layers: list[dict[str, torch.Tensor]], cuts: dict[str, Any], entry: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    x, y = entry.clone(), entry
    ready: Any = (norm, EPS)
    for layer in layers:
        heads: Any = matmul(y, layer["qkv"], tile=cuts["qkv"], overlap=x.is_cuda)
        y = matmul(heads[:, : layer["output"].shape[1]], layer["output"], added_to=x, ready=ready, tile=cuts["output"], overlap=x.is_cuda)  # type: ignore[assignment]
        inner: Any = matmul(y, layer["gate_up"], name="silu", tile=cuts["gate_up"], overlap=x.is_cuda)
        y = matmul(inner, layer["down"], added_to=x, ready=ready, tile=cuts["down"], overlap=x.is_cuda)  # type: ignore[assignment]
    return x


def _library(layers: list[dict[str, torch.Tensor]], entry: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    x, y = entry.clone(), entry
    for layer in layers:
        heads = F.linear(y, layer["qkv"])
        y = add_rms_norm(x, F.linear(heads[:, : layer["output"].shape[1]], layer["output"]), norm, EPS)
        y = add_rms_norm(x, F.linear(activate_gated(F.linear(y, layer["gate_up"]), "silu"), layer["down"]), norm, EPS)
    return x
