"""Groups of inputs sorted by their activations (act-order): columns sorted so that each group is contiguous."""

from __future__ import annotations

import torch
from torch import Tensor

from .weight_reader_match import QuantizedModule


def order_of(module: QuantizedModule, name: str, groups: Tensor, group: int) -> Tensor | None:
    """groups: the group of each input, any whole dtype [in] -> int64 [in] as `QuantizedWeight.order`; None: they stand
    in order.

    Raises CheckpointError for groups that do not have `group` inputs each (the last may have fewer).
    """
    groups = groups.long()
    plain = torch.arange(len(groups), device=groups.device) // group
    if torch.equal(groups, plain) or bool((groups == -1).all()):  # -1: a place that was never filled in
        return None
    found, order = groups.sort(stable=True)
    if not torch.equal(found, plain):
        raise module.wrong(
            name,
            f"puts inputs in groups that are not of {group} each; groups of unequal length are not read, convert the "
            "checkpoint again",
        )
    return order
