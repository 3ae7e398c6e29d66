"""Reads what an adapter has beside the pairs of its layers, and lays it out for the products; what cannot be used is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError
from ..layers.linear import Linear
from ..loading.header import Stored
from ..loading.source import Source
from ..models.decoder import Decoder
from ..values import shown
from .extras import Extras, Table
from .mixture_pairs import MixturePairs
from .peft_config import PeftConfig
from .sites import WEIGHT, Site

MAGNITUDE, PAIR_BIAS, TRAINED_BIAS, BASE = ".lora_magnitude_vector", ".lora_B.bias", ".base_layer.bias", ".base_layer.weight"
ROWS, EMBEDDING_A, EMBEDDING_B = ".token_adapter.trainable_tokens_delta", ".lora_embedding_A", ".lora_embedding_B"
ENDS = (MAGNITUDE, PAIR_BIAS, TRAINED_BIAS, BASE, ROWS, EMBEDDING_A, EMBEDDING_B, ".lora_A.weight", ".lora_B.weight", WEIGHT)
ASKED = {MAGNITUDE: "use_dora", PAIR_BIAS: "lora_bias", TRAINED_BIAS: "bias", WEIGHT: "modules_to_save", ROWS: "trainable_token_indices"}  # by which key of the configuration

Shape = tuple[int | None, int | None]
Pairs = dict[str, tuple[Tensor, Tensor, float]]


class Part(NamedTuple):
    """Of a site the outputs of one module. ours: places among the product's outputs.  rows: which of the module's outputs these are."""

    site: Site
    ours: Tensor
    rows: Tensor


class Beside:
    """For one adapter. base: the model that it is for.  tensor: reads one in float32, or raises."""

    def __init__(self, base: Decoder, sites: tuple[Site, ...], source: Source, config: PeftConfig, tensor: Callable[[Stored], Tensor]) -> None:
        self._base, self._source, self._config, self._tensor = base, source, config, tensor
        self._parts = {module: _part(site, piece) for site in sites for piece, module in enumerate(site.modules)}

    def read(self, found: dict[str, dict[str, Stored]], pairs: Pairs) -> Extras:
        """found: the tensors that are not of the layers' pairs, by module, as the model calls it, and by their ends. DoRA's factors go into `pairs`."""
        self._check_there(found)
        names = self._base.config.names
        if self._base.fused:
            self._check_fused(found)
        mixtures = MixturePairs(self._base.config, self._source, self._config, self._tensor, self._base.dtype).read(found)
        gains: dict[int, Tensor] = {}
        offsets: dict[int, Tensor] = {}
        self._check_magnitudes(found, pairs)
        for module, parts in found.items():
            for end, stored in parts.items():
                self._check_asked(end, stored)
            if module in self._parts:
                self._of_product(module, parts, pairs, gains, offsets)
            elif module not in (names.embedding, names.head):
                raise self._error(next(iter(parts.values())), "a whole module (modules_to_save) other than embedding and head, or the bias of one that has no pair")
        embedding, head = (found.get(name, {}) for name in (names.embedding, names.head))
        return Extras(gains, offsets, self._embedding(embedding), self._head(head), mixtures)

    def _check_fused(self, found: dict[str, dict[str, Stored]]) -> None:
        """On a GPU whole tables would take memory that keys and values have, and mixtures are computed by kernels that add nothing."""
        names = self._base.config.names
        for module, parts in found.items():
            if module not in self._parts and module not in (names.embedding, names.head):
                raise self._error(next(iter(parts.values())), "on a GPU, in one rank, products of attention and feedforward networks, embedding and head can be adapted; merge the adapter into its base")
            if WEIGHT in parts:
                raise self._error(parts[WEIGHT], "whole tables (modules_to_save) are read on a CPU by one rank; on a GPU, merge the adapter into its base")

    def _of_product(self, module: str, parts: dict[str, Stored], pairs: Pairs, gains: dict[int, Tensor], offsets: dict[int, Tensor]) -> None:
        part, base = self._parts[module], self._product(self._parts[module].site)
        for end, stored in parts.items():
            if end not in (MAGNITUDE, PAIR_BIAS, TRAINED_BIAS):
                raise self._error(stored, "it is no pair of a product")
            if stored.shape != [len(part.rows)]:
                raise CheckpointError(f"{self._source.name}: tensor {shown(stored.name)} has shape {stored.shape}; the model asks for {[len(part.rows)]}")
        before = torch.zeros(len(part.rows)) if base.bias is None else _in_order(base.bias.cpu().float()[part.ours], part.rows)
        after = self._tensor(parts[TRAINED_BIAS]) if TRAINED_BIAS in parts else before
        gain, offset = torch.zeros(len(part.rows)), after - before
        if MAGNITUDE in parts:
            gain = self._gain(module, parts[MAGNITUDE], pairs)
            offset = offset - gain * before
            _put(gains, part, gain)
        if PAIR_BIAS in parts:
            offset = offset + self._tensor(parts[PAIR_BIAS]) * pairs[module][2] * (1 + gain)
        if offset.any():
            _put(offsets, part, offset)

    def _gain(self, module: str, stored: Stored, pairs: Pairs) -> Tensor:
        """DoRA: the weight's rows are W + scale * B A, each brought to the length that was trained. Less one; the pair's B has the factor."""
        part = self._parts[module]
        dense, (first, second, scale) = self._product(part.site).dense(), pairs[module]
        if dense is None:
            raise self._error(stored, "DoRA needs the dense weight of its base, which is kept in few bits; merge the adapter into its base")
        weight = _in_order(dense.cpu().float()[part.ours], part.rows) + scale * (second @ first)
        factor = self._tensor(stored) / torch.linalg.norm(weight, dim=1)
        pairs[module] = first, second * factor[:, None], scale
        return factor - 1

    def _embedding(self, parts: dict[str, Stored]) -> Table | None:
        table, used = self._base.embedding.table, dict(parts)
        self._check_same(used.pop(BASE, None), table)
        vocabulary, width = table.shape
        shapes: dict[str, Shape] = {WEIGHT: (vocabulary, width), ROWS: (None, width), EMBEDDING_A: (None, vocabulary), EMBEDDING_B: (width, None)}
        whole, rows, first, second = (self._shaped(used.pop(end, None), shape) for end, shape in shapes.items())
        self._check_whole(used, first, second, parts)
        if whole is first is rows is None:
            return None
        if rows is not None and self._base.config.tied:
            raise self._error(parts[ROWS], "the head is tied to the embedding, so that the tokens' logits change with it; merge the adapter into its base")
        scale = self._config.scaling(self._base.config.names.embedding)
        return Table(whole, first, second, scale, None if rows is None else self._tokens(parts[ROWS], len(rows)), rows)

    def _head(self, parts: dict[str, Stored]) -> Table | None:
        head, used = self._base.head, dict(parts)
        dense = head.product.dense() if parts else None
        outputs, inputs = (len(self._base.config.head_tokens), self._base.config.embed_size or self._base.config.hidden_size)
        if parts and (head.project is not None or self._base.config.head_unit):
            raise self._error(next(iter(parts.values())), "the model does more than one product behind its last layer")
        if BASE in used and dense is None:
            raise self._error(used[BASE], "it cannot be compared with the head, which is kept in few bits")
        self._check_same(used.pop(BASE, None), dense)
        shapes: dict[str, Shape] = {WEIGHT: (outputs, inputs), ".lora_A.weight": (None, inputs), ".lora_B.weight": (outputs, None)}
        whole, first, second = (self._shaped(used.pop(end, None), shape) for end, shape in shapes.items())
        self._check_whole(used, first, second, parts)
        if whole is first is None:
            return None
        return Table(whole, first, second, self._config.scaling(self._base.config.names.head))

    def _product(self, site: Site) -> Linear:
        product: Linear = getattr(getattr(self._base.layers[site.layer], site.holder), site.name)
        return product

    def _shaped(self, stored: Stored | None, shape: Shape) -> Tensor | None:
        """In the model's type. None stands for the rank, or any number."""
        if stored is None:
            return None
        if len(stored.shape) != 2 or any(wanted not in (None, size) for wanted, size in zip(shape, stored.shape, strict=True)):
            asked = ["any" if size is None else size for size in shape]
            raise CheckpointError(f"{self._source.name}: tensor {shown(stored.name)} has shape {stored.shape}; the model asks for {asked}")
        return self._tensor(stored).to(self._base.dtype)

    def _tokens(self, stored: Stored, count: int) -> Tensor:
        told: Any = self._config.beside["trainable_token_indices"]
        tokens = next((each for name, each in told.items() if self._base.config.names.embedding.endswith(name)), None) if isinstance(told, dict) else told
        if not isinstance(tokens, list) or len(tokens) != count or not all(isinstance(token, int) and 0 <= token < len(self._base.embedding.table) for token in tokens):
            raise CheckpointError(f"{self._config.where}: trainable_token_indices={shown(told)} does not name the {count} tokens of {shown(stored.name)}")
        return torch.tensor(tokens, dtype=torch.int64)

    def _check_asked(self, end: str, stored: Stored) -> None:
        if end in ASKED and ASKED[end] not in self._config.beside:
            raise self._error(stored, f"{self._config.where} says nothing of it ({ASKED[end]})")

    def _check_there(self, found: dict[str, dict[str, Stored]]) -> None:
        """Trained biases lack where the base has none; all else that the configuration tells of must be there."""
        ends = {end for parts in found.values() for end in parts}
        for end, key in ASKED.items():
            if key in self._config.beside and key != "bias" and end not in ends:
                raise CheckpointError(f"{self._source.name} has no tensor of what {self._config.where} says: {key}={shown(self._config.beside[key])}")

    def _check_magnitudes(self, found: dict[str, dict[str, Stored]], pairs: Pairs) -> None:
        lacking = next((module for module in pairs if MAGNITUDE not in found.get(module, {})), None)
        if "use_dora" in self._config.beside and lacking is not None:
            raise CheckpointError(f"{self._source.name} lacks {shown(lacking + MAGNITUDE)}, which use_dora asks for")
        alone = next((module for module, parts in found.items() if {MAGNITUDE, PAIR_BIAS} & set(parts) and module not in pairs), None)
        if alone is not None:
            raise self._error(next(iter(found[alone].values())), "it belongs to no pair of a layer's product")

    def _check_same(self, stored: Stored | None, base: Tensor | None) -> None:
        """PEFT saves the base's table beside an adapter of it."""
        if stored is not None and (base is None or not torch.equal(self._tensor(stored).to(base.dtype), base.cpu())):
            raise self._error(stored, "the base's own table is another; its vocabulary was changed, or it was trained")

    def _check_whole(self, left: dict[str, Stored], first: Tensor | None, second: Tensor | None, parts: dict[str, Stored]) -> None:
        if left:
            raise self._error(next(iter(left.values())), "embedding and head take whole tables, plain pairs, and rows of the embedding")
        if (first is None) != (second is None) or (first is not None and second is not None and len(first) != second.shape[1]):
            raise self._error(next(iter(parts.values())), "it is one half of a pair, or the halves have different ranks")

    def _error(self, stored: Stored, why: str) -> CheckpointError:
        return CheckpointError(f"{self._source.name}: tensor {shown(stored.name)} is not supported: {why}")


def end_of(name: str) -> str | None:
    return next((end for end in ENDS if name.endswith(end)), None)


def _part(site: Site, piece: int) -> Part:
    ours = torch.from_numpy(np.flatnonzero(site.piece_of == piece))
    return Part(site, ours, torch.from_numpy(site.row_of)[ours])


def _in_order(values: Tensor, rows: Tensor) -> Tensor:
    """Values of a product's outputs in the order of the module's."""
    found = torch.empty_like(values)
    found[rows] = values
    return found


def _put(into: dict[int, Tensor], part: Part, values: Tensor) -> None:
    """values: in the order of the module's outputs."""
    whole = into.setdefault(part.site.number, torch.zeros(part.site.outputs))
    whole[part.ours] = values[part.rows]
