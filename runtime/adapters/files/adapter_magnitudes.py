"""Refuses an adapter whose numbers are too large for the model's type: each
step that used it would end in infinities.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...common.argument_checks import shown
from ...errors import CheckpointError
from ..adapter_extras import AdapterWeightChanges, Pair


def check_magnitudes(where: str, pairs: dict[str, Pair], changes: AdapterWeightChanges, dtype: torch.dtype) -> None:
    """where: for errors. Raises CheckpointError for a scale, or a pair that is multiplied
    with it, that `dtype` or float32 cannot hold.
    """
    most = min(torch.finfo(dtype).max, torch.finfo(torch.float32).max)
    for module, (_, second, scale) in _scaled(pairs, changes):
        if not abs(scale) <= most:
            raise CheckpointError(
                f"{where}: {shown(module)} is scaled by {scale:.3g}, which {dtype} cannot hold; lower lora_alpha or "
                "alpha_pattern"
            )
        if second.numel() and not abs(scale) * _largest(second) <= most:
            raise CheckpointError(
                f"{where}: B of {shown(module)}, multiplied with its scale {scale:.3g}, is no number of {dtype}; "
                "lower lora_alpha or alpha_pattern, or train it again"
            )
    for module, values in (*changes.gains.items(), *changes.offsets.items()):
        if values.numel() and not _largest(values) <= most:
            raise CheckpointError(
                f"{where}: the factors or biases of {shown(module)} are no numbers of {dtype}; the training "
                "diverged, or the file is damaged"
            )


def _scaled(pairs: dict[str, Pair], changes: AdapterWeightChanges) -> Iterator[tuple[str, Pair]]:
    yield from pairs.items()
    yield from ((module, pair) for module, several in changes.mixtures.items() for pair in several)
    for name, table in (("the embedding", changes.embedding), ("the head", changes.head)):
        if table is not None and table.first is not None and table.second is not None:
            yield name, (table.first, table.second, table.scale)


def _largest(values: Tensor) -> float:
    """nan where one is."""
    least, most = values.aminmax()
    return max(-float(least), float(most)) if most.isfinite() and least.isfinite() else float("nan")
