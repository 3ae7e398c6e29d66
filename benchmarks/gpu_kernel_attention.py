"""Attention over the paged pool: decodes, new tokens after cached ones, a shared prefix. Ours against flashinfer's.

ours: what the engine would choose here; Triton: our kernels alone; deterministic: bits that do not depend on the
batch. Where the engine chooses flashinfer (prefills on Hopper), ours is flashinfer without its wrapper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from gpu_kernel_flashinfer import planned
from gpu_kernel_lab import Call, Lab, Row
from gpu_kernel_steps import LAYERS, noisy_pool, step_of

from sgl.runtime.attention import AttentionBackend, AttentionShape, attention_backend
from sgl.runtime.attention.triton_attention import TritonAttention
from sgl.runtime.cache.kv_pool import KVPool
from sgl.runtime.kernels.attention.attention_decode import DecodeScratch, DecodeTile
from sgl.runtime.kernels.attention.attention_prefill import PrefillTile
from sgl.runtime.step.step_batch import StepBatch

MOST_RUNNING, CONTEXT = 256, 8192
DECODE_TILES = (
    DecodeTile(),
    DecodeTile(32, 32),
    DecodeTile(programs=132),
    DecodeTile(programs=528),
    DecodeTile(warps=2),
    DecodeTile(warps=2, programs=132),
    DecodeTile(128, 128, stages=2),
    DecodeTile(stages=4),
    DecodeTile(merged=16),
)
PREFILL_TILES = (
    PrefillTile(),
    PrefillTile(64, 64),
    PrefillTile(64, 64, stages=2),
    PrefillTile(128, 128, 8, 3),
    PrefillTile(128, 64, 8, 3),
)
Work = list[tuple[int, int]]  # (cached, new) of each sequence


class Attention:
    """The backends over one pool."""

    def __init__(self, lab: Lab) -> None:
        shape = lab.shape
        self.lab, self.shape = lab, AttentionShape(shape.heads, shape.kv_heads, shape.head_dim, (None,) * LAYERS)
        self.pool: KVPool = noisy_pool(lab.sizes.slots, shape.kv_heads, shape.head_dim, lab.dtype, lab.device)
        options = {"page_size": 1, "max_running": MOST_RUNNING, "context": CONTEXT}
        self.ours = attention_backend(lab.attention, self.pool, self.shape, **options)
        self.triton = TritonAttention(self.pool, self.shape, 1, MOST_RUNNING)
        self.exact = TritonAttention(self.pool, self.shape, 1, MOST_RUNNING, CONTEXT, deterministic=True)

    def row(self, label: str, work: Work, prefix: int = 0) -> Row:
        lab, case = self.lab, f"{label} " + _case(work, prefix)
        batch = step_of(work, self.pool, prefix)
        q = lab.random(sum(batch.query_lens), lab.shape.heads, lab.shape.head_dim)
        ours = {
            name: lab.attempt(f"{case} {name}", _attend(backend, batch, q), range(LAYERS))
            for name, backend in (("ours", self.ours), ("Triton", self.triton), ("deterministic", self.exact))
        }
        self.ours.plan(batch)
        ours["host plan"] = lab.host(lambda: self.ours.plan(batch))
        peers = {
            name: lab.attempt(f"{case} {name}", _planned_first(plan), range(LAYERS))
            for name, plan in planned(lab, self.pool, batch, q).items()
        }
        return Row(label, _case(work, prefix), ours, peers, *self.amount(work, prefix))

    def amount(self, work: Work, prefix: int) -> tuple[float, float]:
        """Bytes and FLOP of a layer; keys of a shared prefix have to be read once."""
        read = prefix + sum(cached + new - prefix for cached, new in work)
        seen = sum(new * cached + new * (new + 1) / 2 for cached, new in work)
        head = 2 * self.shape.head_dim
        return read * self.shape.kv_heads * head * self.pool.k.element_size(), 2 * seen * self.shape.query_heads * head


def _case(work: Work, prefix: int) -> str:
    cached, new = work[0]
    if prefix:
        return f"{len(work)} x ({prefix} shared + {cached + new - prefix})"
    return f"{len(work)} x {cached + 1}" if new == 1 else f"{len(work)} x {new} after {cached}"


def _attend(backend: AttentionBackend, batch: StepBatch, q: torch.Tensor) -> Call:
    """Plans at its first call: a plan is for one backend at a time."""
    ready: list[bool] = []

    def call(layer: int) -> object:
        if not ready:
            backend.plan(batch)
            ready.append(True)
        return backend.attend(q, q, q, layer, batch)

    return call


def _planned_first(plan: Callable[[], Call]) -> Call:
    made: list[Call] = []

    def call(layer: int) -> object:
        if not made:
            made.append(plan())
        return made[0](layer)

    return call


@torch.inference_mode()
def measure(lab: Lab) -> None:
    attention = Attention(lab)
    lab.say(f"attention: {attention.ours.name}: {attention.ours.reason}")
    rows = [attention.row("decode", [(context - 1, 1)] * count) for count, context in lab.sizes.decodes]
    count, prefix, own = lab.sizes.shared
    rows.append(attention.row("decode", [(prefix + own - 1, 1)] * count, prefix))
    rows += [attention.row("extend", [(cached, new)] * count) for count, cached, new in lab.sizes.extends]
    lab.show("attention of a layer: three layers in turn, keys scattered in pages of one token", rows)
    if lab.tune:
        _tune(lab, attention)


def _tune(lab: Lab, attention: Attention) -> None:
    ours, sizes = attention.triton, lab.sizes
    for tile in DECODE_TILES:
        ours.decode_tile, ours.gemv_tile = tile, replace(tile, warps=min(tile.warps, 2))
        ours._scratch = DecodeScratch(
            MOST_RUNNING, lab.shape.kv_heads, attention.shape.group, lab.shape.head_dim, tile, lab.device
        )
        lab.say(f"  {tile}: " + _line(lab, attention, [[(context - 1, 1)] * count for count, context in sizes.decodes]))
    for prefill_tile in PREFILL_TILES:
        ours.prefill_tile = prefill_tile
        lab.say(
            f"  {prefill_tile}: "
            + _line(lab, attention, [[(cached, new)] * count for count, cached, new in sizes.extends])
        )


def _line(lab: Lab, attention: Attention, works: list[Work]) -> str:
    found = []
    for work in works:
        batch = step_of(work, attention.pool)
        q = lab.random(sum(batch.query_lens), lab.shape.heads, lab.shape.head_dim)
        found.append((_case(work, 0), lab.attempt(_case(work, 0), _attend(attention.triton, batch, q), range(LAYERS))))
    return ", ".join(f"{case}: {1e6 * seconds:.1f} us" for case, seconds in found)
