"""The C kernels of layers with states (csrc/recurrent/recurrent_layers.h): token by token, on a CPU.

Torch is their oracle.

A slot may be read and written by the same sequence; a slot that one writes no other may read in the same call. The bits
of a token depend neither on where its sequence is cut nor on the others.
"""

from __future__ import annotations

import math
from struct import Struct
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import cpu_kernels
from .ragged_sequences import RaggedSequences

if TYPE_CHECKING:
    from .linear_attention import LinearAttention
    from .selective_scan import SelectiveScan


def _struct(*fields: str) -> Struct:
    """Pointers and whole numbers, and float64 where a name ends with a dot."""
    return Struct("".join("d" if name.endswith(".") else "q" for name in fields))


SEQUENCES = ("count", "starts", "read", "write")
LINEAR = _struct(
    "q",
    "k",
    "v",
    "stride",
    "decay",
    "beta",
    "times",
    "skip",
    "memory",
    "out",
    *SEQUENCES,
    "heads",
    "shared",
    "key",
    "value",
    "channels",
    "scale.",
    "unit.",
)
SELECTIVE = _struct("x", "dt", "a", "b", "c", "skip", "memory", "out", *SEQUENCES, "channels", "size")
CONVOLVE = _struct("x", "stride", "kernel", "bias", "memory", "out", *SEQUENCES, "channels", "width", "activation")
GATED = _struct("x", "weight", "z", "out", "stride", "rows", "spans", "n", "apart", "gate", "gate_first", "eps.")
RATES = _struct(
    "x",
    "stride",
    "rows",
    "heads",
    "each",
    "bias",
    "rate",
    "steps",
    "decay",
    "least.",
    "most.",
    "b",
    "b_stride",
    "beta",
    "reach.",
)
GATES = {"silu": cpu_kernels.ACTIVATIONS["silu"], "sigmoid": max(cpu_kernels.ACTIVATIONS.values()) + 1}


def takes(x: Tensor) -> bool:
    """Whether the kernels are there for a model of x's type and device."""
    return cpu_kernels.can_compute(x.dtype, x.device)


def supports_state(memory: Tensor) -> bool:
    """Whether they advance states of this size: [slots, heads, key, value], or [slots, channels, state]."""
    return takes(memory) and memory.shape[2] <= (
        cpu_kernels.kernels.MOST_KEYS if memory.dim() == 4 else cpu_kernels.kernels.NUMBERS
    )


def advance(inputs: LinearAttention, memory: Tensor, read: Tensor, write: Tensor, ragged: RaggedSequences) -> Tensor:
    """`LinearAttention.scan` from the slots `read` into the slots `write`, int64 [S]; [T, heads, value] float32.

    memory: [slots, heads, key, value] float32.
    """
    q, k, v = _alike(inputs.q, inputs.k, inputs.v)
    out = torch.empty(v.shape, dtype=torch.float32)
    channels = inputs.decay.shape[2] > 1
    beta, times = (None if each is None else each.contiguous() for each in (inputs.beta, inputs.times))
    decay, skip, heads = inputs.decay.contiguous(), inputs.skip, v.shape[1]
    words = LINEAR.pack(
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        v.stride(0),
        decay.data_ptr(),
        _at(beta),
        _at(times),
        _at(skip),
        memory.data_ptr(),
        out.data_ptr(),
        *_sequences(read, write, ragged),
        heads,
        heads // k.shape[1],
        k.shape[2],
        v.shape[2],
        channels,
        inputs.scale,
        -1.0 if inputs.unit is None else inputs.unit,
    )
    cpu_kernels.kernels.advance(words)
    return out


def select(inputs: SelectiveScan, memory: Tensor, read: Tensor, write: Tensor, ragged: RaggedSequences) -> Tensor:
    """`SelectiveScan.scan` from slots into slots, see `advance`; [T, channels]
    float32. memory: [slots, channels, state] float32.
    """
    x, dt, a, b, c, skip = (part.contiguous() for part in inputs)
    out = torch.empty_like(x)
    words = SELECTIVE.pack(
        *(part.data_ptr() for part in (x, dt, a, b, c, skip, memory, out)), *_sequences(read, write, ragged), *a.shape
    )
    cpu_kernels.kernels.selective(words)
    return out


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    memory: Tensor,
    read: Tensor,
    write: Tensor,
    ragged: RaggedSequences,
) -> Tensor:
    """`causal_convolution` from slots into slots of memory [slots, width - 1, channels], and the activation; [T,
    channels] float32.
    """
    x, (width, channels) = _rows(x), weight.shape
    out = torch.empty(x.shape, dtype=torch.float32)
    words = CONVOLVE.pack(
        x.data_ptr(),
        x.stride(0),
        weight.data_ptr(),
        _at(bias),
        memory.data_ptr(),
        out.data_ptr(),
        *_sequences(read, write, ragged),
        channels,
        width,
        -1 if activation is None else cpu_kernels.ACTIVATIONS[activation],
    )
    cpu_kernels.kernels.convolve(cpu_kernels.KINDS[x.dtype], words)
    return out


def gated(x: Tensor, z: Tensor, weight: Tensor | None, eps: float | None, gate: str, gate_first: bool) -> Tensor:
    """`recurrence.gated`."""
    x, z = x.contiguous(), _rows(z)
    rows, spans, n = x.shape
    out = torch.empty(rows, spans * n, dtype=z.dtype)
    words = GATED.pack(
        x.data_ptr(),
        _at(weight),
        z.data_ptr(),
        out.data_ptr(),
        z.stride(0),
        rows,
        spans,
        n,
        weight is not None and len(weight) > n,
        GATES[gate],
        gate_first,
        -1.0 if eps is None else eps,
    )
    cpu_kernels.kernels.gated(cpu_kernels.KINDS[z.dtype], words)
    return out


def rates(x: Tensor, bias: Tensor | None, rate: Tensor | None, limits: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """`recurrence.rates`."""
    x, heads = _rows(x), x.shape[1] if rate is None else len(rate)
    steps = torch.empty(x.shape, dtype=torch.float32)
    decay = steps if rate is None else torch.empty_like(steps)
    words = RATES.pack(
        x.data_ptr(),
        x.stride(0),
        len(x),
        heads,
        x.shape[1] // heads,
        _at(bias),
        _at(rate),
        steps.data_ptr(),
        0 if rate is None else decay.data_ptr(),
        *limits,
        0,
        0,
        0,
        0.0,
    )
    cpu_kernels.kernels.rates(cpu_kernels.KINDS[x.dtype], words)
    return steps, decay


def sigmoid(x: Tensor, reach: float) -> Tensor:
    """x [T, n] -> reach times its sigmoid, float32."""
    x, out = _rows(x), torch.empty(x.shape, dtype=torch.float32)
    words = RATES.pack(
        0, 0, len(x), x.shape[1], 0, 0, 0, 0, 0, 0.0, math.inf, x.data_ptr(), x.stride(0), out.data_ptr(), reach
    )
    cpu_kernels.kernels.rates(cpu_kernels.KINDS[x.dtype], words)
    return out


def _sequences(read: Tensor, write: Tensor, ragged: RaggedSequences) -> tuple[int, int, int, int]:
    return len(read), ragged.starts.data_ptr(), read.data_ptr(), write.data_ptr()


def _alike(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether rows of all three have the stride of the tensor that they are parts of."""
    if all((len(v) == 1 or part.stride(0) == v.stride(0)) and part[0].is_contiguous() for part in (q, k, v)):
        return q, k, v
    sizes = [part[0].numel() for part in (q, k, v)]
    parts = torch.cat([part.flatten(1) for part in (q, k, v)], 1).split_with_sizes(sizes, 1)
    found = [part.unflatten(1, like.shape[1:]) for part, like in zip(parts, (q, k, v), strict=True)]
    return found[0], found[1], found[2]


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
