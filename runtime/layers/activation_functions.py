"""Activations, plain and gated, and the addition of a branch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from . import cpu_kernels


def _relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": F.relu,
    "relu2": _relu2,
}


def activated(name: str, x: Tensor) -> Tensor:
    """[T, n], contiguous -> [T, n]"""
    if cpu_kernels.supports(x):
        y = torch.empty_like(x)
        cpu_kernels.kernels.activate(
            cpu_kernels.KINDS[x.dtype], cpu_kernels.ACTIVATIONS[name], x.data_ptr(), y.data_ptr(), *x.shape
        )
        return y
    return ACTIVATIONS[name](x)


def gated(name: str, gate_up: Tensor) -> Tensor:
    """[T, 2 n], contiguous -> [T, n]: the activation of the first half times the second."""
    if cpu_kernels.supports(gate_up):
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        y = gate_up.new_empty(rows, size)
        cpu_kernels.kernels.activate_and_mul(
            cpu_kernels.KINDS[y.dtype], cpu_kernels.ACTIVATIONS[name], gate_up.data_ptr(), y.data_ptr(), rows, size
        )
        return y
    gate, up = gate_up.chunk(2, -1)
    return ACTIVATIONS[name](gate).mul_(up)


def times_sigmoid(x: Tensor, gate: Tensor) -> Tensor:
    """x times the sigmoid of gate, [T, n] both, the latter's rows maybe apart; maybe written into x."""
    if cpu_kernels.supports(x) and gate.stride(1) == 1:
        x = x.contiguous()
        cpu_kernels.kernels.gate(cpu_kernels.KINDS[x.dtype], x.data_ptr(), gate.data_ptr(), gate.stride(0), *x.shape)
        return x
    return x * gate.sigmoid()


def add_scaled(x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
    """x + y * scale, both contiguous, maybe written into x."""
    if cpu_kernels.supports(x):
        cpu_kernels.kernels.add(cpu_kernels.KINDS[x.dtype], x.data_ptr(), y.data_ptr(), x.numel(), scale)
        return x
    return x.add_(y, alpha=scale)


def xielu(x: Tensor, alpha_p: float, alpha_n: float, beta: float, eps: float) -> Tensor:
    """Apertus' activation (arXiv 2411.13010): quadratic above zero, an integral of ELU below."""
    below = alpha_n * (torch.expm1(torch.clamp_max(x, eps)) - x) + beta * x
    return torch.where(x > 0, alpha_p * x * x + beta * x, below)
