"""Attention of models with different layers, or with separate pools for windows: a backend for each group.

A group is of equal layers. Layers with windows may have a group of a separate pool.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

from ..cache.multi_width_kv_pools import Pool
from ..layers.float8_reference import KVScaleFactors
from ..step.step_batch import StepBatch
from .attention_layout import AttentionLayout, listed
from .backend_protocols import UniformAttention
from .topk_attention import TopKSelection


class AttentionByLayer:
    """See `AttentionBackend`. Layers are counted as the model counts them; a plan is the list of its groups' plans."""

    def __init__(self, pool: Pool, layout: AttentionLayout, backends: Sequence[UniformAttention]) -> None:
        self.pool, self._places, self._backends = pool, layout.places, list(backends)
        names = list(dict.fromkeys(backend.name for backend in backends))
        self.name = "mixed" if len(names) > 1 else names[0] if names else "none"
        self.capturable = all(backend.capturable for backend in backends)
        self.reason = (
            "; ".join(f"layers {self._listed(i)}: {b.name}, {b.reason}" for i, b in enumerate(backends))
            or "no layer attends"
        )
        if all(hasattr(backend, "attend_into") for backend in backends):
            self.attend_into = self._attend_into

    def plan(self, batch: StepBatch) -> None:
        plans: list[Any] = []
        for backend in self._backends:
            backend.plan(batch)
            plans.append(batch.plan)
        batch.plan = plans

    def variant(self, batch: StepBatch) -> Hashable:
        """Which graph the planned static batch needs, in addition to its size; None is the usual one."""
        plans, found = batch.plan, []
        for backend, batch.plan in zip(self._backends, plans, strict=True):
            variant = getattr(backend, "variant", None)
            found.append(variant(batch) if variant else None)
        batch.plan = plans
        return tuple(found) if any(found) else None

    def store(self, k: Tensor, v: Tensor, layer: int, batch: StepBatch) -> None:
        group, index = self._places[layer]
        self._backends[group].store(k, v, index, batch)

    def attend(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        group, index = self._places[layer]
        plans, batch.plan = batch.plan, batch.plan[group]
        out = self._backends[group].attend(q, k, v, index, batch, sinks)
        batch.plan = plans
        return out

    def stored(self, layer: int) -> tuple[Tensor, Tensor]:
        group, index = self._places[layer]
        return self._backends[group].stored(index)

    def scales(self, layer: int) -> KVScaleFactors:
        group, index = self._places[layer]
        return self._backends[group].scales(index)

    def slots(self, layer: int, batch: StepBatch) -> Tensor:
        group, index = self._places[layer]
        return self._backends[group].slots(index, batch)

    def reasons(self, layer: int) -> tuple[str, str | None]:
        group, index = self._places[layer]
        return self._backends[group].reasons(index)

    def store_index(self, keys: Tensor, layer: int, batch: StepBatch) -> None:
        group, index = self._places[layer]
        self._backends[group].store_index(keys, index, batch)

    def choose(self, queries: Tensor, shares: Tensor, layer: int, batch: StepBatch) -> TopKSelection:
        group, index = self._places[layer]
        return self._backends[group].choose(queries, shares, index, batch)

    def attend_topk(
        self, q: Tensor, chosen: TopKSelection, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        group, index = self._places[layer]
        return self._backends[group].attend_topk(q, chosen, index, batch, sinks)

    def seen(self, layer: int, batch: StepBatch) -> tuple[int, int, int, int] | None:
        group, index = self._places[layer]
        plans, batch.plan = batch.plan, batch.plan[group]
        seen = self._backends[group].seen(index, batch)
        batch.plan = plans
        return seen

    def _attend_into(self, out: Tensor, q: Tensor, layer: int, batch: StepBatch, sinks: Tensor | None = None) -> None:
        group, index = self._places[layer]
        plans, batch.plan = batch.plan, batch.plan[group]
        self._backends[group].attend_into(out, q, index, batch, sinks)  # type: ignore[attr-defined]
        batch.plan = plans

    def _listed(self, group: int) -> str:
        return listed([layer for layer, (own, _) in self._places.items() if own == group])
