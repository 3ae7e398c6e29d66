"""From token ids to the first hidden states, and from the last ones to logits."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ...layers.linear_layers import Linear
from ...layers.weight_memory import empty_to_load
from ...quantization.quantized_transform import KeepQuantizedTransform
from ...step.step_batch import StepBatch
from ..spec.model_spec import LearnedPositions, ModelSpec, PerLayerEmbeddingsSpec, SinusoidalPositions
from ..spec.weight_targets import WeightTarget, bias_of, matrix, norm_for, norm_places, weight_of
from .reference_block import Transform, normed, sealed
from .reference_module import ReferenceModule


class TokenEmbedding(ReferenceModule):
    """`table` [vocabulary, embed_size or hidden], and the operations on its rows.

    A pipeline stage after the first one has no rows, or only those of a tied head.
    _tied: for a tied head, the projection that the table is loaded as, until it is sealed.  _head: the same of a
        quantized table, until the head takes it: with its codes, or as a transform has packed it.
    """

    def __init__(self, model: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
        self.model, hidden, begins = model, model.hidden_size, model.stage.begins
        rows = model.vocab_size if model.has_table else 0
        self.table = empty_to_load((rows, model.embed_size or hidden), dtype, device)
        self._tied = Linear(self.table) if model.tied and not model.head_unit else None
        self._head: Linear | None = None
        self.norm = norm_for(model.embed_norm if begins else None, hidden, device)
        self.positions = (
            None if model.positions is None or not begins else position_table(model.positions, hidden, dtype, device)
        )
        self.project = (
            matrix(hidden, model.embed_size, False, False, dtype, device) if model.embed_size and begins else None
        )
        self.scale = float(torch.tensor(model.embed_scale, dtype=dtype))  # rounded as the families do
        self.own = (
            None
            if model.per_layer is None
            else PerLayerEmbeddings(model.per_layer, len(model.layers), hidden, dtype, device)
        )

    def places(self) -> Iterator[WeightTarget]:
        names = self.model.names
        if len(self.table):
            yield WeightTarget(f"{names.embedding}.weight", self.table, self._tied)
        yield from norm_places(names.embed_norm, self.model.embed_norm, self.norm)
        if isinstance(self.model.positions, LearnedPositions) and self.positions is not None:
            yield WeightTarget(f"{names.positions}.weight", self.positions)
        if self.project is not None:
            yield from weight_of(names.project_in, self.project)
        if self.own is not None:
            yield from self.own.places()

    def seal(self, small: bool, transform: Transform | None) -> None:
        self._restore_table(transform)
        self.finish_loading()
        for holder, name in self.products():
            setattr(holder, name, sealed(name, getattr(holder, name), transform))

    def _restore_table(self, transform: Transform | None) -> None:
        """From its codes, which a transform that keeps them packs at once, so that they are not held until the end."""
        tied, self._tied = self._tied, None
        if tied is None or tied.coded is None:
            return
        tied.coded.restore(self.table)
        tied.weight, model = self.table, self.model
        whole = model.stage.ends and not model.head_bias and len(model.head_tokens) == len(self.table)
        packs = isinstance(transform, KeepQuantizedTransform) and transform.keeps_all
        self._head = transform("head", tied) if transform is not None and packs and whole else tied

    def take_head(self) -> Linear | None:
        head, self._head = self._head, None
        return head

    @property
    def plain(self) -> bool:
        """Whether a token's hidden state is its row times `scale`, with no other operation."""
        return (
            self.model.stage.begins
            and self.norm is None
            and self.positions is None
            and self.project is None
            and self.own is None
        )

    def __call__(self, ids: Tensor, positions: Tensor) -> Tensor:
        """[T] -> [T, hidden]"""
        x = self.table.index_select(0, ids)
        return self.placed(x if self.scale == 1 else x.mul_(self.scale), positions)

    def changed(self, x: Tensor, batch: StepBatch) -> Tensor:
        """Rows x of the table, scaled, of a batch's tokens, after changes by a wrapper (adapters)."""
        return x

    def placed(self, x: Tensor, positions: Tensor) -> Tensor:
        """The remaining operations on scaled rows of the table [T, embed_size or hidden]; returns [T, hidden]."""
        if self.project is not None:
            x = self.project(x)
        if self.positions is not None:
            first = self.model.positions.offset if self.model.positions else 0
            x = x + self.positions.index_select(0, positions + first)
        return normed(self.norm, x)


def position_table(
    part: LearnedPositions | SinusoidalPositions, hidden: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """[count + offset, hidden], to be loaded into or computed."""
    rows = part.count + part.offset
    if isinstance(part, LearnedPositions) or device.type == "meta":
        return torch.empty(rows, hidden, dtype=dtype, device=device)
    half = hidden // 2
    frequencies = torch.exp(torch.arange(half, dtype=torch.float32, device=device) * (-math.log(1e4) / (half - 1)))
    angles = torch.outer(torch.arange(rows, dtype=torch.float32, device=device), frequencies)
    return torch.cat((angles.sin(), angles.cos()), 1).to(dtype)


class PerLayerEmbeddings(ReferenceModule):
    """Per-layer embeddings of a token (Gemma 4): a table's row plus a projection of the hidden state."""

    def __init__(
        self, part: PerLayerEmbeddingsSpec, layers: int, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.part, self._layers = part, layers
        self.table = torch.empty(part.vocab_size, layers * part.width, dtype=dtype, device=device)
        self.project = matrix(layers * part.width, hidden, False, False, dtype, device)
        self._scale = float(torch.tensor(part.width**0.5, dtype=dtype))
        self._hidden_scale = hidden**-0.5
        norm = norm_for(part.norm, part.width, device)
        assert norm is not None
        self.norm = norm

    def places(self) -> Iterator[WeightTarget]:
        yield WeightTarget("model.embed_tokens_per_layer.weight", self.table)
        yield from weight_of("model.per_layer_model_projection", self.project)
        yield from norm_places("model.per_layer_projection_norm", self.part.norm, self.norm)

    def __call__(self, ids: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        """ids [T], their hidden states x [T, hidden] -> for each layer [T, width]"""
        shape = (len(ids), self._layers, self.part.width)
        projected = self.norm((self.project(x) * self._hidden_scale).view(-1, self.part.width)).view(shape)
        looked_up = self.table.index_select(0, ids).mul_(self._scale).view(shape)
        return ((projected + looked_up) * 2.0**-0.5).unbind(1)


class OutputHead(ReferenceModule):
    """From normed hidden states to logits.

    `product` [vocabulary, hidden]; tied, it is the embedding's table. A stage before the last one has no rows.
    """

    def __init__(self, model: ModelSpec, embedding: TokenEmbedding, dtype: torch.dtype, device: torch.device) -> None:
        self.model, width, ends = model, model.embed_size or model.hidden_size, model.stage.ends
        self.norm = norm_for(model.norm if ends else None, model.hidden_size, device)
        self.project = (
            matrix(width, model.hidden_size, False, False, dtype, device) if model.embed_size and ends else None
        )
        rows, table = model.head_tokens if ends else range(0), embedding.table
        bias = torch.empty(len(rows), dtype=dtype, device=device) if model.head_bias and ends else None
        self.product = Linear(table if len(rows) == len(table) else table[rows.start : rows.stop], bias)
        head = embedding.take_head()
        if type(head) is Linear:
            self.product.coded = head.coded
        elif head is not None:
            self.product = head
        if not (model.tied and ends):
            self.product = Linear.empty(len(rows), width, model.head_bias and ends, dtype, device)

    def places(self) -> Iterator[WeightTarget]:
        names = self.model.names
        if not self.model.stage.ends:
            return
        yield from norm_places(names.norm, self.model.norm, self.norm)
        if self.project is not None:
            yield from weight_of(names.project_out, self.project)
        if not self.model.tied:
            yield WeightTarget(f"{names.head}.weight", self.product.weight, self.product)
        yield from bias_of(names.head, self.product, 0, len(self.model.head_tokens))

    def seal(self, small: bool, transform: Transform | None) -> None:
        if not self.model.stage.ends:
            return
        self.finish_loading()
        if self.model.head_unit:
            if self.product.coded is not None:
                self.product = Linear(self.product.coded.dense(self.product.weight.dtype), self.product.bias)
            self.product.weight.copy_(F.normalize(self.product.weight.float(), dim=1))
        if self.project is not None:
            self.project = sealed("project", self.project, transform)
        if type(self.product) is not Linear:  # packed with the embedding
            return
        if small or not self.model.tied:
            self.product = sealed("head", self.product, transform)
        elif transform is not None:
            self.product = transform("head", self.product)

    @property
    def plain(self) -> bool:
        """Whether the logits are the product, with no other operation."""
        return self.project is None and self.model.logit_scale == 1 and self.model.logit_softcap is None

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, hidden], normed -> [R, vocabulary]"""
        return self.adjusted(self.product(x if self.project is None else self.project(x)))

    def logits_of(self, products: Tensor, dtype: torch.dtype) -> Tensor:
        """Logits from products that are already computed.

        products: float32, of numbers rounded to `dtype`; so are the logits.
        """
        return products if self.plain else self.adjusted(products.to(dtype)).float()

    def adjusted(self, logits: Tensor) -> Tensor:
        if self.model.logit_scale != 1:
            logits = logits * self.model.logit_scale
        if (cap := self.model.logit_softcap) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits


def known_ids(batch: StepBatch) -> Tensor:
    """The batch's tokens; those that only the device knows are looked up there."""
    ids = batch.token_ids
    if batch.device is None:
        return ids
    return torch.where(ids < 0, batch.device.last.index_select(0, (-1 - ids).clamp_(min=0)), ids)
