"""Plain torch in float32 for what the one-row kernels compute, and checks against it on any device."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sgl.runtime.kernels.attention.qk_norm_rope_store import QkNormWeights
from sgl.runtime.kernels.gemv import gemv
from sgl.runtime.kernels.gemv.gemv_launch import GemvLaunch, TensorCoreGemvLaunch
from sgl.runtime.kernels.gemv.gemv_qk_norm import qkv_norm_rope_store
from sgl.runtime.kernels.packed.packed_weight import PackedWeight
from sgl.runtime.layers import float8_reference as values
from sgl.runtime.layers.activation_functions import ACTIVATIONS
from sgl.runtime.quantization.gpu_weight_packing import pack_for_gpu
from sgl.runtime.quantization.quantized_weight import QuantizedWeight

EPS = 1e-5
ROUGH = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2, torch.float8_e4m3fn: 0.13}


class Case(NamedTuple):
    """Sizes of a model; dim: of a head."""

    hidden: int
    queries: int
    keys: int
    dim: int
    inner: int
    vocabulary: int
    dtype: torch.dtype = torch.float32
    bias: bool = False
    fp8: bool = False  # weights, with a scale for each row
    bits: str = ""  # of weights of four bits, see `four_bits`
    group: int = 32


CASES = [
    Case(48, 4, 2, 8, 20, 30),
    Case(32, 2, 1, 12, 17, 19, torch.bfloat16, True),
    Case(20, 3, 3, 4, 11, 13, torch.float32, True),
    Case(48, 4, 2, 8, 20, 30, torch.float32, True, fp8=True),
    Case(36, 2, 1, 12, 17, 19, torch.bfloat16, fp8=True),
    Case(48, 4, 2, 8, 20, 30, torch.bfloat16, True, bits="bytes"),
]


def random(case: Case, device: str, *shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device=device) * scale).to(case.dtype)


def layer(case: Case, device: str, outputs: int, inputs: int) -> tuple[Tensor, Tensor | None]:
    weight = random(case, device, outputs, inputs, scale=inputs**-0.5)
    return weight, random(case, device, outputs) if case.bias else None


BITS = [
    Case(96, 2, 1, 8, 40, 20, torch.bfloat16, bits="zeros"),
    Case(136, 2, 1, 12, 72, 19, torch.bfloat16, True, bits="middle", group=64),
    Case(256, 1, 1, 4, 40, 13, torch.float16, True, bits="offsets", group=128),
    Case(48, 2, 1, 4, 20, 30, torch.bfloat16, bits="zeros", group=16),
    Case(40, 2, 1, 4, 24, 9, torch.bfloat16, bits="an output", group=2**20),
    Case(130, 2, 1, 4, 36, 9, torch.bfloat16, bits="zeros, an output", group=2**20),
    Case(256, 2, 1, 4, 40, 9, torch.bfloat16, bits="factor", group=256),
]


def four_bits(case: Case, weight: Tensor) -> QuantizedWeight:
    """A weight that stands for about the same numbers; scales and offsets are of
    the case's type, as the kernels keep them.
    """
    group = min(case.group, weight.shape[1])
    padded = F.pad(weight.float(), (0, -weight.shape[1] % group)).unflatten(1, (-1, group))
    low, high = padded.amin(2).clamp(max=-1e-3), padded.amax(2).clamp(min=1e-3)
    scale = ((high - low) / 15).to(case.dtype)
    zero = (-low / scale.float()).round().clamp(0, 15)
    codes = (
        ((padded / scale.float()[:, :, None]).round() + zero[:, :, None])
        .clamp(0, 15)
        .flatten(1)[:, : weight.shape[1]]
        .to(torch.uint8)
    )
    if case.bits == "offsets":
        return QuantizedWeight(codes, scale, group, offset=(-zero * scale.float()).to(case.dtype).float())
    if case.bits in ("middle", "an output"):
        return QuantizedWeight(codes, scale, group, zero=8.0)
    factor = torch.rand(len(weight), device=weight.device) + 0.5 if case.bits == "factor" else None
    return QuantizedWeight(codes, scale, group, zero=zero.to(torch.uint8), factor=factor)


def stored(case: Case, weight: Tensor) -> tuple[Tensor | PackedWeight, Tensor | None, Tensor]:
    """The weight as it is kept, its scale, and the numbers that this stands for."""
    if case.bits == "bytes":
        scale = weight.float().abs().amax(1) / 127
        kept = (weight.float() / scale[:, None]).round().to(torch.int8)
        return kept, scale, kept.float() * scale[:, None]
    if case.bits:
        kept = four_bits(case, weight)
        return pack_for_gpu(kept, case.dtype), None, kept.dense()
    if not case.fp8:
        return weight, None, weight
    kept, scale = values.quantize_weight(weight * torch.logspace(-1, 1, len(weight), device=weight.device)[:, None])
    return kept, scale, kept.float() * scale[:, None]


def norm(x: Tensor, weight: Tensor) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.float()


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float())


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    rough = ROUGH[dtype]
    torch.testing.assert_close(found.float(), wanted, atol=rough, rtol=rough)


def angles(case: Case, device: str, positions: int) -> Tensor:
    """[positions, 2 dim]: cosines twice, negated sines, sines."""
    half = case.dim // 2
    angle = torch.arange(positions)[:, None] * 1e4 ** (-torch.arange(half) / half)
    table = torch.cat((angle.cos(), angle.cos(), -angle.sin(), angle.sin()), -1)
    return table.to(device, case.dtype)


def rotated(heads: Tensor, row: Tensor) -> Tensor:
    """heads [n, dim] turned by a row [2 dim] of the table."""
    dim = heads.shape[-1]
    return heads * row[:dim].float() + heads.roll(dim // 2, -1) * row[dim:].float()


def check_qkv(
    case: Case,
    device: str,
    launch: GemvLaunch | TensorCoreGemvLaunch | None,
    slot: int = 3,
    scales: tuple[float, float] = (1.0, 1.0),
    pool_dtype: torch.dtype | None = None,
    normed: bool = True,
) -> None:
    """Queries, the written slot and every slot around it."""
    torch.manual_seed(1)
    heads = case.queries + 2 * case.keys
    x, weights = random(case, device, 1, case.hidden), random(case, device, case.hidden)
    weight, bias = layer(case, device, heads * case.dim, case.hidden)
    weight, scale, restored = stored(case, weight)
    table = angles(case, device, 9)
    pool_dtype = pool_dtype or case.dtype
    k_pool, v_pool = (random(case, device, 5, case.keys, case.dim).to(pool_dtype) for _ in range(2))
    k_wanted, v_wanted = k_pool.float(), v_pool.float()
    positions, slots = (torch.tensor([n], dtype=torch.int32, device=device) for n in (7, slot))
    q = gemv.qkv_rope_store(
        x,
        weights if normed else None,
        EPS,
        weight,
        bias,
        case.queries,
        case.keys,
        table,
        positions,
        slots,
        k_pool,
        v_pool,
        *scales,
        launch=launch,
        weight_scale=scale,
    )
    qkv = product(norm(x, weights) if normed else x, restored, bias).view(heads, case.dim)
    q_wanted, k, v = qkv.split([case.queries, case.keys, case.keys])
    close(q, rotated(q_wanted, table[7])[None], case.dtype)
    if slot:
        k_wanted[slot], v_wanted[slot] = rotated(k, table[7]) / scales[0], v / scales[1]
    close(k_pool, k_wanted, pool_dtype)
    close(v_pool, v_wanted, pool_dtype)


def check_normed_heads(
    case: Case,
    device: str,
    launch: GemvLaunch | None,
    slot: int = 3,
    scales: tuple[float, float] = (1.0, 1.0),
    pool_dtype: torch.dtype | None = None,
) -> None:
    """The same with norms of queries and keys, twice: what counts programs starts anew."""
    torch.manual_seed(2)
    heads, turned = case.queries + 2 * case.keys, case.queries + case.keys
    x, weights = random(case, device, 1, case.hidden), random(case, device, case.hidden)
    weight, bias = layer(case, device, heads * case.dim, case.hidden)
    weight, scale, restored = stored(case, weight)
    head_norm = QkNormWeights(
        random(case, device, turned, case.dim), EPS, counters=torch.zeros(turned, dtype=torch.int32, device=device)
    )
    table, pool_dtype = angles(case, device, 9), pool_dtype or case.dtype
    k_pool, v_pool = (random(case, device, 5, case.keys, case.dim).to(pool_dtype) for _ in range(2))
    k_wanted, v_wanted = k_pool.float(), v_pool.float()
    positions, slots = (torch.tensor([n], dtype=torch.int32, device=device) for n in (7, slot))
    for _ in range(2):
        q = qkv_norm_rope_store(
            x,
            weights,
            EPS,
            weight,
            bias,
            case.queries,
            case.keys,
            head_norm,
            table,
            positions,
            slots,
            k_pool,
            v_pool,
            *scales,
            launch=launch,
            weight_scale=scale,
        )
    qkv = product(norm(x, weights), restored, bias).view(heads, case.dim)
    unit = qkv[:turned] * (qkv[:turned].square().mean(1, keepdim=True) + EPS).rsqrt() * head_norm.weight.float()
    q_wanted, k = unit.split([case.queries, case.keys])
    close(q, rotated(q_wanted, table[7])[None], case.dtype)
    if slot:
        k_wanted[slot], v_wanted[slot] = rotated(k, table[7]) / scales[0], qkv[turned:] / scales[1]
    close(k_pool, k_wanted, pool_dtype)
    close(v_pool, v_wanted, pool_dtype)
    assert not head_norm.counters.any()


def check_linear_add(case: Case, device: str, launch: GemvLaunch | TensorCoreGemvLaunch | None) -> None:
    torch.manual_seed(2)
    x, y = random(case, device, 1, case.hidden), random(case, device, 1, case.inner)
    weight, bias = layer(case, device, case.hidden, case.inner)
    weight, scale, restored = stored(case, weight)
    wanted = x.float() + product(y, restored, bias)
    assert gemv.linear_add(y, weight, x, bias, launch, scale) is x
    close(x, wanted, case.dtype)


def check_gate_up(case: Case, device: str, launch: GemvLaunch | TensorCoreGemvLaunch | None) -> None:
    torch.manual_seed(3)
    x, weights = random(case, device, 1, case.hidden), random(case, device, case.hidden)
    weight, bias = layer(case, device, 2 * case.inner, case.hidden)
    weight, scale, restored = stored(case, weight)
    for name, normed in (("silu", True), ("gelu_tanh", True), ("gelu", False), ("relu2", False)):
        gate, up = product(norm(x, weights) if normed else x, restored, bias).chunk(2, -1)
        found = gemv.gate_up(x, weights if normed else None, EPS, weight, bias, launch, scale, name)
        close(found, ACTIVATIONS[name](gate) * up, case.dtype)


def check_linear(case: Case, device: str, launch: GemvLaunch | TensorCoreGemvLaunch | None) -> None:
    """Without a norm before or a sum behind."""
    torch.manual_seed(6)
    y, (weight, bias) = random(case, device, 1, case.inner), layer(case, device, case.hidden, case.inner)
    weight, scale, restored = stored(case, weight)
    close(gemv.linear(y, weight, bias, launch, scale), product(y, restored, bias), case.dtype)


def check_head(case: Case, device: str, launch: GemvLaunch | TensorCoreGemvLaunch | None) -> None:
    torch.manual_seed(4)
    x, weights = random(case, device, 1, case.hidden), random(case, device, case.hidden)
    weight, bias = layer(case, device, case.vocabulary, case.hidden)
    weight, scale, restored = stored(case, weight)
    wanted = product(norm(x, weights), restored, bias)
    close(gemv.norm_linear(x, weights, EPS, weight, bias, launch, scale), wanted, case.dtype)
