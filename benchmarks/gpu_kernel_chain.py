"""A batch of one through whole layers: microseconds a layer at several contexts, and without each part.

With --tune also which tilings are fastest. A tiling that is fastest in a chain of products alone need not be so among
attention and routing: what the programs of a kernel take of a multiprocessor decides when those of the next one can
begin. So one part after the other takes each of its tilings while the others keep the best that was found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any, NamedTuple

import torch
from gpu_kernel_lab import Lab, Row
from gpu_kernel_steps import LAYERS, noisy_pool, step_of
from gpu_shapes import Shape
from torch import Tensor

from sgl.runtime.attention import AttentionShape
from sgl.runtime.attention.triton_attention import TritonAttention
from sgl.runtime.kernels.attention.attention_decode import DecodeScratch, DecodeTile
from sgl.runtime.kernels.attention.qk_norm_rope_store import QkNormWeights
from sgl.runtime.kernels.experts.expert_gemv import (
    ExpertGemvLaunch,
    down_launch,
    gate_up_launch,
    gemv_down,
    gemv_gate_up,
)
from sgl.runtime.kernels.experts.expert_inputs import (
    ExpertSelection,
    ExpertWeights,
    SharedExpertOutput,
    StackedExpertWeights,
)
from sgl.runtime.kernels.experts.expert_routing import FEW_ROWS, RouterWeights, route
from sgl.runtime.kernels.gemv import gemv, gemv_qk_norm
from sgl.runtime.kernels.gemv.gemv_launch import GemvLaunch, best_launch
from sgl.runtime.kernels.launch.programmatic_launch import overlaps
from sgl.runtime.kernels.residual_norm import NormWeights

EPS, BYTES, MOST_LAYERS, TURNS, MOST_SHOWN = (
    1e-6,
    4 * 10**8,
    16,
    2,
    5,
)  # BYTES: that all layers' weights read at least together
LAUNCHES = tuple(
    GemvLaunch(*cut)
    for cut in (
        (2, 4096, 4),
        (2, 2048, 4),
        (2, 2048, 8),
        (2, 1024, 2),
        (2, 1024, 4),
        (2, 512, 1),
        (2, 2048, 4, 128),
        (4, 4096, 8),
        (4, 2048, 8),
        (4, 2048, 4),
        (4, 2048, 8, 64),
        (4, 2048, 4, 128),
        (4, 1024, 4),
        (4, 1024, 2),
        (4, 1024, 2, 128),
        (4, 512, 1),
        (4, 512, 1, 128),
        (4, 512, 2),
        (8, 2048, 8),
        (8, 1024, 4),
        (8, 1024, 2),
        (8, 512, 2),
        (8, 512, 1),
        (8, 256, 1),
    )
)
UPS = tuple(
    ExpertGemvLaunch(*cut)
    for cut in (
        (4, 2048, 4),
        (4, 2048, 4, 1, 128),
        (4, 2048, 8, 1, 64),
        (4, 2048, 8),
        (4, 2048, 4, 2, 128),
        (2, 2048, 2, 1, 128),
        (2, 2048, 4),
        (2, 1024, 1),
        (4, 512, 1),
        (4, 1024, 2, 1, 128),
        (16, 512, 2),
    )
)
DOWNS = tuple(
    ExpertGemvLaunch(rows, 256, warps, 1, registers)
    for rows in (1, 2, 4)
    for warps in (1, 2, 4)
    for registers in (0, 128)
)
TILES = (
    DecodeTile(),
    *(
        DecodeTile(block, block, warps=warps, stages=stages, merged=merged)
        for block in (32, 64)
        for warps in (1, 2)
        for stages in (2, 3)
        for merged in (4, 8, 16)
    ),
)
Cuts = dict[str, Any]


class Layer(NamedTuple):
    """heads: the norm of queries and keys; None: they have none.  routing: None: gate_up and
    down are one dense network's, else all experts'.
    """

    qkv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor
    heads: QkNormWeights | None
    routing: RouterWeights | None


def mixture_of(shape: Shape) -> tuple[int, int, int]:
    """Experts, those of a row, their width; 0, 0 and the network's width where there is one."""
    keys = shape.keys
    return (
        keys.get("num_experts", 0),
        keys.get("num_experts_per_tok", 0),
        keys.get("moe_intermediate_size", shape.inner),
    )


class Chain:
    """Layers of a shape with random weights."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.shape = lab, lab.shape
        shape, (self.experts, self.top_k, self.inner) = lab.shape, mixture_of(lab.shape)
        self.norm, self.entry = lab.random(shape.hidden), lab.random(1, shape.hidden, scale=0.5)
        self.angles = lab.random(max(lab.sizes.chain_contexts) + 1, 2 * shape.head_dim)
        self.pool = noisy_pool(max(lab.sizes.chain_contexts) + 2, shape.kv_heads, shape.head_dim, lab.dtype, lab.device)
        self.attention = TritonAttention(
            self.pool, AttentionShape(shape.heads, shape.kv_heads, shape.head_dim, (None,) * LAYERS)
        )
        self.layers = [self._layer() for _ in range(min(MOST_LAYERS, math.ceil(BYTES / self.bytes)))]
        self.counted = torch.ones(1, dtype=torch.int32, device=lab.device)
        self.steps = {
            context: step_of([(context - 1, 1)], self.pool) for context in lab.sizes.chain_contexts
        }  # nothing is uploaded while a graph is captured
        self.scratches: dict[DecodeTile, DecodeScratch] = {}

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Of the products that a row is multiplied with."""
        queries, keys, hidden = (
            self.shape.heads * self.shape.head_dim,
            self.shape.kv_heads * self.shape.head_dim,
            self.shape.hidden,
        )
        return {
            "qkv": (queries + 2 * keys, hidden),
            "output": (hidden, queries),
            "gate_up": (2 * self.inner, hidden),
            "down": (hidden, self.inner),
        }

    @property
    def bytes(self) -> int:
        """That a row reads of a layer's weights."""
        times = {"gate_up": self.top_k or 1, "down": self.top_k or 1}
        return self.lab.dtype.itemsize * (
            sum(math.prod(size) * times.get(kind, 1) for kind, size in self.sizes.items())
            + self.experts * self.shape.hidden
        )

    def _layer(self) -> Layer:
        lab, heads, device = self.lab, self.shape.heads + self.shape.kv_heads, self.lab.device
        many = (self.experts,) if self.experts else ()
        qkv, output, gate_up, down = (
            lab.random(*(many if kind in ("gate_up", "down") else ()), *size, scale=0.02)
            for kind, size in self.sizes.items()
        )
        normed = "Qwen3" in str(self.shape.keys.get("architectures"))
        norm = (
            QkNormWeights(
                lab.random(heads, self.shape.head_dim),
                EPS,
                counters=torch.zeros(heads, dtype=torch.int32, device=device),
            )
            if normed
            else None
        )
        counters = torch.zeros(FEW_ROWS, dtype=torch.int32, device=device)
        router = (
            RouterWeights(
                lab.random(self.experts, self.shape.hidden, scale=0.02),
                None,
                None,
                self.top_k,
                {"normalise": True},
                None,
                counters,
            )
            if self.experts
            else None
        )
        return Layer(qkv, output, gate_up, down, norm, router)

    def cuts(self) -> Cuts:
        """As an engine has them."""
        found: Cuts = {kind: best_launch(*size, self.lab.dtype.itemsize) for kind, size in self.sizes.items()}
        if self.experts:
            found |= {
                "gate_up": gate_up_launch(*self.sizes["gate_up"], self.top_k),
                "down": down_launch(self.inner, self.top_k),
            }
        return found | {"attention": self.attention.gemv_tile}

    def run(self, layers: list[Layer], context: int, cuts: Cuts, without: frozenset[str] = frozenset()) -> Tensor:
        """One row through all of them, after so many tokens and itself."""
        shape, attention, x, batch = self.shape, self.attention, self.entry.clone(), self.steps[context]
        overlap = overlaps(x.device)
        attention.gemv_tile, attention._scratch = cuts["attention"], self._scratch(cuts["attention"])
        attention.plan(batch)
        for index, layer in enumerate(layers):
            place = (
                shape.heads,
                shape.kv_heads,
                *((layer.heads,) if layer.heads else ()),
                self.angles,
                batch.positions,
                batch.slots,
                *attention._kv(index % LAYERS),
            )
            project = gemv_qk_norm.qkv_norm_rope_store if layer.heads else gemv.qkv_rope_store
            q = mixed = project(x, self.norm, EPS, layer.qkv, None, *place, launch=cuts["qkv"])
            if "attention" not in without:
                mixed = attention.attend(q, None, None, index % LAYERS, batch)
            if "output" not in without:
                gemv.linear_add(mixed.view(1, -1), layer.output, x, launch=cuts["output"])
            if layer.routing is None:
                inner = gemv.gate_up(x, self.norm, EPS, layer.gate_up, launch=cuts["gate_up"])
                gemv.linear_add(inner, layer.down, x, launch=cuts["down"])
                continue
            y, experts, weights = route(x, layer.routing, self.counted, NormWeights(self.norm, None, EPS), overlap)
            stacks, choice = (
                StackedExpertWeights(ExpertWeights(layer.gate_up, None), ExpertWeights(layer.down, None), "silu"),
                ExpertSelection(experts, weights),
            )
            inner = gemv_gate_up(y, stacks, choice, cuts["gate_up"], overlap)
            gemv_down(inner, stacks, choice, SharedExpertOutput(x=x), x, cuts["down"], overlap)
        return x

    def _scratch(self, tile: DecodeTile) -> DecodeScratch:
        if tile not in self.scratches:
            sizes = self.shape.kv_heads, self.shape.heads // self.shape.kv_heads, self.shape.head_dim
            self.scratches[tile] = DecodeScratch(1, *sizes, tile, self.lab.device)
        return self.scratches[tile]

    def seconds(self, context: int, cuts: Cuts, without: frozenset[str] = frozenset()) -> float:
        """A layer's."""
        return self.lab.attempt(
            f"chain after {context}", lambda layers: self.run(layers, context, cuts, without), [self.layers]
        ) / len(self.layers)


@torch.inference_mode()
def measure(lab: Lab) -> None:
    chain = Chain(lab)
    cuts, rows = chain.cuts(), []
    for context in lab.sizes.chain_contexts:
        ways = {"layer": frozenset[str]()} | {f"without {part}": frozenset([part]) for part in ("attention", "output")}
        times = {way: chain.seconds(context, cuts, without) for way, without in ways.items()}
        rows.append(
            Row(
                "one row",
                f"{len(chain.layers)} layers, {context} tokens",
                times,
                {},
                moved=chain.bytes + context * lab.shape.kv_bytes / lab.shape.layers,
            )
        )
    lab.show(f"a layer of one row of {lab.shape.name}, in a chain", rows)
    if lab.tune:
        for context in lab.sizes.chain_contexts:
            _tune(lab, chain, context)


@dataclass(slots=True)
class Search:
    """The best cuts so far, and the candidates of each part, those in use first."""

    chain: Chain
    context: int
    best: Cuts
    candidates: dict[str, list[Any]]

    def turn(self, part: str) -> list[tuple[float, Any]]:
        """All tilings of a part with the best of the others, the fastest first; that is the part's best from now on."""
        found = [(self.chain.seconds(self.context, self.best | {part: cut}), cut) for cut in self.candidates[part]]
        found.sort(key=lambda each: (math.isnan(each[0]), each[0]))
        self.best[part] = found[0][1]
        return found


def _tune(lab: Lab, chain: Chain, context: int) -> None:
    used, sizes = chain.cuts(), chain.sizes
    given: dict[str, tuple[Any, ...]] = {
        kind: tuple(cut for cut in LAUNCHES if sizes[kind][1] % cut.block == 0) for kind in sizes
    } | {"attention": TILES}
    if chain.experts:
        given |= {"gate_up": UPS, "down": DOWNS}
    search = Search(
        chain, context, dict(used), {part: list(dict.fromkeys([used[part], *cuts])) for part, cuts in given.items()}
    )
    lab.compile_ahead(_calls(chain, context, used, search.candidates))
    for part in islice(cycle(search.candidates), TURNS * len(search.candidates)):
        shown = (
            f"{1e6 * seconds:.2f} {_describe(cut)}{', in use' if cut == used[part] else ''}"
            for seconds, cut in search.turn(part)[:MOST_SHOWN]
        )
        lab.say(f"  {context} tokens, {part} {sizes.get(part, '')}: " + "; ".join(shown))


def _calls(chain: Chain, context: int, used: Cuts, candidates: dict[str, list[Any]]) -> list[Callable[[], object]]:
    return [
        partial(chain.run, chain.layers[:1], context, used | {part: cut})
        for part, cuts in candidates.items()
        for cut in cuts
    ]


def _describe(cut: Any) -> str:
    return str(cut).removeprefix("DecodeTile") if isinstance(cut, DecodeTile) else str(tuple(cut))
