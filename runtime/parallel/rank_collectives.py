"""How ranks add up what each has computed, and the products that end in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import RuntimeFailure
from ..layers.linear_layers import Linear
from ..models.decoder import Decoder
from ..models.reference.reference_experts import ReferenceExperts
from ..models.reference.reference_latent_attention import ReferenceLatentAttention
from ..models.reference.tensor_parallel_linear import (
    AllReduceLinear,
    GatherLinear,
    PrecomputedLinear,
    TensorParallelGroup,
)

LIMIT = timedelta(days=1)  # of one collective: that a rank is silent is noticed by those who listen to it (see team.py)


class RankCollectives:
    """The ranks of one engine, by gloo.

    One thread of each calls its methods, all ranks the same ones in the same order.

    group: of those that add up with each other; None: all.
    """

    group: dist.ProcessGroup | None = None

    def __init__(self, rank: int, ranks: int, meeting: Path, arrived: Callable[[], None] = lambda: None) -> None:
        """Waits until all ranks are here and every one of them has heard every other.

        meeting: a file that no other engine uses.  arrived: called when all ranks are here and begin to connect, which
            takes no time.
        """
        self.rank, self.ranks = rank, ranks
        store = dist.FileStore(str(meeting), ranks)
        store.set(f"rank {rank}", "here")
        store.wait([f"rank {each}" for each in range(ranks)], LIMIT)
        arrived()
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=LIMIT)
        self._greet()

    def _greet(self) -> None:
        """Each pair of ranks exchanges a number: a connection that leads elsewhere is found now and in no step."""
        own = torch.arange(self.ranks) + self.rank * self.ranks
        heard = torch.empty_like(own)
        dist.all_to_all_single(heard, own)
        if heard.tolist() != [each * self.ranks + self.rank for each in range(self.ranks)]:
            raise RuntimeFailure(
                f"rank {self.rank} heard {heard.tolist()} of the other ranks: something else answers at their ports; "
                "open the engine again"
            )

    def summed(self, x: Tensor) -> Tensor:
        """The sum of the ranks' x, always in their order, on all of them the same bits; x is written over."""
        if self.ranks == 2:
            dist.all_reduce(x, group=self.group)
            return x
        parts = [torch.empty_like(x) for _ in range(self.ranks)]
        dist.all_gather(parts, x, group=self.group)
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        return x.copy_(total)

    def joined(self, x: Tensor, part: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `TensorParallelGroup`: the reference."""
        x.add_(self.summed(part))
        return torch.nn.functional.rms_norm(x.float(), x.shape[1:], weight.float(), eps).to(x.dtype)

    def rooms(self, out: Tensor) -> None:
        """See `TensorParallelGroup`."""

    def gathered(self, x: Tensor, columns: int) -> Tensor:
        """[R, columns] on rank 0, of the ranks' columns next to each other; elsewhere x.

        x: [R, c] with the same c on all ranks but those that the columns do not reach.
        """
        each = -(-columns // self.ranks)
        if x.shape[1] < each:
            x = torch.nn.functional.pad(x, (0, each - x.shape[1]))
        parts = [torch.empty_like(x) for _ in range(self.ranks)] if self.rank == 0 else None
        dist.gather(x.contiguous(), parts, group=self.group, group_dst=0)
        return x if parts is None else torch.cat(parts, 1)[:, :columns]


class HasRank(TensorParallelGroup, Protocol):
    rank: int


def joined(model: Decoder, ranks: HasRank) -> Decoder:
    """The sealed model of a rank, whose products give what all ranks compute together."""
    for layer in model.layers:
        if isinstance(layer.mixer, ReferenceLatentAttention) and layer.mixer.part.share is not None:
            # with its bias: one rank has the row
            layer.mixer.output = AllReduceLinear(PrecomputedLinear(layer.mixer.output), ranks)
        elif layer.mixer is not None:
            _join(layer.mixer, "output", ranks)
        if isinstance(layer.ffn, ReferenceExperts):
            _join_experts(layer.ffn, ranks)
        elif layer.ffn is not None:
            _join(layer.ffn, "down", ranks)
    if model.config.stage.ends:
        model.head.product = GatherLinear(model.head.product, ranks, model.config.vocab_size)
    return model.finish()


def _join(holder: object, name: str, ranks: HasRank) -> None:
    product = getattr(holder, name)
    _unbias(product, ranks)
    setattr(holder, name, AllReduceLinear(product, ranks))


def _join_experts(part: ReferenceExperts, ranks: HasRank) -> None:
    for product in _sums_of(part):
        _unbias(product, ranks)
    part.ranks = ranks


def _sums_of(part: ReferenceExperts) -> Iterator[Linear | None]:
    """The products of which each rank returns a part of every row.

    Experts that are whole on one return all of theirs.
    """
    if part.spread is None:
        yield from (network.down for network in part.experts)
    if part.spread is None or not part.spread.ordered:
        yield part.widen
    if part.shared is not None:
        yield part.shared.down


def _unbias(product: Linear | None, ranks: HasRank) -> None:
    """Rank 0 alone adds a bias to a sum."""
    if ranks.rank and product is not None and product.bias is not None:
        product.bias.zero_()
