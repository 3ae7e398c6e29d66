"""What every attention backend promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..cache.kv import KVPool
    from ..step.batch import Batch


class BackendUnavailable(ConfigError):
    """This backend cannot run here: a package, a compiler, a device or a dtype is missing. "auto" goes on to the next."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The part of a model's configuration that attention needs.

    windows: one entry per layer, the number of latest tokens a query sees (itself included), None for all.
    """

    query_heads: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.query_heads // self.kv_heads

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


class AttentionBackend(Protocol):
    """A step calls `plan` once, then for each layer `store` (or a kernel that writes `pool` itself) and `attend`.

    name: what the setting calls it.  reason: which kernels do what, and once chosen by `attention_backend` why it
    is this one, and why not a better one; for people.
    capturable: static batches may run inside a CUDA graph.
    """

    name: str
    reason: str
    capturable: bool
    pool: KVPool

    def plan(self, batch: Batch) -> None:
        """Build every index the step needs, once, and store it in `batch.plan`.

        For a static batch (see `DeviceBatch`) the buffers that captured kernels read are rewritten in place.
        """

    def store(self, k: Tensor, v: Tensor, layer: int, batch: Batch) -> None:
        """Write the new keys and values [T, kv_heads, head_dim], rotated, into the pool's slots."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, batch: Batch) -> Tensor:
        """What each query sees, once the step's keys and values are stored.

        q: [T, query_heads, head_dim]; k, v: what was stored, [T, kv_heads, head_dim]; returns q's shape, contiguous.
        """
