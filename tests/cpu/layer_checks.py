"""The layers' Triton kernels against torch, for any device and size: shared by tests/cpu and tests/gpu."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from rig import Rig, Row
from torch import Tensor

from sgl.runtime.layers.linear import BlockedLinear, Linear
from sgl.runtime.layers.rotary import Rope, Rotary
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.quantization import Fp8Linear
from sgl.runtime.step.batch import Batch, DeviceBatch

FP8 = torch.float8_e4m3fn


def close(actual: Tensor, expected: Tensor) -> None:
    """float32 to 1e-5; half types to two of their last places."""
    bound = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[actual.dtype]
    torch.testing.assert_close(actual.float(), expected.float(), atol=bound / 4, rtol=bound)


def check_norms(rows: int, size: int, dtype: torch.dtype, device: str) -> None:
    from sgl.runtime.kernels.norm import add_rms_norm, rms_norm

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
    from sgl.runtime.kernels.norm import add_rms_norm, rms_norm

    wide = torch.randn(3, 100, device=device)
    x, weight = wide[:, 10:58], torch.ones(48, device=device)
    expected = F.rms_norm(x * 2, (48,), None, 0.5)
    close(rms_norm(x * 2, weight, 0.5), expected)
    untouched = wide[:, 58:].clone()
    close(add_rms_norm(x, wide[:, 10:58].clone(), weight, 0.5), expected)
    assert torch.equal(wide[:, 58:], untouched)


def check_silu(rows: int, size: int, dtype: torch.dtype, device: str) -> None:
    from sgl.runtime.kernels.activation import silu_and_mul

    spread = torch.logspace(-3, 2.5, rows, device=device)[:, None]
    gate_up = (torch.randn(rows, 2 * size, device=device) * spread).to(dtype)
    gate, up = gate_up.float().chunk(2, -1)
    expected = (F.silu(gate) * up).to(dtype)
    actual = silu_and_mul(gate_up)
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
    tokens: int, queries: int, keys: int, dim: int, dtype: torch.dtype, device: str,
    normed: bool = False, pool_dtype: torch.dtype | None = None, scales: tuple[float, float] = (1.0, 1.0),
) -> None:  # fmt: skip
    from sgl.runtime.kernels.heads import rotate_and_store

    qkv = torch.randn(tokens, (queries + 2 * keys) * dim, device=device).to(dtype)
    table = Rotary(Rope(1e4, dim, dim), dtype, torch.device(device), 500).table
    positions = torch.randint(0, 500, (tokens,), device=device, dtype=torch.int32)
    slots = torch.randperm(tokens + 5, device=device)[:tokens].int()
    slots[0] = 0
    pool = torch.zeros(2, tokens + 5, keys, dim, device=device).to(pool_dtype or dtype)
    norm = torch.randn(queries + keys, dim, device=device).to(dtype) if normed else None
    q, k, v = oracle_heads(qkv, queries, keys, table, positions, norm, 1e-4)
    got = rotate_and_store(
        qkv, queries, keys, table, positions, slots, pool[0], pool[1], norm, 1e-4 if normed else 0.0, *scales
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


def check_embed(tokens: int, hidden: int, page_size: int, dtype: torch.dtype, device: str) -> None:
    """Sequences of up to 9 tokens; some tokens are those sampled last, some are in no slot."""
    from sgl.runtime.kernels.embed import embed

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


def device_batch(
    ids: Tensor, positions: Tensor, slots: Tensor, token_rows: Tensor, table: Tensor, last: Tensor, page_size: int
) -> Batch:  # fmt: skip
    """A batch as the embedding's kernel needs it; nothing else of it is set."""
    none = torch.empty(0, dtype=torch.int32, device=ids.device)
    device = DeviceBatch(none, token_rows, none, none, table, page_size, last)
    return Batch(ids, positions, slots, [], [], [], none, device=device)


class FusedRig(Rig):
    """A rig whose batches are those of a GPU: the last token of each sequence is known to the device only.

    wanted: most rows whose logits are asked for, None for all that `step` asks for.
    """

    wanted: int | None = None

    def run(self, batch: Batch) -> Tensor:
        batch.logit_rows = batch.logit_rows[: self.wanted]
        lengths = torch.tensor(batch.query_lens)
        rows, ends = torch.arange(len(lengths)), lengths.cumsum(0)
        last = batch.token_ids[ends - 1]
        batch.token_ids[ends - 1] = -1 - rows
        contexts = torch.tensor(batch.context_lens)
        table = torch.zeros(len(lengths), int(contexts.max()))
        for name in ("token_ids", "positions", "slots", "logit_rows"):
            setattr(batch, name, self._put(getattr(batch, name)))
        starts, token_rows = torch.cat((ends - lengths, ends[-1:])), torch.repeat_interleave(rows, lengths)
        batch.device = DeviceBatch(*map(self._put, (rows, token_rows, starts, contexts, table)), 1, self._put(last))
        return super().run(batch)

    def _put(self, x: Tensor) -> Tensor:
        return x.to(self.pool.k.device, torch.int32)


def lay_plain(model: Decoder) -> None:
    """Weights as a GPU keeps them, in the model's memory on the CPU."""
    for layer in model.layers:
        for holder, name in layer.products():
            sealed = getattr(holder, name)
            setattr(holder, name, Linear(loaded_weight(sealed), sealed.bias))
    model.head.product = Linear(loaded_weight(model.head.product))


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
STEPS = [((1, 17, 0, 0), False), ((0, 0, 2, 5), True), ((0, 0, 2, 1), False), ((0, 0, 0, 1), False), ((0, 1, 0, 0), True)]
SINGLE = [((0, 0, 1, 0), False), ((0, 0, 1, 0), True)]


def check_decoder(exact: Rig, fused: FusedRig, bound: float, steps: list[tuple[tuple[int, ...], bool]] = STEPS) -> None:
    """Prefills, chunks, decodes and single rows: the logits of `fused` are those of a float32 rig on the CPU.

    bound: on the norm of the difference, as a part of the logits' norm.
    """
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(4, 60, (size,), generator=generator).tolist() for size in PROMPTS]
    rigs = (exact, fused)
    sequences = [[Row(tokens) for tokens in prompts] for _ in rigs]
    for counts, every in steps:
        expected, got = (
            rig.step([(row, count) for row, count in zip(rows, counts, strict=True) if count], every)
            for rig, rows in zip(rigs, sequences, strict=True)
        )
        assert got.dtype == fused.model.dtype and got.shape == expected.shape
        error = (got.float().cpu() - expected).norm() / expected.norm()
        assert error < bound, f"step {counts}, every={every}: {float(error)}"
