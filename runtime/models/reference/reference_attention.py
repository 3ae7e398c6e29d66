"""The reference for attention of a layer, in torch: project, norm, rotate, store, attend."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ...layers.activation_functions import times_sigmoid
from ...layers.linear_layers import Linear
from ...layers.norm_layers import PerHeadNorm
from ...layers.rope_parameters import RopeParameters
from ...layers.rotary_embedding import rotate
from ..spec.model_spec import AttentionSpec, QueryTemperature
from ..spec.tensor_names import Order, TensorNames
from ..spec.weight_targets import WeightTarget, bias_of, matrix, weight_of
from .reference_mixer import ProjectedMixer, ReferenceStep
from .reference_qk_norm import ReferenceQkNorm


class ReferenceAttention(ProjectedMixer):
    """`qkv` projects queries, keys, values and gates of all heads, [T, rows]; `output` projects the attention
    output.
    """

    def __init__(
        self, part: AttentionSpec, names: TensorNames, index: int, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.part, self.index, self._names = part, index, names
        self.heads = (part.heads, 0 if part.source is not None else part.kv_heads)
        self.qkv = matrix(sum(part.rows) + part.gates, hidden, part.bias, names.transposed, dtype, device)
        self.output = matrix(hidden, part.heads * part.values, part.out_bias, names.transposed, dtype, device)
        order = None if part.rope is None else part.rope.order
        self.norm = None if part.norm is None else ReferenceQkNorm(part.norm, *self.heads, part.dim, order, device)
        ones = torch.ones(part.kv_heads, part.values, dtype=torch.float32, device=device)
        self.value_norm = None if part.value_norm_eps is None else PerHeadNorm(ones, part.value_norm_eps)
        self.sinks = torch.zeros(part.heads, dtype=torch.float32, device=device) if part.sinks else None

    def places(self, prefix: str) -> Iterator[WeightTarget]:
        names = self._names
        if names.qkv is not None:
            yield from weight_of(prefix + names.qkv.name, self.qkv)
        else:
            yield from self._apart(prefix)
        yield from weight_of(prefix + names.output, self.output)
        if self.norm is not None:
            yield from self.norm.places(prefix + names.q_norm, prefix + names.k_norm)
        if self.sinks is not None:
            yield WeightTarget(prefix + names.sinks, self.sinks)

    def _apart(self, prefix: str) -> Iterator[WeightTarget]:
        """Queries, with the gates, keys and values have a tensor each; the rows of values that are keys come with
        `order`.
        """
        start, (queries, keys, values) = 0, self.part.rows
        names = (self._names.q, self._names.k, self._names.v)
        for name, rows in zip(names, (queries + self.part.gates, keys, values), strict=True):
            if rows and not (name == self._names.v and self.part.value_is_key):
                yield WeightTarget(f"{prefix}{name}.weight", self.qkv.weight[start : start + rows], self.qkv, start)
                yield from bias_of(prefix + name, self.qkv, start, start + rows)
            start += rows

    def orders(self) -> Iterator[tuple[Linear, np.ndarray]]:
        """Queries, keys, values, gates; rotated pairs end up half a head apart."""
        merged = self._names.qkv
        rows = rows_in_file(self.part, "rows" if merged is None else merged.order)
        if not np.array_equal(rows, np.arange(len(rows))):
            yield self.qkv, rows

    def attend(self, x: Tensor, step: ReferenceStep) -> Tensor:
        """x [T, hidden], normed -> the attention output of each token, [T, heads * value_dim]; keys and values are
        written.
        """
        y = self.qkv(x)
        if not self.part.gates:
            return self._mixed(y, step)
        y, gate = y.split_with_sizes((sum(self.part.rows), self.part.gates), 1)
        return times_sigmoid(self._mixed(y, step), gate)

    def _mixed(self, y: Tensor, step: ReferenceStep) -> Tensor:
        """y: [T, rows], queries, keys and values."""
        part, (queries, keys) = self.part, self.heads
        if part.clip is not None:
            y = y.clamp_(-part.clip, part.clip)
        turning = (queries + keys) * part.dim
        qk = y[:, :turning].unflatten(1, (queries + keys, part.dim))
        q, k = self._turned(qk, step).split_with_sizes((queries, keys), 1)
        if part.temperature is not None:
            q = q * temperatures(part.temperature, step.batch.positions)[:, None, None].to(q.dtype)
        sinks = () if self.sinks is None else (self.sinks,)
        if part.source is not None:
            return step.attention.attend(q, None, None, self.index, step.batch, *sinks).reshape(len(y), -1)
        v = y[:, turning:].unflatten(1, (keys, part.values))
        v = v if self.value_norm is None else self.value_norm(v)
        v = v if part.value_scale == 1 else v * part.value_scale
        step.attention.store(k, v, self.index, step.batch)
        return step.attention.attend(q, k, v, self.index, step.batch, *sinks).reshape(len(y), -1)

    def _turned(self, qk: Tensor, step: ReferenceStep) -> Tensor:
        rope, norm = self.part.rope, self.norm
        if norm is not None and not norm.after:
            qk = norm(qk)
        if rope is not None:
            qk = rotate(qk, step.angles[rope])
        return norm(qk) if norm is not None and norm.after else qk


def temperatures(part: QueryTemperature, positions: Tensor) -> Tensor:
    """float32 [T]"""
    return 1 + part.beta * torch.log1p(((positions.float() + part.shift) / part.period).floor())


def rows_in_file(part: AttentionSpec, order: Order) -> np.ndarray:
    """int64: the position in a merged projection of this order of each row of queries, keys, values and gates.

    The rotation's order is included.
    """
    heads, kv_heads, dim = part.heads, part.kv_heads, part.dim
    if part.gate:
        return _gated_rows(part)
    if part.source is not None:
        return _turning(np.arange(heads * dim).reshape(heads, dim), part.rope).ravel()
    group, values = heads // kv_heads, 0 if part.value_is_key else part.values
    if order == "rows":
        q = np.arange(heads * dim)
        k = len(q) + np.arange(kv_heads * dim)
        v = len(q) + len(k) + np.arange(kv_heads * values)
    elif order == "quarters":
        q, v, k = np.arange(3 * heads * dim).reshape(4, 3, -1).swapaxes(0, 1)
    else:
        block = np.arange(kv_heads * (group * dim + dim + values)).reshape(kv_heads, -1)
        q, k, v = block[:, : group * dim], block[:, group * dim : group * dim + dim], block[:, group * dim + dim :]
    if part.value_is_key:
        v = k
    q, k = (_turning(rows.reshape(-1, dim), part.rope) for rows in (q, k))
    return np.concatenate([rows.ravel() for rows in (q, k, v)])


def _gated_rows(part: AttentionSpec) -> np.ndarray:
    """For files in which query and gate of one head are adjacent, in front of keys and values."""
    both = np.arange(2 * part.gates).reshape(part.heads, 2, part.dim)
    k, v = np.split(2 * part.gates + np.arange(sum(part.rows[1:])), [part.rows[1]])
    q, k = (_turning(rows.reshape(-1, part.dim), part.rope) for rows in (both[:, 0], k))
    return np.concatenate([rows.ravel() for rows in (q, k, v, both[:, 1])])


def _turning(rows: np.ndarray, rope: RopeParameters | None) -> np.ndarray:
    """Rows of heads [heads, dim] in the order of the rotation."""
    return rows if rope is None or rope.order is None else rows[:, rope.order]
