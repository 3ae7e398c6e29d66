"""What every attention backend promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from ..errors import ConfigError
from .attention_layout import AttentionLayout, AttentionShape, LayerAttention
from .topk_attention import TopKByTorch, TopKSelection

if TYPE_CHECKING:
    from ..layers.float8_reference import KVScaleFactors
    from ..step.step_batch import StepBatch

__all__ = [
    "AttentionBackend",
    "AttentionLayout",
    "AttentionShape",
    "BackendUnavailable",
    "LayerAttention",
    "SinglePoolAttention",
]


class BackendUnavailable(ConfigError):
    """This backend cannot run here: a package, a compiler, a device or a dtype
    is missing. "auto" goes on to the next.
    """


class AttentionBackend(Protocol):
    """A step calls `plan` once, then for each layer `store` (or a kernel that writes `stored` itself) and `attend`.

    name: what the setting calls it.  reason: which kernels do what, and once chosen by `attention_backend` why it
    is this one, and why not a better one; for people.
    capturable: static batches may run inside a CUDA graph.
    pool: a KVPool, or the MultiKVPool of layers that differ in width.
    """

    name: str
    reason: str
    capturable: bool
    pool: Any

    def plan(self, batch: StepBatch) -> None:
        """Build every index the step needs, once, and store it in `batch.plan`.

        For a static batch (see `DeviceBatch`) the buffers that captured kernels read are rewritten in place.
        """

    def store(self, k: Tensor, v: Tensor, layer: int, batch: StepBatch) -> None:
        """Write the new keys and values [T, kv_heads, head_dim], rotated, into the pool's slots."""

    def attend(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        """What each query sees, once the step's keys and values are stored: [T, query_heads, value_dim], contiguous.

        q: [T, query_heads, head_dim].  k, v: what was stored, [T, kv_heads, head_dim]; None in a layer that reads
        what another one stored.
        sinks: float32 [query_heads], one more logit for each head, which takes weight and has no value.
        """

    def stored(self, layer: int) -> tuple[Tensor, Tensor]:
        """Where keys and values of a layer lie: [slots, kv_heads, head_dim]."""

    def scales(self, layer: int) -> KVScaleFactors:
        """What they were divided by."""

    def slots(self, layer: int, batch: StepBatch) -> Tensor:
        """Where those of the step's new tokens belong, [T]."""

    def store_index(self, keys: Tensor, layer: int, batch: StepBatch) -> None:
        """Write by what the new tokens are chosen, [T, index_dim]."""

    def choose(self, queries: Tensor, shares: Tensor, layer: int, batch: StepBatch) -> TopKSelection:
        """What each query attends to, by what is stored of the tokens it sees, the
        step's own included: see `chosen.choose`.
        """

    def attend_topk(
        self, q: Tensor, chosen: TopKSelection, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        """`attend` over these tokens alone.

        q: [T, query heads of the KV heads in `chosen`, head_dim], of any tokens.
        """

    def reasons(self, layer: int) -> tuple[str, str | None]:
        """The name of the backend that attends a layer, and why it is no faster one."""

    def seen(self, layer: int, batch: StepBatch) -> tuple[int, int, int, int] | None:
        """What the queries of a planned batch see in a layer, and where their keys and values go, as pointers for the
        compiled
        kernels on a CPU, where these can attend all of them; None elsewhere."""


class SinglePoolAttention(TopKByTorch):
    """What backends for equal layers have in common. slower: why this is not the fastest backend, if it is not."""

    name: str
    slower: str | None = None

    def stored(self, layer: int) -> tuple[Tensor, Tensor]:
        cache = self.shape.caches[layer]
        return self.pool.k[cache], self.pool.v[cache]

    def scales(self, layer: int) -> KVScaleFactors:
        return self.pool.scales[self.shape.caches[layer]]

    def slots(self, layer: int, batch: StepBatch) -> Tensor:
        return batch.slots

    def reasons(self, layer: int) -> tuple[str, str | None]:
        return self.name, self.slower or self.choosing

    def seen(self, layer: int, batch: StepBatch) -> tuple[int, int, int, int] | None:
        return None


class UniformAttention(AttentionBackend, Protocol):
    """A backend for equal layers."""

    slower: str | None
