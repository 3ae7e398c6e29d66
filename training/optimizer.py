"""Muon for the matrices, AdamW for the rest, both on one learning-rate factor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

MATRIX_RATE = 0.02
OTHER_RATE = 3e-3


def orthogonal(batch: Tensor, steps: int = 5) -> Tensor:
    """Matrices bf16 [n, rows, columns] with all singular values near 1 (Newton-Schulz, Jordan 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = batch.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon:
    """Momentum whose step is made orthogonal; matrices of one shape are treated as one batch."""

    def __init__(self, parameters: Sequence[Tensor], rate: float, momentum: float = 0.95, decay: float = 0.05) -> None:
        self.rate, self.momentum, self.decay = rate, momentum, decay
        groups: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for parameter in parameters:
            groups[parameter.shape].append(parameter)
        self.groups = list(groups.values())
        self.buffers = [torch.zeros_like(torch.stack(group)) for group in self.groups]

    @torch.no_grad()
    def step(self, factor: float) -> None:
        for group, buffer in zip(self.groups, self.buffers, strict=True):
            gradient = torch.stack([p.grad for p in group if p.grad is not None]).float()
            buffer.lerp_(gradient, 1 - self.momentum)
            update = orthogonal(gradient.lerp(buffer, self.momentum))
            rows, columns = update.shape[-2:]
            rate = self.rate * factor
            torch._foreach_mul_(group, 1 - rate * self.decay)
            scale = -rate * max(1.0, rows / columns) ** 0.5
            torch._foreach_add_(group, list(update.to(gradient.dtype).unbind()), alpha=scale)


class Optimizer:
    """Both optimisers over the parameters of a model."""

    def __init__(self, model: nn.Module, matrix_rate: float = MATRIX_RATE, other_rate: float = OTHER_RATE) -> None:
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
        self.muon = Muon(matrices, matrix_rate)
        self.other_rate = other_rate
        cuda = others[0].is_cuda
        self.adam = torch.optim.AdamW(others, lr=other_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=cuda)

    def step(self, factor: float) -> None:
        """One step at `factor` (0 to 1) of the full learning rates; clears the gradients."""
        for group in self.adam.param_groups:
            group["lr"] = self.other_rate * factor
        self.adam.step()
        self.muon.step(factor)
        self.adam.zero_grad(set_to_none=True)
        for parameter in (p for matrices in self.muon.groups for p in matrices):
            parameter.grad = None
