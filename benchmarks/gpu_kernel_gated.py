"""Gate and up with the activation in their epilogue, against cuBLAS and a separate kernel, under a lasting load."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from gpu_kernel_lab import Lab, Row
from gpu_kernel_matmul import cost, sizes
from torch import Tensor

from sgl.runtime.kernels.activation_kernels import activate_gated
from sgl.runtime.kernels.gate_up_gemm import gate_up

DIFFERENCE = 0.02  # of the largest number, at most


def measure(lab: Lab) -> None:
    lab.show(
        "gated: silu(gate) * up in one kernel, under a lasting load", [_row(lab, rows) for rows in lab.sizes.gated_rows]
    )


def _row(lab: Lab, rows: int) -> Row:
    size = sizes(lab)["gate_up"]
    weights, x = lab.weights(size), lab.random(rows, size[1])
    ways = {"one kernel": gate_up, "cuBLAS, then a kernel": _apart, "cuBLAS alone": F.linear}
    label, load = f"gated {rows} rows", lab.sizes.load
    times = {
        name: lab.attempt(f"{label} {name}", lambda w, way=way: way(x, w), weights, load) for name, way in ways.items()
    }
    _check(lab, label, x, weights[0])
    moved, flops = cost(size, rows, lab.dtype.itemsize, 0)
    moved += rows * (size[1] + size[0] // 2) * lab.dtype.itemsize
    return Row("gate_up", f"{rows} rows", {"one kernel": times.pop("one kernel")}, times, moved, flops)


def _apart(x: Tensor, weight: Tensor) -> Tensor:
    return activate_gated(F.linear(x, weight))


def _check(lab: Lab, label: str, x: Tensor, weight: Tensor) -> None:
    expected = _apart(x, weight).float()
    if not torch.allclose(gate_up(x, weight).float(), expected, rtol=0, atol=DIFFERENCE * float(expected.abs().max())):
        lab.failures.append(f"{label} differs")
        lab.say(f"  {label} FAILED: the two ways differ")
