"""The struct Experts of the compiled kernels (csrc/experts/moe_experts.h), of a sealed mixture, and the call that runs
it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...layers import cpu_kernels
from ...layers.linear_layers import BlockedLinear, Linear
from ..executor_protocols import ExpertPlacement
from ..reference.reference_experts import ReferenceExperts
from ..spec.model_spec import GatedFFNSpec, PlainFFNSpec
from .cpu_support import mixture_refusal

AT_ONCE = 512  # rows, whose pairs with experts take memory that a thread keeps
EXPERTS = np.dtype(
    [
        *(
            (name, "i8")
            for name in ("count", "top_k", "hidden", "inner", "activation", "shared_inner", "shared_activation")
        ),
        *((name, "i8") for name in ("sigmoid", "best_first", "groups", "kept_groups", "two_best", "normalise")),
        *((name, "f8") for name in ("outside", "floor", "scale", "limit", "shared_limit")),
        *(
            (name, "i8")
            for name in ("correction", "chosen_before", "router", "shared_up", "shared_down", "switched", "up", "down")
        ),
        *((name, "i8") for name in ("here", "most_copies", "copies", "places")),
    ]
)


class ExpertsStruct:
    """For a part whose products stay as they are; keeps alive the tensors that the kernels read."""

    def __init__(self, part: ReferenceExperts) -> None:
        found = np.zeros(1, EXPERTS)
        self._memory, self._words = found, found[0]
        self._products: list[BlockedLinear] = []
        self._kind = cpu_kernels.KINDS[part.dtype]
        self._fill(part)
        self.address: int = found.ctypes.data

    @classmethod
    def of(cls, part: ReferenceExperts) -> ExpertsStruct | None:
        """None if the kernels do not support it."""
        there = (
            cpu_kernels.can_compute(part.dtype, part.device)
            and mixture_refusal(part.part) is None
            and not (part.spread and part.spread.ordered)
        )
        blocked = there and all(isinstance(getattr(*place), BlockedLinear) for place in part.products())
        return cls(part) if blocked else None

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, hidden]"""
        x = x.contiguous()
        y = torch.empty_like(x)
        for rows, given in zip(x.split(AT_ONCE), y.split(AT_ONCE), strict=True):
            cpu_kernels.kernels.mixture(self._kind, self.address, rows.data_ptr(), given.data_ptr(), len(rows))
        return y

    def _fill(self, part: ReferenceExperts) -> None:
        words, spec, router = self._words, part.part, part.part.router
        words["count"], words["top_k"], words["hidden"] = spec.count, spec.top_k, part.hidden
        words["inner"], words["activation"], words["limit"] = _of_network(spec.expert)
        words["sigmoid"], words["two_best"] = router.score == "sigmoid", router.group_score == "two"
        for name in ("best_first", "groups", "kept_groups", "normalise", "outside", "floor", "scale"):
            words[name] = getattr(router, name)
        words["correction"] = 0 if part.correction is None else part.correction.data_ptr()
        words["chosen_before"] = 0 if part.counts is None else part.counts.data_ptr()
        words["router"] = self._address(part.router)
        if part.shared is not None:
            words["shared_inner"], words["shared_activation"], words["shared_limit"] = _of_network(part.shared.part)
            words["shared_up"], words["shared_down"] = (
                self._address(getattr(part.shared, part.shared.into)),
                self._address(part.shared.down),
            )
        if part.switch is not None:
            words["switched"] = self._address(part.switch)
        self._up, self._down = (
            self._addresses([getattr(each, name) for each in part.experts]) for name in ("gate_up", "down")
        )
        words["up"], words["down"], words["here"] = self._up.ctypes.data, self._down.ctypes.data, len(part.experts)
        if part.spread is not None:
            self.place(part.spread)

    def place(self, placement: ExpertPlacement) -> None:
        """Set the placement of experts from now on."""
        words = self._words
        words["most_copies"], words["copies"], words["places"] = (
            placement.table.shape[1],
            placement.copies.data_ptr(),
            placement.table.data_ptr(),
        )
        self._placement = placement.copies, placement.table

    def _addresses(self, products: Sequence[Linear]) -> np.ndarray:
        return np.array([self._address(product) for product in products], np.int64)

    def _address(self, product: Linear) -> int:
        assert isinstance(product, BlockedLinear)
        self._products.append(product)
        return product.words.ctypes.data


def _of_network(part: GatedFFNSpec | PlainFFNSpec) -> tuple[int, int, float]:
    assert isinstance(part, GatedFFNSpec)
    return part.inner, cpu_kernels.ACTIVATIONS[part.activation], part.limit or 0.0
