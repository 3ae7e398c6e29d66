"""The decoder's step on a GPU: Triton's kernels between the matrix products, each sum left to the norm behind it.

A step of one row with plain or float8 weights takes the kernels of `one_row`, which are matrix products as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from torch import Tensor

from ..attention.base import AttentionBackend
from ..kernels import gated, one_row
from ..kernels.activation import silu_and_mul
from ..kernels.embed import embed
from ..kernels.heads import rotate_and_store
from ..kernels.norm import add_rms_norm, rms_norm
from ..layers.linear import Linear
from ..layers.norm import RMSNorm
from ..quantization import Fp8Linear
from ..step.batch import Batch
from .feedforward import GatedPart

if TYPE_CHECKING:
    from .block import Block
    from .decoder import Decoder


@dataclass(frozen=True, slots=True)
class Step:
    """What all layers of a step share. keys, values: the pool by layer, [slots, kv_heads, head_dim] each."""

    batch: Batch
    attention: AttentionBackend
    angles: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    k_scale: float
    v_scale: float


def forward(model: Decoder, batch: Batch, attention: AttentionBackend) -> Tensor:
    """See `Decoder.forward`; the logits are of the model's type."""
    require_positions(model, batch)
    step = _step(model, batch, attention)
    x = _embed(model, batch)
    delta: Tensor | None = None
    for layer in model.layers[:-1]:
        delta = _block(layer, x, delta, step)
    last = model.layers[-1]
    if not (len(batch.logit_rows) or batch.pools):
        _queries(last, x, delta, step)
        return model.no_logits()
    if len(x) == 1 and not batch.pools:
        return _head(model, x, _block(last, x, delta, step))
    return finish(model, x, _attend(last, x, delta, step), batch)


def pieces(
    model: Decoder, batch: Batch, attention: AttentionBackend, x: Tensor, q: Tensor, mixed: Tensor
) -> list[Callable[[], None]]:
    """The step of a batch at fixed addresses, cut where each layer attends; then comes `finish`.

    Piece i writes the sum of what came before layer i to x [T, hidden] and the layer's queries to
    q [T, query_heads, head_dim]; it reads what layer i - 1 attended in mixed [T, query_heads * head_dim].
    """
    step = _step(model, batch, attention)

    def first() -> None:
        embed(batch, model.embedding.table, x)
        _queries(model.layers[0], x, None, step, q)

    def between(before: Block, layer: Block) -> None:
        _queries(layer, x, _mix(before, x, mixed), step, q)

    return [first, *(partial(between, *pair) for pair in pairwise(model.layers))]


def finish(model: Decoder, x: Tensor, mixed: Tensor, batch: Batch) -> Tensor:
    """The logits of `batch.logit_rows`, once the last layer has attended; may write into x."""
    if batch.pools:
        return model.pooled(_norm(_last_norm(model), x, _mix(model.layers[-1], x, mixed)), batch)
    if len(batch.logit_rows) != len(x):
        x, mixed = x.index_select(0, batch.logit_rows), mixed.index_select(0, batch.logit_rows)
    return _head(model, x, _mix(model.layers[-1], x, mixed))


def require_positions(model: Decoder, batch: Batch) -> None:
    """Raises ValueError for sequences longer than the model's table of angles."""
    if (longest := max(batch.context_lens)) > (most := min(len(rotary.table) for rotary in model.rotaries.values())):
        raise ValueError(f"a sequence of {longest} tokens is beyond the {most} positions of the model")


def _step(model: Decoder, batch: Batch, attention: AttentionBackend) -> Step:
    pool, angles = attention.pool, next(iter(model.rotaries.values())).table
    return Step(batch, attention, angles, pool.k.unbind(0), pool.v.unbind(0), pool.k_scale, pool.v_scale)


def _embed(model: Decoder, batch: Batch) -> Tensor:
    if batch.device is None:
        return model.embedding.table.index_select(0, batch.token_ids)
    return embed(batch, model.embedding.table)


def _head(model: Decoder, x: Tensor, delta: Tensor | None) -> Tensor:
    norm, head = _last_norm(model), model.head.product
    if delta is None and one_row.suits(x) and type(head) is Linear:
        return one_row.head(x, norm.weight, norm.eps, head.weight)
    return head(_norm(norm, x, delta))


def _block(layer: Block, x: Tensor, delta: Tensor | None, step: Step) -> Tensor | None:
    """x += delta and what attention adds; returns what the MLP adds, None when x has it already."""
    if len(x) == 1 and one_row.suits(x) and _has_one_row(layer):
        _block_of_one(layer, x, delta, step)
        return None
    return _mix(layer, x, _attend(layer, x, delta, step))


def _norms(layer: Block) -> tuple[RMSNorm, RMSNorm]:
    assert layer.before_mixer is not None and layer.before_ffn is not None
    return layer.before_mixer, layer.before_ffn


def _ffn(layer: Block) -> GatedPart:
    assert isinstance(layer.ffn, GatedPart)
    return layer.ffn


def _last_norm(model: Decoder) -> RMSNorm:
    assert model.head.norm is not None
    return model.head.norm


def _has_one_row(layer: Block) -> bool:
    return all(type(part) in (Linear, Fp8Linear) for part in (layer.mixer.qkv, layer.mixer.output, _ffn(layer).gate_up, layer.ffn.down))


def _block_of_one(layer: Block, x: Tensor, delta: Tensor | None, step: Step) -> None:
    """x [1, hidden] += delta and what the layer adds."""
    if delta is not None:
        x.add_(delta)
    q = _query_of_one(layer, x, step)
    mixed = step.attention.attend(q, q, q, layer.index, step.batch)  # one row reads keys and values in the pool only
    output, gate_up, down, norm = layer.mixer.output, _ffn(layer).gate_up, layer.ffn.down, _norms(layer)[1]
    one_row.linear_add(mixed.view(1, -1), output.weight, x, output.bias, weight_scale=output.scale)
    y = one_row.gate_up_silu(
        x, norm.weight, norm.eps, gate_up.weight, gate_up.bias, weight_scale=gate_up.scale
    )  # fmt: skip
    one_row.linear_add(y, down.weight, x, down.bias, weight_scale=down.scale)


def _query_of_one(layer: Block, x: Tensor, step: Step) -> Tensor:
    norm, qkv, batch = _norms(layer)[0], layer.mixer.qkv, step.batch
    if layer.mixer.norm is not None:
        y = one_row.norm_linear(x, norm.weight, norm.eps, qkv.weight, qkv.bias, weight_scale=qkv.scale)
        return _rotate(layer, y, step)
    return one_row.qkv_rotate_store(
        x, norm.weight, norm.eps, qkv.weight, qkv.bias, *layer.mixer.heads, step.angles, batch.positions, batch.slots,
        step.keys[layer.index], step.values[layer.index], step.k_scale, step.v_scale, weight_scale=qkv.scale,
    )  # fmt: skip


def _norm(norm: RMSNorm, x: Tensor, delta: Tensor | None) -> Tensor:
    """x += delta, then the norm of x."""
    if delta is None:
        return rms_norm(x, norm.weight, norm.eps)
    return add_rms_norm(x, delta, norm.weight, norm.eps)


def _attend(layer: Block, x: Tensor, delta: Tensor | None, step: Step) -> Tensor:
    """x += delta; returns what attention mixes of x, [T, query heads * head_dim]."""
    qkv, q = _queries(layer, x, delta, step)
    queries, keys = layer.mixer.heads
    _, k, v = qkv.view(len(x), -1, layer.mixer.part.dim).split_with_sizes((queries, keys, keys), 1)
    return step.attention.attend(q, k, v, layer.index, step.batch).view(len(x), -1)


def _queries(
    layer: Block, x: Tensor, delta: Tensor | None, step: Step, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """x += delta, then x's keys and values are written; all heads of x, and the queries (in `out`, or among them)."""
    qkv = layer.mixer.qkv(_norm(_norms(layer)[0], x, delta))
    return qkv, _rotate(layer, qkv, step, out)


def _rotate(layer: Block, qkv: Tensor, step: Step, out: Tensor | None = None) -> Tensor:
    norm, batch = layer.mixer.norm, step.batch
    return rotate_and_store(
        qkv, *layer.mixer.heads, step.angles, batch.positions, batch.slots,
        step.keys[layer.index], step.values[layer.index],
        None if norm is None else norm.weight, 0.0 if norm is None else norm.eps, step.k_scale, step.v_scale, out,
    )  # fmt: skip


def _mix(layer: Block, x: Tensor, mixed: Tensor) -> Tensor:
    """x += the projection of what attention mixed; returns what the MLP adds."""
    y = _norm(_norms(layer)[1], x, layer.mixer.output(mixed))
    return layer.ffn.down(_gated(_ffn(layer).gate_up, y))


def _gated(gate_up: Linear, y: Tensor) -> Tensor:
    """silu(gate) * up of y [T, hidden]."""
    if type(gate_up) is Linear and gate_up.bias is None and gated.suits(y, gate_up.weight):
        return gated.gate_up_silu(y, gate_up.weight)
    return silu_and_mul(gate_up(y))
