"""Sparse attention of three branches in torch (NSA, arXiv 2502.11089), except for attention to the chosen tokens.

The attention backends' kernels do that. Compressed keys and values are recomputed in each step, for all tokens of a
sequence.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...attention.block_sparse_attention import NONE, of_blocks
from ...attention.topk_attention import TopKSelection, sequences
from ...layers.activation_functions import activated
from ...layers.float8_reference import restore
from ...layers.rotary_embedding import rotate
from ..spec.sparse_attention_spec import SparseAttentionSpec
from ..spec.tensor_names import TensorNames
from ..spec.weight_targets import WeightTarget, matrix, weight_of
from .reference_mixer import ProjectedMixer, ReferenceStep
from .reference_module import ReferenceModule

ROWS = 256  # queries at a time, so that their scores and choices stay small


class KVBlockCompressor(ReferenceModule):
    """Compresses the rows of a block into one: a network of two layers on these, plus `places`.

    places: [length, dim].
    """

    def __init__(self, part: SparseAttentionSpec, dtype: torch.dtype, device: torch.device) -> None:
        self.part, self.places = part, torch.empty(part.length, part.dim, dtype=dtype, device=device)
        self.up = matrix(part.inner, part.length * part.dim, True, False, dtype, device)
        self.down = matrix(part.dim, part.inner, True, False, dtype, device)

    def __call__(self, rows: Tensor) -> Tensor:
        """[tokens, heads, dim] -> [blocks, heads, dim], of the blocks that are complete."""
        part = self.part
        blocks = rows.unfold(0, part.length, part.stride).transpose(2, 3) + self.places  # [blocks, heads, length, dim]
        inner = activated("gelu", self.up(blocks.reshape(-1, part.length * part.dim)))
        return self.down(inner).view(len(blocks), rows.shape[1], part.dim)


class ReferenceSparseAttention(ProjectedMixer):
    """`queries` projects those of all branches, `keys` and `values` each branch's, `gates` one per branch and head."""

    capturable = False  # sizes depend on the lengths of sequences

    def __init__(
        self,
        part: SparseAttentionSpec,
        names: TensorNames,
        index: int,
        hidden: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.part, self.index, self._names = part, index, names
        made = False, False, dtype, device
        self.queries = matrix(part.heads * part.dim, hidden, *made)
        self.keys, self.values = (matrix(3 * part.kv_heads * part.dim, hidden, *made) for _ in "kv")
        self.gates = matrix(3 * part.heads, hidden, *made)
        self.output = matrix(hidden, part.heads * part.dim, *made)
        self.key_compressor, self.value_compressor = (KVBlockCompressor(part, dtype, device) for _ in "kv")

    def places(self, prefix: str) -> Iterator[WeightTarget]:
        names = self._names
        for name, product in (
            (names.q, self.queries),
            (names.k, self.keys),
            (names.v, self.values),
            (names.output, self.output),
        ):
            yield from weight_of(prefix + name, product)
        yield from weight_of(f"{prefix}self_attn.gate", self.gates)
        for name, each in (("compress_keys", self.key_compressor), ("compress_values", self.value_compressor)):
            yield WeightTarget(f"{prefix}self_attn.{name}.places", each.places)
            yield from weight_of(f"{prefix}self_attn.{name}.up", each.up)
            yield from weight_of(f"{prefix}self_attn.{name}.down", each.down)

    def attend(self, x: Tensor, step: ReferenceStep) -> Tensor:
        """x [T, hidden], normed -> the attention output of each token, [T, heads * dim]; keys and values are
        written.
        """
        part = self.part
        q, k, v = (product(x).unflatten(1, (-1, part.dim)) for product in (self.queries, self.keys, self.values))
        turned = self._turned(q.clone(), step)
        k = torch.cat((self._turned(k[:, : 2 * part.kv_heads].clone(), step), k[:, 2 * part.kv_heads :]), 1)
        step.attention.store(k, v, self.index, step.batch)
        gates = self.gates(x).sigmoid().unflatten(1, (3, part.heads, 1))
        mixed, blocks = self._compressed(q, step)
        return torch.cat(
            [
                torch.stack((mixed[rows], *self._chosen(turned[rows], blocks[rows], rows, step)), 1)
                .mul_(gates[rows])
                .sum(1)
                .flatten(1)
                for rows in parts(0, len(x))
            ]
        )

    def _turned(self, heads: Tensor, step: ReferenceStep) -> Tensor:
        return heads if self.part.rope is None else rotate(heads, step.angles[self.part.rope])

    def _chosen(self, q: Tensor, blocks: Tensor, rows: slice, step: ReferenceStep) -> tuple[Tensor, Tensor]:
        """The outputs of queries over their blocks and over their window: [n, heads, dim] each.

        blocks: [n, kv_heads, most].
        """
        part, batch = self.part, step.batch
        own, latest = (
            of_blocks(blocks, part.block, 0, batch, rows),
            of_blocks(blocks[..., :0], part.block, part.window, batch, rows),
        )
        slots = own.slots.new_zeros(len(q), 2 * part.kv_heads, max(own.slots.shape[2], latest.slots.shape[2]))
        slots[:, : part.kv_heads, : own.slots.shape[2]], slots[:, part.kv_heads :, : latest.slots.shape[2]] = (
            own.slots,
            latest.slots,
        )
        both = TopKSelection(slots, torch.cat((own.counts, latest.counts), 1))
        mixed = step.attention.attend_topk(torch.cat((q, q), 1), both, self.index, batch)
        return mixed[:, : part.heads], mixed[:, part.heads :]

    def _compressed(self, q: Tensor, step: ReferenceStep) -> tuple[Tensor, Tensor]:
        """The output over compressed blocks, [T, heads, dim], and the token blocks chosen by it, [T, kv_heads,
        most].
        """
        part, mixed = self.part, torch.empty_like(q)
        blocks = torch.empty(len(q), part.kv_heads, part.most, dtype=torch.int64, device=q.device)
        for own, slots, _ in sequences(step.batch, q.device):
            keys, values = self._rows(slots, step, q.dtype)
            for rows in parts(own.start, own.stop):
                positions = step.batch.positions[rows].long()
                mixed[rows], weights = self._mixed(q[rows], keys, values, positions)
                blocks[rows] = self._best(weights, positions, len(slots))
        return mixed, blocks

    def _rows(self, slots: Tensor, step: ReferenceStep, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Compressed keys and values of a sequence, [blocks, kv_heads, dim] each; none if it is shorter than a
        block.
        """
        part, found = self.part, []
        for stored, scale, compressor in zip(
            step.attention.stored(self.index),
            step.attention.scales(self.index),
            (self.key_compressor, self.value_compressor),
            strict=True,
        ):
            rows = stored.index_select(0, slots)[:, 2 * part.kv_heads :]
            rows = rows if rows.dtype == dtype else restore(rows, scale, dtype)
            found.append(compressor(rows) if len(rows) >= part.length else rows[:0])
        return found[0], found[1]

    def _mixed(self, q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[n, heads, dim], and float32 [n, kv_heads, blocks], the weights of all heads that share keys.

        Blocks must end at the query or before it.
        """
        part = self.part
        ends = torch.arange(len(keys), device=q.device) * part.stride + part.length - 1
        seen = (ends <= positions[:, None])[:, None, None]
        scores = torch.einsum("nkgd,bkd->nkgb", q.float().unflatten(1, (part.kv_heads, -1)), keys.float()) * part.scale
        weights = (
            scores.masked_fill(~seen, -torch.inf).softmax(-1).where(seen, 0)
        )  # where nothing is seen the softmax is NaN
        return torch.einsum("nkgb,bkd->nkgd", weights, values.float()).flatten(1, 2).to(q.dtype), weights.sum(2)

    def _best(self, weights: Tensor, positions: Tensor, tokens: int) -> Tensor:
        """Numbers of blocks of tokens, [n, kv_heads, most], or `NONE`.

        Weights of compressed blocks count for shared tokens.
        tokens: of the sequence.
        """
        part, own = self.part, positions[:, None, None] // self.part.block
        blocks = torch.arange(max(-(-tokens // part.block), part.most), device=weights.device)
        scores = (weights @ self._shared(weights.shape[2], blocks)).masked_fill(blocks > own, -torch.inf)
        always = (blocks < part.first) | (blocks > own - part.latest)
        scores = scores.masked_fill(always & (blocks <= own), torch.inf)
        best = scores.sort(dim=-1, descending=True, stable=True).indices[..., : part.most]
        return best.masked_fill(best > own, NONE)

    def _shared(self, compressed: int, blocks: Tensor) -> Tensor:
        """float32 [compressed, blocks]: how many strides of tokens each compressed block shares with each block."""
        part = self.part
        begin, other = torch.arange(compressed, device=blocks.device)[:, None] * part.stride, blocks * part.block
        shared = torch.minimum(begin + part.length, other + part.block) - torch.maximum(begin, other)
        return shared.clamp_min_(0).float() / part.stride


def parts(start: int, stop: int) -> Iterator[slice]:
    for begin in range(start, stop, ROWS):
        yield slice(begin, min(begin + ROWS, stop))
