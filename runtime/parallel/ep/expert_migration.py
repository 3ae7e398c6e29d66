"""Experts that go from rank to rank between two steps, a few at a time; steps meanwhile find them where they were."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import RuntimeFailure
from ...models.decoder import Decoder
from ...models.placement.expert_transfer import Form, form_of, put, tensors_of
from ...models.reference.reference_experts import ReferenceExperts
from .expert_placement import ExpertMove, Held


class ExpertMigrationStep(NamedTuple):
    """What all ranks do between two steps.

    held: how the layer's experts are placed once it is done; None: more of the layer is to come.
    chosen: what `describe_experts_apart` says of rank 0's layer.
    """

    layer: int
    moves: tuple[ExpertMove, ...]
    held: Held | None
    chosen: int = 0


class ExpertMigrator:
    """One rank's part.

    All ranks of the group make one at the same time, and take the same slices in the same order. On a GPU all of it is
    queued on the stream that computes, after the steps that run. The weights and the places stay at their addresses,
    which graphs have.

    movable: the layers whose experts have one form on all ranks.
    """

    def __init__(self, model: Decoder, rank: int, ranks: int, group: dist.ProcessGroup | None = None) -> None:
        self._model, self._rank, self._ranks, self._group = model, rank, ranks, group
        self.review()
        self._under_way: ReferenceExperts | None = None
        self._staged: list[
            tuple[int, list[Tensor]]
        ] = []  # of the part that is under way: for which place, and what comes there

    @property
    def parts(self) -> dict[int, ReferenceExperts]:
        """The mixtures by their layers, which are others once weights were loaded anew."""
        return {
            index: layer.ffn
            for index, layer in enumerate(self._model.layers)
            if isinstance(layer.ffn, ReferenceExperts) and layer.ffn.spread is not None
        }

    def review(self) -> None:
        """Find out anew what can move: all ranks do so at the same time, once weights were loaded."""
        self.movable = self._movable()

    def drop(self) -> None:
        """Weights are going to be loaded anew: what is under way is dropped, and nothing here keeps the old ones."""
        self._under_way, self._staged = None, []

    def _movable(self) -> list[int]:
        """A mixture that one rank does not compute by the kernels is computed by torch on all.

        Where routers differ in a last bit, a row's expert may be on no rank.
        """
        own = {
            index: (part.compiled is not None, {form_of(expert) for expert in part.experts})
            for index, part in self.parts.items()
        }
        found: list[dict[int, tuple[bool, set[Form | None]]]] = [{}] * self._ranks
        dist.all_gather_object(found, own, group=self._group)
        for index, part in self.parts.items():
            if not all(each[index][0] for each in found):
                part.compiled = None
        forms = {index: set().union(*(each[index][1] for each in found)) for index in own}
        return [index for index, each in forms.items() if len(each) == 1 and None not in each]

    @torch.inference_mode()
    def take(self, slice: ExpertMigrationStep) -> None:
        """Returns when this rank's part is there.

        With the last slice of a layer the rows of the next step go by the new placement.

        Raises RuntimeFailure where this rank's router chose otherwise than rank 0's.
        """
        part, travels = self.parts[slice.layer], list[dist.P2POp]()
        if describe_experts_apart(part) != slice.chosen:
            raise RuntimeFailure(
                f"rank {self._rank} chose other experts in layer {slice.layer} than rank 0: its router computes "
                "otherwise"
            )
        if part is not self._under_way:
            self._under_way, self._staged = part, []
        for move in slice.moves:
            (source, place), (target, into) = move.source, move.target
            if source == self._rank:
                tensors = tensors_of(part.experts[place])
                if target == source:
                    self._staged.append((into, [tensor.clone() for tensor in tensors]))
                else:
                    travels += [dist.P2POp(dist.isend, raw(tensor), target, self._group) for tensor in tensors]
            elif target == self._rank:
                coming = [torch.empty_like(like) for like in tensors_of(part.experts[into])]
                self._staged.append((into, coming))
                travels += [dist.P2POp(dist.irecv, raw(tensor), source, self._group) for tensor in coming]
        for work in dist.batch_isend_irecv(travels) if travels else ():
            work.wait()  # on a GPU its stream does, not the host
        if slice.held is not None:
            self._settle(part, slice.held)

    def _settle(self, part: ReferenceExperts, held: Held) -> None:
        for place, tensors in self._staged:
            put(part.experts[place], tensors)
        self._staged = []
        part.hold_experts(held)


def describe_experts_apart(part: ReferenceExperts) -> int:
    """A number of how often each expert was chosen: all ranks must have the same."""
    assert part.counts is not None
    return zlib.crc32(part.counts.cpu().numpy().tobytes())


def raw(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8)


def bytes_of(part: ReferenceExperts) -> int:
    """Of one expert."""
    return sum(tensor.nbytes for tensor in tensors_of(part.experts[0]))
