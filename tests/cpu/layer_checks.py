"""The layers' Triton kernels against torch, for any device and size: shared by tests/cpu and tests/gpu."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from rig import Rig, Row
from torch import Tensor

from sgl.runtime.layers.activation_functions import ACTIVATIONS as TORCH_ACTIVATIONS
from sgl.runtime.layers.linear_layers import BlockedLinear, Linear
from sgl.runtime.layers.rope_parameters import RopeParameters
from sgl.runtime.layers.rotary_embedding import RotaryEmbedding
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.gpu.gpu_support import ACTIVATIONS
from sgl.runtime.quantization import Fp8Linear
from sgl.runtime.step.step_batch import DeviceBatch, StepBatch

FP8 = torch.float8_e4m3fn


def close(actual: Tensor, expected: Tensor) -> None:
    """float32 to 1e-5; half types to two of their last places."""
    bound = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[actual.dtype]
    torch.testing.assert_close(actual.float(), expected.float(), atol=bound / 4, rtol=bound)


def check_norms(rows: int, size: int, dtype: torch.dtype, device: str) -> None:
    from sgl.runtime.kernels.rms_norm import add_rms_norm, rms_norm

    x, delta = (torch.randn(rows, size, device=device).to(dtype) for _ in range(2))
    weight = torch.randn(size, device=device).to(dtype)
    close(rms_norm(x, weight, 1e-5), F.rms_norm(x.float(), (size,), weight.float(), 1e-5))
    total = x + delta
    y = add_rms_norm(x, delta, weight, 1e-5)
    if device == "cpu":  # the interpreter cuts digits off without rounding
        close(x, total)
    else:
        assert torch.equal(x, total)
    close(y, F.rms_norm(x.float(), (size,), weight.float(), 1e-5))


def check_norm_of_strided_rows(device: str) -> None:
    from sgl.runtime.kernels.rms_norm import add_rms_norm, rms_norm

    wide = torch.randn(3, 100, device=device)
    x, weight = wide[:, 10:58], torch.ones(48, device=device)
    expected = F.rms_norm(x * 2, (48,), None, 0.5)
    close(rms_norm(x * 2, weight, 0.5), expected)
    untouched = wide[:, 58:].clone()
    close(add_rms_norm(x, wide[:, 10:58].clone(), weight, 0.5), expected)
    assert torch.equal(wide[:, 58:], untouched)


def check_join(rows: int, size: int, dtype: torch.dtype, device: str) -> None:
    """Every order of additions and norms, against float64."""
    from sgl.runtime.kernels.residual_norm import NormWeights, add_norm

    def random() -> Tensor:
        return torch.randn(rows, size, device=device).to(dtype)

    def norm(layer: bool, bias: bool, kept: torch.dtype) -> NormWeights:
        weight, added = (torch.randn(size, device=device).to(kept) for _ in range(2))
        return NormWeights(weight, added if bias else None, 1e-3, layer)

    scalar = torch.tensor([0.7], device=device)
    norms = [
        None,
        norm(False, False, dtype),
        norm(False, True, torch.float32),
        norm(True, True, dtype),
        norm(True, False, torch.float32),
    ]
    for after, before in itertools.product(norms, norms):
        for options in ({}, {"branch": 0.3, "other": random()}, {"scalar": scalar, "of_sum": True}):
            x, delta = random(), random()
            total = joined(x, delta, after, **options)
            y = add_norm(x, delta, after=after, before=before, **options)
            close(x, total.to(dtype))
            close(y, normed(x.double(), before).to(dtype))
            assert before is not None or y is x
        if before is not None:
            kept = x.clone()
            close(add_norm(x, None, after=after, before=before), normed(x.double(), before).to(dtype))
            assert torch.equal(x, kept)


def normed(x: Tensor, norm: Any) -> Tensor:
    """float64"""
    if norm is None:
        return x
    x = x - x.mean(-1, keepdim=True) if norm.layer else x
    y = x * (x.square().mean(-1, keepdim=True) + norm.eps).rsqrt() * norm.weight.double()
    return y if norm.bias is None else y + norm.bias.double()


def joined(
    x: Tensor,
    delta: Tensor,
    after: Any,
    branch: float = 1.0,
    other: Tensor | None = None,
    scalar: Tensor | None = None,
    of_sum: bool = False,
) -> Tensor:
    """float64"""
    delta = delta.double() if other is None else delta.double() + other.double()
    total = normed(x.double() + branch * delta, after) if of_sum else x.double() + branch * normed(delta, after)
    return total if scalar is None else total * scalar.double()


def check_activations(rows: int, size: int, dtype: torch.dtype, device: str) -> None:
    """Alone and gated, from tiny numbers to such whose squares are beyond the type."""
    from sgl.runtime.kernels.activation_kernels import activate, activate_gated

    spread = torch.logspace(-3, 2.5, rows, device=device)[:, None]
    for name in ACTIVATIONS:
        gate_up = (torch.randn(rows, 2 * size, device=device) * spread).to(dtype)
        gate, up = gate_up.double().chunk(2, -1)
        expected = TORCH_ACTIVATIONS[name](gate)
        _near(activate_gated(gate_up, name), expected * up, gate * up)
        alone = gate_up[:, :size]
        assert activate(alone, name) is alone
        _near(alone, expected, gate)
        assert torch.equal(gate_up[:, size:].double(), up)


def _near(actual: Tensor, expected: Tensor, size: Tensor) -> None:
    """size: of the numbers that nearly cancel each other."""
    bound = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[actual.dtype]
    most = torch.finfo(actual.dtype).max
    error = (actual.double() - expected.clamp(-most, most)).abs()
    assert (error <= bound * (expected.abs() + 0.02 * size.abs() + 1e-3)).logical_or(expected.abs() >= most / 2).all()


def check_logits(rows: int, size: int, dtype: torch.dtype, device: str) -> None:
    from sgl.runtime.kernels.logit_softcap import adjust

    for scale, cap in ((0.3, None), (1.0, 30.0), (2.0, 5.0)):
        logits = (torch.randn(rows, size, device=device) * 40).to(dtype)
        expected = logits.double() * scale
        expected = expected if cap is None else torch.tanh(expected / cap) * cap
        assert adjust(logits, scale, cap) is logits
        if dtype == torch.float32:  # near zero the rounding is that of a number near the cap
            torch.testing.assert_close(logits.double(), expected, atol=2e-7 * (cap or 100), rtol=1e-5)
        else:
            close(logits, expected.to(dtype))


def check_silu(rows: int, size: int, dtype: torch.dtype, device: str) -> None:
    from sgl.runtime.kernels.activation_kernels import activate_gated

    spread = torch.logspace(-3, 2.5, rows, device=device)[:, None]
    gate_up = (torch.randn(rows, 2 * size, device=device) * spread).to(dtype)
    gate, up = gate_up.float().chunk(2, -1)
    expected = (F.silu(gate) * up).to(dtype)
    actual = activate_gated(gate_up)
    assert actual.shape == (rows, size)
    close(actual, expected)


def oracle_heads(
    qkv: Tensor, queries: int, keys: int, table: Tensor, positions: Tensor, norm: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of the kernel, in float32."""
    heads = qkv.view(len(qkv), queries + 2 * keys, -1).float()
    qk, v = heads.split([queries + keys, keys], 1)
    if norm is not None:
        qk = F.rms_norm(qk, qk.shape[-1:], None, eps) * norm.float()
    cos, sin = table[positions.long()].float()[:, None].chunk(2, -1)
    turned = qk * cos + qk.roll(qk.shape[-1] // 2, -1) * sin
    return turned[:, :queries], turned[:, queries:], v


def check_heads(
    tokens: int,
    queries: int,
    keys: int,
    dim: int,
    dtype: torch.dtype,
    device: str,
    normed: bool = False,
    pool_dtype: torch.dtype | None = None,
    scales: tuple[float, float] = (1.0, 1.0),
) -> None:
    from sgl.runtime.kernels.attention.qk_norm_rope_store import QkNormWeights, norm_rope_store

    qkv = torch.randn(tokens, (queries + 2 * keys) * dim, device=device).to(dtype)
    table = RotaryEmbedding(RopeParameters(1e4, dim, dim), dtype, torch.device(device), 500).table
    positions = torch.randint(0, 500, (tokens,), device=device, dtype=torch.int32)
    slots = torch.randperm(tokens + 5, device=device)[:tokens].int()
    slots[0] = 0
    pool = torch.zeros(2, tokens + 5, keys, dim, device=device).to(pool_dtype or dtype)
    norm = torch.randn(queries + keys, dim, device=device).to(dtype) if normed else None
    q, k, v = oracle_heads(qkv, queries, keys, table, positions, norm, 1e-4)
    got = norm_rope_store(
        qkv,
        queries,
        keys,
        table,
        positions,
        slots,
        pool[0],
        pool[1],
        QkNormWeights(norm, 1e-4) if normed else None,
        *scales,
    )
    close(got, q)
    inside = qkv.view(tokens, -1, dim)
    close(inside[:, queries : queries + keys], k)
    assert torch.equal(inside[:, queries + keys :].float(), v)
    for stored, heads, scale in zip(pool, inside[:, queries:].split(keys, 1), scales, strict=True):
        expected = torch.zeros_like(stored)
        kept = (heads.float() / scale).clamp(-448, 448).to(FP8) if pool_dtype == FP8 else heads
        expected.view(torch.uint8)[slots.long()] = kept.view(torch.uint8)
        expected.view(torch.uint8)[0] = 0
        if pool_dtype == FP8 and device == "cpu":  # as above, and some of its carries go wrong
            near = (stored.float() - expected.float()).abs() <= 2**-9 + 0.13 * expected.float().abs()
            assert near.float().mean() > 0.97 and not stored[0].float().any()
        else:
            assert torch.equal(stored.view(torch.uint8), expected.view(torch.uint8))


HEAD_OPTIONS: list[dict[str, Any]] = [
    {"turn": False},
    {"layer": True},
    {"layer": True, "bias": True, "after": True},
    {"whole": True, "value_eps": 1e-4},
    {"after": True, "apart": True, "value_eps": 1e-4},
    {"whole": True, "turn": False, "apart": True},
]


def check_other_heads(
    tokens: int,
    queries: int,
    keys: int,
    dim: int,
    dtype: torch.dtype,
    device: str,
    stores: bool = True,
    layer: bool = False,
    bias: bool = False,
    whole: bool = False,
    after: bool = False,
    turn: bool = True,
    apart: bool = False,
    value_eps: float | None = None,
) -> None:
    """Norms and rotations that families other than Llama have; stores=False: a layer that projects queries only."""
    from sgl.runtime.kernels.attention.qk_norm_rope_store import QkNormWeights, norm_rope_store

    own = keys if stores else 0
    qkv = torch.randn(tokens, (queries + 2 * own) * dim, device=device).to(dtype)
    table = RotaryEmbedding(RopeParameters(1e4, dim, dim), dtype, torch.device(device), 500).table if turn else None
    positions = torch.randint(0, 500, (tokens,), device=device, dtype=torch.int32)
    slots = torch.randperm(tokens + 5, device=device)[:tokens].int()
    slots[0] = 0
    pool = torch.zeros(2, tokens + 5, keys, dim, device=device).to(dtype)
    weight, added = torch.randn(2, queries + own, dim, device=device)
    norm = QkNormWeights(weight, 1e-4, added if bias else None, layer, whole, after)
    heads = qkv.view(tokens, -1, dim).double()
    qk, v = heads.split([queries + own, own], 1)
    qk = (
        _headed(_turned(qk, table, positions), norm, queries)
        if after
        else _turned(_headed(qk, norm, queries), table, positions)
    )
    if value_eps is not None:
        v = v * (v.square().mean(-1, keepdim=True) + value_eps).rsqrt()
    out = torch.empty(tokens, queries, dim, dtype=dtype, device=device) if apart else None
    kept = qkv.clone()
    got = norm_rope_store(
        qkv, queries, own, table, positions, slots, pool[0], pool[1], norm, out=out, value_eps=value_eps
    )
    close(got, qk[:, :queries].to(dtype))
    assert torch.equal(qkv, kept) if apart else True
    if not stores:
        assert not pool.any()
        return
    used = slots != 0
    for stored, expected in zip(pool, (qk[:, queries:], v), strict=True):
        close(stored[slots[used].long()], expected[used].to(dtype))
        assert not stored[0].any()
        if not apart:
            close(qkv.view(tokens, -1, dim)[:, queries:], torch.cat((qk[:, queries:], v), 1).to(dtype))


def _turned(x: Tensor, table: Tensor | None, positions: Tensor) -> Tensor:
    if table is None:
        return x
    cos, sin = table[positions.long()].double()[:, None].chunk(2, -1)
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def _headed(x: Tensor, norm: Any, queries: int) -> Tensor:
    """float64, [tokens, heads, dim]"""
    x = x - x.mean(-1, keepdim=True) if norm.layer else x
    square = x.square()
    if norm.whole:
        parts = [part for part in square.split([queries, x.shape[1] - queries], 1) if part.shape[1]]
        mean = torch.cat([part.mean((1, 2), keepdim=True).expand(-1, part.shape[1], 1) for part in parts], 1)
    else:
        mean = square.mean(-1, keepdim=True)
    y = x * (mean + norm.eps).rsqrt() * norm.weight.double()
    return y if norm.bias is None else y + norm.bias.double()


def check_embed(tokens: int, hidden: int, page_size: int, dtype: torch.dtype, device: str) -> None:
    """Sequences of up to 9 tokens; some tokens are those sampled last, some are in no slot."""
    from sgl.runtime.kernels.embed_tokens import embed, enter_pages

    embedding = torch.randn(50, hidden, device=device).to(dtype)
    token_rows = torch.arange(tokens, device=device).int() // 9
    positions = torch.arange(tokens, device=device).int() % 9 + 4
    slots = (1 + token_rows * 16) * page_size + positions
    slots[::7] = 0
    last = torch.randint(0, 50, (tokens,), device=device, dtype=torch.int32)
    ids = torch.randint(0, 50, (tokens,), device=device, dtype=torch.int32)
    ids[::3] = -1 - token_rows[::3]
    table = torch.full((tokens + 1, 13), -7, dtype=torch.int32, device=device)
    batch = device_batch(ids, positions, slots, token_rows, table, last, page_size)
    expected = table.clone()
    for row, position, slot in zip(token_rows.tolist(), positions.tolist(), slots.tolist(), strict=True):
        if slot:
            expected[row, position // page_size] = slot // page_size
    known = torch.where(ids < 0, last[(-1 - ids).clamp(min=0).long()], ids)
    assert torch.equal(embed(batch, embedding), embedding[known.long()])
    assert torch.equal(table, expected)
    close(embed(batch, embedding, scale=3.3), embedding[known.long()] * 3.3)
    table.fill_(-7)
    enter_pages(batch)
    assert torch.equal(table, expected)


def device_batch(
    ids: Tensor, positions: Tensor, slots: Tensor, token_rows: Tensor, table: Tensor, last: Tensor, page_size: int
) -> StepBatch:
    """A batch as the embedding's kernel needs it; nothing else of it is set."""
    none = torch.empty(0, dtype=torch.int32, device=ids.device)
    device = DeviceBatch(none, token_rows, none, none, table, page_size, last)
    return StepBatch(ids, positions, slots, [], [], [], none, device=device)


class FusedRig(Rig):
    """A rig whose batches are those of a GPU: the last token of each sequence is known to the device only.

    wanted: most rows whose logits are asked for, None for all that `step` asks for.
    """

    wanted: int | None = None

    def run(self, batch: StepBatch) -> Tensor:
        batch.logit_rows = batch.logit_rows[: self.wanted]
        lengths = torch.tensor(batch.query_lens)
        rows, ends = torch.arange(len(lengths)), lengths.cumsum(0)
        last = batch.token_ids[ends - 1]
        batch.token_ids[ends - 1] = -1 - rows
        contexts = torch.tensor(batch.context_lens)
        table = torch.zeros(len(lengths), int(contexts.max()))
        for row, slots, new in zip(table, batch.context_slots, batch.query_lens, strict=True):
            row[: len(slots) - new] = torch.from_numpy(slots[: len(slots) - new])
        for name in ("token_ids", "positions", "slots", "logit_rows", "state_read", "state_write"):
            if (tensor := getattr(batch, name)) is not None:
                setattr(batch, name, self._put(tensor))
        starts, token_rows = torch.cat((ends - lengths, ends[-1:])), torch.repeat_interleave(rows, lengths)
        batch.device = DeviceBatch(*map(self._put, (rows, token_rows, starts, contexts, table)), 1, self._put(last))
        return super().run(batch)

    def _put(self, x: Tensor) -> Tensor:
        return x.to(self.pool.device, torch.int32)


def lay_plain(model: Decoder) -> None:
    """Weights as a GPU keeps them, in the model's memory on the CPU."""
    for layer in model.layers:
        for holder, name in layer.products():
            sealed = getattr(holder, name)
            setattr(holder, name, Linear(loaded_weight(sealed), sealed.bias))
    model.head.product = Linear(loaded_weight(model.head.product), model.head.product.bias)


def loaded_weight(layer: Linear) -> Tensor:
    """weight [out, in] of a layer that is sealed."""
    if not isinstance(layer, BlockedLinear):
        return layer.weight.contiguous()
    return layer.weight.transpose(1, 2).flatten(0, 1).flatten(1)[: layer.outputs].contiguous()


def lay_fp8(model: Decoder, exact: Decoder) -> None:
    """Plain weights in float8, and in `exact` the numbers that these stand for."""
    exact.step = None  # it knows the weights that are replaced
    for layer, other in zip(model.layers, exact.layers, strict=True):
        for (holder, name), (same, _) in zip(layer.products(), other.products(), strict=True):
            kept = Fp8Linear.of(getattr(holder, name))
            setattr(holder, name, kept)
            setattr(same, name, Linear(kept.weight.float() * kept.scale[:, None], kept.bias))


PROMPTS = (1, 18, 4, 7)
STEPS = [
    ((1, 17, 0, 0), False),
    ((0, 0, 2, 5), True),
    ((0, 0, 2, 1), False),
    ((0, 0, 0, 1), False),
    ((0, 1, 0, 0), True),
]
SINGLE = [((0, 0, 1, 0), False), ((0, 0, 1, 0), True)]


def check_decoder(exact: Rig, fused: FusedRig, bound: float, steps: list[tuple[tuple[int, ...], bool]] = STEPS) -> None:
    """Prefills, chunks, decodes and single rows: the logits of `fused` are those of a float32 rig on the CPU.

    bound: on the norm of the difference, as a part of the logits' norm.
    """
    for step, error in zip(steps, errors(exact, fused, steps), strict=True):
        assert error < bound, f"step {step}: {error}"


def errors(exact: Rig, other: Rig, steps: list[tuple[tuple[int, ...], bool]] = STEPS) -> list[float]:
    """Of each step the norm of the difference of the logits, as a part of the logits' norm."""
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(4, 60, (size,), generator=generator).tolist() for size in PROMPTS]
    rigs = (exact, other)
    sequences = [[Row(tokens) for tokens in prompts] for _ in rigs]
    found = []
    for counts, every in steps:
        expected, got = (
            rig.step([(row, count) for row, count in zip(rows, counts, strict=True) if count], every)
            for rig, rows in zip(rigs, sequences, strict=True)
        )
        assert got.shape == expected.shape and got.dtype == (
            other.model.dtype if other.model.fused or got.is_cuda else torch.float32
        )
        found.append(float((got.float().cpu() - expected).norm() / expected.norm()))
    return found
