"""The interface of every attention backend."""

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
    """This backend cannot run here: a package, a compiler, a device or a dtype is missing. "auto" tries the next
    one.
    """


class AttentionBackend(Protocol):
    """A step calls `plan` once, then for each layer `store` (or a kernel that writes `stored` itself) and `attend`.

    name: its name in the settings.  reason: which kernels do what, and once chosen by `attention_backend` why this one
        was chosen, and why no better one; for people.
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
        """The attention output of each query, after the step's keys and values are stored: [T, query_heads, value_dim].

        The result is contiguous.
        q: [T, query_heads, head_dim].  k, v: what was stored, [T, kv_heads, head_dim]; None in a layer that reads what
            another one stored.
        sinks: float32 [query_heads], one more logit for each head, which takes weight and has no value.
        """

    def stored(self, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and values of a layer: [slots, kv_heads, head_dim]."""

    def scales(self, layer: int) -> KVScaleFactors:
        """The scales that they were divided by."""

    def slots(self, layer: int, batch: StepBatch) -> Tensor:
        """The slots of the step's new tokens, [T]."""

    def store_index(self, keys: Tensor, layer: int, batch: StepBatch) -> None:
        """Store the index keys of the new tokens, by which tokens are chosen, [T, index_dim]."""

    def choose(self, queries: Tensor, shares: Tensor, layer: int, batch: StepBatch) -> TopKSelection:
        """The tokens that each query attends to, chosen among those that it sees, including the step's own.

        See `topk_attention.choose`.
        """

    def attend_topk(
        self, q: Tensor, chosen: TopKSelection, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        """`attend` over these tokens only.

        q: [T, query heads of the KV heads in `chosen`, head_dim], of any tokens.
        """

    def reasons(self, layer: int) -> tuple[str, str | None]:
        """The name of the backend that attends a layer, and why no faster one does."""

    def seen(self, layer: int, batch: StepBatch) -> tuple[int, int, int, int] | None:
        """What the queries of a planned batch see in a layer, and where their keys and values go.

        These are pointers for the compiled kernels on a CPU, if these can attend all of them; None elsewhere.
        """


class SinglePoolAttention(TopKByTorch):
    """The common base of backends for equal layers. slower: why this is not the fastest backend, if it is not."""

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
