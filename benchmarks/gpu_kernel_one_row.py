"""One row: do the fused kernels stream the weights as fast as the memory, each alone and as a chain of layers?

"overlapped": a kernel starts under the tail of the one before it (programmatic dependent launch); "apart": it waits.
cuBLAS does the product alone, without the norm, rotary, store, activation or residual that ours do with it.
A share above 100 % is one of a copy's rate: reading alone is a little faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from gpu_kernel_few_bits import int4, packed, size_of
from gpu_kernel_lab import Lab, Row
from torch import Tensor

from sgl.runtime.kernels.gemv import gemv
from sgl.runtime.kernels.gemv.gemv_launch import GemvLaunch, TensorCoreGemvLaunch, best_launch, best_tensor_core_launch
from sgl.runtime.kernels.launch import programmatic_launch as overlapping
from sgl.runtime.kernels.packed.packed_weight import DTYPES, PackedWeight

KINDS = ("qkv", "output", "gate_up", "down")
EPS = 1e-5
POSITIONS = 64
Weight = Tensor | PackedWeight
Layer = dict[str, tuple[Weight, Tensor | None]]  # weight, and its scale where it is float8
CUTS = (  # for tuning: rows, columns a step, warps
    (2, 4096, 4),
    (2, 2048, 4),
    (2, 2048, 8),
    (2, 1024, 2),
    (4, 4096, 8),
    (4, 2048, 8),
    (4, 2048, 4),
    (4, 1024, 4),
    (4, 1024, 2),
    (8, 2048, 8),
    (8, 1024, 4),
    (8, 512, 2),
    (2, 512, 1),
    (2, 512, 2),
    (4, 512, 1),
    (4, 512, 2),
    (4, 512, 4),
    (8, 512, 4),
    (2, 1024, 4),
    (2, 4096, 8),
    (4, 4096, 4),
    (16, 512, 4),
)
CUTS_OF_BITS = (  # outputs, warps, programs a multiprocessor
    (16, 8, 1),
    (16, 8, 2),
    (16, 8, 3),
    (16, 8, 4),
    (16, 8, 99),
    (16, 4, 4),
    (16, 4, 6),
    (16, 4, 99),
    (16, 16, 1),
    (16, 16, 2),
    (32, 8, 1),
    (32, 8, 2),
    (32, 4, 2),
    (32, 4, 4),
)


@contextmanager
def overlap(wanted: bool) -> Iterator[None]:
    before, overlapping.OVERLAP = overlapping.OVERLAP, wanted
    try:
        yield
    finally:
        overlapping.OVERLAP = before


class OneRow:
    """The products of a layer for one row, by name, and what they need besides the weights."""

    def __init__(self, lab: Lab) -> None:
        shape = lab.shape
        self.shape, self.sizes = (
            shape,
            dict(zip(KINDS, shape.linears, strict=True)) | {"head": (shape.vocab, shape.hidden)},
        )
        self.x, self.norm = lab.random(1, shape.hidden, scale=0.1), lab.random(shape.hidden)
        self.inputs = {"output": lab.random(1, shape.heads * shape.head_dim), "down": lab.random(1, shape.inner)}
        self.angles = lab.random(POSITIONS, 2 * shape.head_dim)
        self.pools = lab.random(2, 8, shape.kv_heads, shape.head_dim)
        self.place = torch.tensor([3], dtype=torch.int32, device=lab.device)

    def run(
        self,
        kind: str,
        weight: Weight,
        scale: Tensor | None = None,
        x: Tensor | None = None,
        y: Tensor | None = None,
        launch: GemvLaunch | TensorCoreGemvLaunch | None = None,
    ) -> Tensor:
        """x: the residual row, y: what "output" and "down" multiply; stand-ins where they are not given."""
        x = self.x if x is None else x
        if kind == "qkv":
            return gemv.qkv_rope_store(
                x,
                self.norm,
                EPS,
                weight,
                None,
                self.shape.heads,
                self.shape.kv_heads,
                self.angles,
                self.place,
                self.place,
                *self.pools,
                launch=launch,
                weight_scale=scale,
            )
        if kind == "gate_up":
            return gemv.gate_up(x, self.norm, EPS, weight, launch=launch, weight_scale=scale)
        if kind == "head":
            return gemv.norm_linear(x, self.norm, EPS, weight, launch=launch)
        return gemv.linear_add(self.inputs[kind] if y is None else y, weight, x, launch=launch, weight_scale=scale)

    def chain(self, layers: list[Layer], entry: Tensor) -> Tensor:
        """All layers, without attention."""
        x = entry.clone()
        for layer in layers:
            q = self.run("qkv", *layer["qkv"], x)
            self.run("output", *layer["output"], x, q.view(1, -1))
            y = self.run("gate_up", *layer["gate_up"], x)
            self.run("down", *layer["down"], x, y)
        return x

    def library(self, layers: list[Layer], entry: Tensor) -> Tensor:
        """The products of `chain` alone, by cuBLAS."""
        x, queries, inner = entry, self.shape.heads * self.shape.head_dim, self.shape.inner
        for layer in layers:
            x = x + F.linear(F.linear(x, layer["qkv"][0])[:, :queries], layer["output"][0])
            x = x + F.linear(F.linear(x, layer["gate_up"][0])[:, :inner], layer["down"][0])
        return x


def measure(lab: Lab) -> None:
    one = OneRow(lab)
    rows = [_alone(lab, one, kind) for kind in one.sizes]
    rows.append(_chain(lab, one))
    lab.show("one row: weights cycle through more than the L2 cache holds", rows)
    if lab.dtype in DTYPES:
        lab.show(
            "the same with four bits in groups of 64",
            [*(_bits(lab, one, kind) for kind in one.sizes), _chain_of_bits(lab, one)],
        )
    if lab.tune:
        for kind in one.sizes:
            _tune(lab, one, kind)
            if lab.dtype in DTYPES:
                _tune_bits(lab, one, kind)


def _alone(lab: Lab, one: OneRow, kind: str) -> Row:
    weights, times = lab.weights(one.sizes[kind]), {}
    for name, wanted in (("overlapped", True), ("apart", False)):
        with overlap(wanted):
            times[name] = lab.attempt(f"{kind} {name}", lambda w: one.run(kind, w), weights)
    x = lab.random(1, one.sizes[kind][1])
    peer = lab.attempt(f"{kind} cuBLAS", lambda w: F.linear(x, w), weights)
    return Row(kind, str(list(one.sizes[kind])), times, {"cuBLAS": peer}, moved=weights[0].nbytes)


def _chain(lab: Lab, one: OneRow) -> Row:
    """Per layer. The two ways must agree to the bit: a kernel that looks at x too early would not."""
    count, entry = lab.sizes.chain, lab.random(1, lab.shape.hidden, scale=0.1)
    layers: list[Layer] = [
        {kind: (lab.random(*one.sizes[kind], scale=0.02), None) for kind in KINDS} for _ in range(count)
    ]
    times, results = {}, []
    for name, wanted in (("overlapped", True), ("apart", False)):
        with overlap(wanted):
            times[name] = lab.attempt(f"chain {name}", lambda some: one.chain(some, entry), [layers]) / count
            results.append(one.chain(layers, entry))
    if not torch.equal(*results):
        lab.failures.append("bits")
        lab.say("  chain FAILED: overlapped launches change the result")
    peer = lab.attempt("chain cuBLAS", lambda some: one.library(some, entry), [layers]) / count
    size = sum(math.prod(one.sizes[kind]) for kind in KINDS) * lab.dtype.itemsize
    return Row("a layer", f"of {count} in a chain", times, {"cuBLAS": peer}, moved=size)


def _bits(lab: Lab, one: OneRow, kind: str) -> Row:
    weights, times = packed(lab, int4, one.sizes[kind]), {}
    for name, wanted in (("overlapped", True), ("apart", False)):
        with overlap(wanted):
            times[name] = lab.attempt(f"{kind} four bits, {name}", lambda w: one.run(kind, w), weights)
    return Row(kind, str(list(one.sizes[kind])), times, {}, moved=size_of(weights[0]))


def _chain_of_bits(lab: Lab, one: OneRow) -> Row:
    count, entry = lab.sizes.chain, lab.random(1, lab.shape.hidden, scale=0.1)
    weights = {kind: packed(lab, int4, one.sizes[kind]) for kind in KINDS}
    layers: list[Layer] = [
        {kind: (found[index % len(found)], None) for kind, found in weights.items()} for index in range(count)
    ]
    times = {}
    for name, wanted in (("overlapped", True), ("apart", False)):
        with overlap(wanted):
            times[name] = (
                lab.attempt(f"chain of four bits, {name}", lambda some: one.chain(some, entry), [layers]) / count
            )
    return Row("a layer", f"of {count} in a chain", times, {}, moved=sum(size_of(weights[kind][0]) for kind in KINDS))


def _tune_bits(lab: Lab, one: OneRow, kind: str) -> None:
    weights, size = packed(lab, int4, one.sizes[kind]), one.sizes[kind]
    best = best_tensor_core_launch(size[1])
    cuts = dict.fromkeys([best, *(TensorCoreGemvLaunch(*cut) for cut in CUTS_OF_BITS)])
    with overlap(True):
        lab.compile_ahead(lambda cut=cut: one.run(kind, weights[0], launch=cut) for cut in cuts)
        found = [
            (lab.attempt(f"{kind} {tuple(cut)}", lambda w, cut=cut: one.run(kind, w, launch=cut), weights), cut)
            for cut in cuts
        ]
    for seconds, cut in sorted(found, key=lambda pair: (math.isnan(pair[0]), *pair))[:6]:
        lab.say(
            f"  {kind} {size}, four bits: {tuple(cut)} {1e6 * seconds:.2f} us, "
            f"{size_of(weights[0]) / seconds / 1e12:.2f} TB/s{', in use' if cut == best else ''}"
        )


def _tune(lab: Lab, one: OneRow, kind: str) -> None:
    weights, size = lab.weights(one.sizes[kind]), one.sizes[kind]
    cuts = dict.fromkeys([best_launch(*size), *(GemvLaunch(*cut) for cut in CUTS)])
    with overlap(True):
        lab.compile_ahead(lambda cut=cut: one.run(kind, weights[0], launch=cut) for cut in cuts)
        found = [
            (lab.attempt(f"{kind} {tuple(cut)}", lambda w, cut=cut: one.run(kind, w, launch=cut), weights), cut)
            for cut in cuts
        ]
    for seconds, cut in sorted(found, key=lambda pair: (math.isnan(pair[0]), *pair))[:4]:
        lab.say(
            f"  {kind} {size}: {tuple(cut)} {1e6 * seconds:.2f} us{', in use' if cut == best_launch(*size) else ''}"
        )
