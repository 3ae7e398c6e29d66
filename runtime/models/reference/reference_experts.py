"""The reference for mixtures of experts, in torch: the tokens of each expert together, one product a matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ...layers import cpu_kernels
from ..executor_protocols import ExpertPlacement, ExpertsExecutor, ExpertsSource
from ..spec.model_spec import ExpertsSpec
from ..spec.tensor_names import TensorNames, expert_names, shared_expert_names
from ..spec.weight_targets import WeightTarget, exact, matrix, weight_of
from .reference_feedforward import ReferenceGatedFFN, ReferencePlainFFN, network_for
from .reference_module import ReferenceModule
from .reference_routing import routed, sigmoid
from .stacked_experts import allocate_together, store_alike
from .tensor_parallel_linear import TensorParallelGroup


class ReferenceExperts(ReferenceModule):
    """`inner` returns the network's output; no product follows it.

    Builders of models set `compiled`, `host`, `ranks` and `spread`.

    router: float32 [count, hidden].  experts: a network each; on a GPU their matrices are contiguous, on a CPU each has
        separate memory.
    counts: int64 [count], how often each was chosen since the weights were sealed; None: not counted.
    compiled: computes the mixture in one call, on a CPU; None: torch computes it.
    host: copies the experts from main memory to the GPU; None: they are stored where they are computed.
    ranks: all-reduce the ranks' outputs; None: this one has all of every expert.
    spread: which rows are this rank's, if experts are whole on several ranks; then `experts` are those of its places.
        None: it has them all, or a part of each.
    """

    down = None

    def __init__(
        self, part: ExpertsSpec, names: TensorNames, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.part, self._names, self.hidden, self.dtype, self.device = part, names.experts, hidden, dtype, device
        self.router = matrix(part.count, hidden, part.router.bias, False, torch.float32, device)
        corrected = part.router.correction
        self.correction = torch.zeros(part.count, dtype=torch.float32, device=device) if corrected else None
        self.experts = _experts(part, names, part.latent or hidden, dtype, device)
        self.shared = (
            None if part.shared is None else network_for(part.shared, shared_expert_names(names), hidden, dtype, device)
        )
        self.switch = matrix(1, hidden, False, False, torch.float32, device) if part.switched else None
        self.narrow = matrix(part.latent, hidden, part.latent_bias, False, dtype, device) if part.latent else None
        self.widen = matrix(hidden, part.latent, part.latent_bias, False, dtype, device) if part.latent else None
        self.counts: Tensor | None = None
        self.compiled: ExpertsExecutor | None = None
        self.host: ExpertsSource | None = None
        self.ranks: TensorParallelGroup | None = None
        self.spread: ExpertPlacement | None = None

    @property
    def widest(self) -> int:
        """Numbers that a token has between the products."""
        return self.part.top_k * (self.part.expert.inner + self.hidden)

    def places(self, prefix: str) -> Iterator[WeightTarget]:
        names = self._names
        yield from exact(prefix + names.router, self.router)
        if self.correction is not None:
            yield WeightTarget(
                prefix + names.correction, self.correction.view(1, -1) if names.correction_row else self.correction
            )
        for network in self.networks():
            yield from network.places(prefix)
        if self.switch is not None:
            yield from exact(prefix + names.switch, self.switch)
        if self.narrow is not None and self.widen is not None:
            yield from weight_of(prefix + names.narrow, self.narrow)
            yield from weight_of(prefix + names.widen, self.widen)

    def store_experts(self) -> None:
        """Called once its products are sealed."""
        assert (self.spread is None) == (self.part.held is None)
        if self.device.type != "meta":
            self.counts = torch.zeros(self.part.count, dtype=torch.int64, device=self.device)
        if self.device.type == "cuda":
            for name in (self.experts[0].into, "down"):
                store_alike([getattr(expert, name) for expert in self.experts])

    def hold_experts(self, held: Sequence[Sequence[int]]) -> None:
        """From now on ranks hold these experts, each in the order of its places.

        This rank already has the weights of its experts.
        """
        assert self.spread is not None
        self.spread.place(held)
        if self.compiled is not None:
            self.compiled.place(self.spread)

    def inner(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, hidden]"""
        if self.ranks is None:
            return self.here(x)
        if self.spread is not None and self.spread.ordered:
            return self._in_order(x, self.ranks)
        return self.ranks.summed(self.here(x))

    def here(self, x: Tensor) -> Tensor:
        """This rank's part of `inner`."""
        if self.compiled is not None and cpu_kernels.kernels is not None:
            return self.compiled(x)
        return self.by_torch(x)

    def by_torch(self, x: Tensor) -> Tensor:
        """The reference for `here`."""
        chosen, weights = self.routed(x)
        y = self.mixed(x if self.narrow is None else self.narrow(x), chosen, weights)
        if self.widen is not None:
            y = self.widen(y.to(x.dtype)).float()
        if self.shared is not None:
            y += self._every(x, self.shared)
        return y.to(x.dtype)

    def _every(self, x: Tensor, shared: ReferenceGatedFFN | ReferencePlainFFN) -> Tensor:
        every = shared.output(x)
        return every if self.switch is None else every * sigmoid(self.switch(x.float()))

    def _in_order(self, x: Tensor, ranks: TensorParallelGroup) -> Tensor:
        """The same with bits that do not depend on the experts' placement: one rank has the whole output of a choice.

        The sum over ranks is therefore exact.
        """
        chosen, weights = self.routed(x)
        y = _added(ranks.summed(self.given(x if self.narrow is None else self.narrow(x), chosen, weights)))
        if self.widen is not None:
            y = self.widen(y.to(x.dtype)).float()
        if self.shared is not None:
            y += ranks.summed(self._every(x, self.shared))
        return y.to(x.dtype)

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token and their weights, see `routing.routed`."""
        chosen, weights = routed(self.part.router, self.part.top_k, self.router(x.float()), self.correction)
        if self.counts is not None:
            self.counts += torch.bincount(chosen.flatten(), minlength=self.part.count)
        return chosen, weights

    def mixed(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """float32 [T, hidden]: the sum of the chosen experts' outputs, in the order of choice whatever the batch."""
        return _added(self.given(x, chosen, weights))

    def given(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """float32 [T, k, hidden]: the output of each choice, times its weight; zeros where another rank computes it."""
        places = chosen if self.spread is None else self.spread.places(chosen, self.counts)
        order = places.flatten().argsort(stable=True)
        order = order if self.spread is None else order[int((places < 0).sum()) :]
        taken = x.index_select(0, order // self.part.top_k)
        if self.part.weighs_input:
            taken = taken * weights.flatten()[order, None].to(x.dtype)
        counts = torch.bincount(places.flatten()[order], minlength=len(self.experts)).tolist()
        given = [self.experts[index].output(rows) for index, rows in enumerate(taken.split(counts)) if len(rows)]
        each = (x.new_empty if self.spread is None else x.new_zeros)(chosen.numel(), x.shape[1])
        if given:
            each.index_copy_(0, order, torch.cat(given))
        each = each.view(*chosen.shape, -1).float()
        return each if self.part.weighs_input else each.mul_(weights[:, :, None])

    def networks(self) -> Iterator[ReferenceGatedFFN | ReferencePlainFFN]:
        yield from self.experts
        if self.shared is not None:
            yield self.shared


def _added(each: Tensor) -> Tensor:
    """[T, k, hidden] -> [T, hidden], in this order."""
    y = each[:, 0]
    for more in each.unbind(1)[1:]:
        y = y + more
    return y


def _experts(
    part: ExpertsSpec, names: TensorNames, hidden: int, dtype: torch.dtype, device: torch.device
) -> list[ReferenceGatedFFN | ReferencePlainFFN]:
    beside = device.type == "cuda"
    first = torch.device("meta") if beside else device
    experts = [network_for(part.expert, expert_names(names, index), hidden, dtype, first) for index in part.here]
    if beside:
        for name in (experts[0].into, "down"):
            allocate_together([getattr(expert, name) for expert in experts], device)
    return experts
