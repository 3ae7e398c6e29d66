"""Reads what an adapter has besides the pairs of its layers, and lays it out for the products.

What cannot be used is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...common.argument_checks import shown
from ...errors import CheckpointError
from ...loading.tensor_files.safetensors_header import StoredTensor
from ...loading.tensor_files.tensor_source import WeightSource
from ...models.spec.model_spec import ModelSpec
from ..adapter_extras import AdaptedEmbeddingTable, AdapterWeightChanges, Pair
from ..adapter_sites import WEIGHT
from .adapter_base_weights import BaseWeights
from .expert_adapter_pairs import ExpertAdapterPairs
from .peft_config import PeftConfig

MAGNITUDE, PAIR_BIAS, TRAINED_BIAS, BASE = (
    ".lora_magnitude_vector",
    ".lora_B.bias",
    ".base_layer.bias",
    ".base_layer.weight",
)
ROWS, EMBEDDING_A, EMBEDDING_B = ".token_adapter.trainable_tokens_delta", ".lora_embedding_A", ".lora_embedding_B"
ENDS = (
    MAGNITUDE,
    PAIR_BIAS,
    TRAINED_BIAS,
    BASE,
    ROWS,
    EMBEDDING_A,
    EMBEDDING_B,
    ".lora_A.weight",
    ".lora_B.weight",
    WEIGHT,
)
ASKED = {
    MAGNITUDE: "use_dora",
    PAIR_BIAS: "lora_bias",
    TRAINED_BIAS: "bias",
    WEIGHT: "modules_to_save",
    ROWS: "trainable_token_indices",
}  # by which key of the configuration

Shape = tuple[int | None, int | None]
Pairs = dict[str, Pair]
Found = dict[str, dict[str, StoredTensor]]


class AdapterExtrasReader:
    """For one adapter.

    model: the whole one that it is for.  sizes: outputs of its products, by module.  base: their weights.  tensor:
    reads one in float32, or raises.
    """

    def __init__(
        self,
        model: ModelSpec,
        sizes: dict[str, int],
        base: BaseWeights,
        source: WeightSource,
        config: PeftConfig,
        tensor: Callable[[StoredTensor], Tensor],
    ) -> None:
        self._model, self._sizes, self._base = model, sizes, base
        self._source, self._config, self._tensor = source, config, tensor

    def read(self, found: Found, pairs: Pairs) -> AdapterWeightChanges:
        """found: the tensors that are not of the layers' pairs, by module, as the model calls it,
        and by their ends. DoRA's factors go into `pairs`.
        """
        self._check_there(found)
        names = self._model.names
        mixtures = ExpertAdapterPairs(self._model, self._source, self._config, self._tensor, self._base).read(found)
        self._check_magnitudes(found, pairs)
        products = {module: parts for module, parts in found.items() if module in self._sizes}
        for module, parts in found.items():
            for end, stored in parts.items():
                self._check_requested(end, stored)
            if module in products:
                self._check_product(module, parts)
            elif module not in (names.embedding, names.head):
                raise self._error(
                    next(iter(parts.values())),
                    "a whole module (modules_to_save) other than embedding and head, or the bias of one that has no "
                    "pair",
                )
        gains = self._gains(products, pairs)
        embedding, head = (found.get(name, {}) for name in (names.embedding, names.head))
        return AdapterWeightChanges(
            gains, self._offsets(products, pairs, gains), self._embedding(embedding), self._head(head), mixtures
        )

    def _check_product(self, module: str, parts: dict[str, StoredTensor]) -> None:
        for end, stored in parts.items():
            if end not in (MAGNITUDE, PAIR_BIAS, TRAINED_BIAS):
                raise self._error(stored, "it is no pair of a product")
            if stored.shape != [self._sizes[module]]:
                raise CheckpointError(
                    f"{self._source.name}: tensor {shown(stored.name)} has shape {stored.shape}; the model asks for "
                    f"{[self._sizes[module]]}"
                )

    def _gains(self, products: Found, pairs: Pairs) -> dict[str, Tensor]:
        """DoRA: the weight's rows are W + scale * B A, each brought to the length that was trained. Less one; the
        pair's B has the factor.
        """
        trained = {module: parts[MAGNITUDE] for module, parts in products.items() if MAGNITUDE in parts}
        for module in trained:
            first, second, scale = pairs[module]
            pairs[module] = first.float(), second.float(), scale
        squares = self._base.squares({module: pairs[module] for module in trained}) if trained else {}
        gains = {}
        for module, stored in trained.items():
            if (length := squares[module]) is None:
                raise self._error(
                    stored,
                    "DoRA needs the dense weight of its base, which is kept in few bits; merge the adapter into its "
                    "base",
                )
            (first, second, scale), factor = pairs[module], self._tensor(stored) / length.sqrt()
            pairs[module], gains[module] = (first, second * factor[:, None], scale), factor - 1
        return gains

    def _offsets(self, products: Found, pairs: Pairs, gains: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the biases come to: the base's is in its product already."""
        biases = self._base.biases(list(products)) if products else {}
        found = {}
        for module, parts in products.items():
            zeros = torch.zeros(self._sizes[module])
            gain, before = gains.get(module, zeros), biases.get(module, zeros)
            offset = (self._tensor(parts[TRAINED_BIAS]) if TRAINED_BIAS in parts else before) - before - gain * before
            if PAIR_BIAS in parts:
                offset = offset + self._tensor(parts[PAIR_BIAS]) * pairs[module][2] * (1 + gain)
            if offset.any():
                found[module] = offset
        return found

    def _embedding(self, parts: dict[str, StoredTensor]) -> AdaptedEmbeddingTable | None:
        used, vocabulary, width = dict(parts), self._model.vocab_size, self._width
        self._check_same(self._model.names.embedding, used.pop(BASE, None))
        shapes: dict[str, Shape] = {
            WEIGHT: (vocabulary, width),
            ROWS: (None, width),
            EMBEDDING_A: (None, vocabulary),
            EMBEDDING_B: (width, None),
        }
        whole, rows, first, second = (self._shaped(used.pop(end, None), shape) for end, shape in shapes.items())
        self._check_whole(used, first, second, parts)
        if whole is first is rows is None:
            return None
        if rows is not None and self._model.tied:
            raise self._error(
                parts[ROWS],
                "the head is tied to the embedding, so that the tokens' logits change with it; merge the adapter "
                "into its base",
            )
        scale = self._config.scaling(self._model.names.embedding)
        return AdaptedEmbeddingTable(
            whole, first, second, scale, None if rows is None else self._tokens(parts[ROWS], len(rows)), rows
        )

    def _head(self, parts: dict[str, StoredTensor]) -> AdaptedEmbeddingTable | None:
        used, outputs, inputs = dict(parts), self._model.vocab_size, self._width
        if parts and (self._model.embed_size or self._model.head_unit):
            raise self._error(next(iter(parts.values())), "the model does more than one product after its last layer")
        self._check_same(self._model.names.head, used.pop(BASE, None))
        shapes: dict[str, Shape] = {
            WEIGHT: (outputs, inputs),
            ".lora_A.weight": (None, inputs),
            ".lora_B.weight": (outputs, None),
        }
        whole, first, second = (self._shaped(used.pop(end, None), shape) for end, shape in shapes.items())
        self._check_whole(used, first, second, parts)
        if whole is first is None:
            return None
        return AdaptedEmbeddingTable(whole, first, second, self._config.scaling(self._model.names.head))

    @property
    def _width(self) -> int:
        return self._model.embed_size or self._model.hidden_size

    def _shaped(self, stored: StoredTensor | None, shape: Shape) -> Tensor | None:
        """In the model's type. None stands for the rank, or any number."""
        if stored is None:
            return None
        if len(stored.shape) != 2 or any(
            wanted not in (None, size) for wanted, size in zip(shape, stored.shape, strict=True)
        ):
            asked = ["any" if size is None else size for size in shape]
            raise CheckpointError(
                f"{self._source.name}: tensor {shown(stored.name)} has shape {stored.shape}; the model asks for {asked}"
            )
        return self._tensor(stored).to(self._base.dtype)

    def _tokens(self, stored: StoredTensor, count: int) -> Tensor:
        asked: Any = self._config.extras["trainable_token_indices"]
        tokens = (
            next((each for name, each in asked.items() if self._model.names.embedding.endswith(name)), None)
            if isinstance(asked, dict)
            else asked
        )
        if (
            not isinstance(tokens, list)
            or len(tokens) != count
            or not all(isinstance(token, int) and 0 <= token < self._model.vocab_size for token in tokens)
        ):
            raise CheckpointError(
                f"{self._config.where}: trainable_token_indices={shown(asked)} does not name the {count} tokens of "
                f"{shown(stored.name)}"
            )
        return torch.tensor(tokens, dtype=torch.int64)

    def _check_requested(self, end: str, stored: StoredTensor) -> None:
        if end in ASKED and ASKED[end] not in self._config.extras:
            raise self._error(stored, f"{self._config.where} says nothing of it ({ASKED[end]})")

    def _check_there(self, found: dict[str, dict[str, StoredTensor]]) -> None:
        """Trained biases lack where the base has none; all else that the configuration tells of must be there."""
        ends = {end for parts in found.values() for end in parts}
        for end, key in ASKED.items():
            if key in self._config.extras and key != "bias" and end not in ends:
                raise CheckpointError(
                    f"{self._source.name} has no tensor of what {self._config.where} says: "
                    f"{key}={shown(self._config.extras[key])}"
                )

    def _check_magnitudes(self, found: dict[str, dict[str, StoredTensor]], pairs: Pairs) -> None:
        lacking = next((module for module in pairs if MAGNITUDE not in found.get(module, {})), None)
        if "use_dora" in self._config.extras and lacking is not None:
            raise CheckpointError(f"{self._source.name} lacks {shown(lacking + MAGNITUDE)}, which use_dora asks for")
        alone = next(
            (module for module, parts in found.items() if {MAGNITUDE, PAIR_BIAS} & set(parts) and module not in pairs),
            None,
        )
        if alone is not None:
            raise self._error(next(iter(found[alone].values())), "it belongs to no pair of a layer's product")

    def _check_same(self, name: str, stored: StoredTensor | None) -> None:
        """PEFT saves the base's table with an adapter of it."""
        if stored is None:
            return
        shape = [self._model.vocab_size, self._width]
        same = stored.shape == shape and self._base.same(name, self._tensor(stored).to(self._base.dtype))
        if same is None:
            raise self._error(stored, "it cannot be compared with the head, which is kept in few bits")
        if not same:
            raise self._error(stored, "the base's own table is another; its vocabulary was changed, or it was trained")

    def _check_whole(
        self, left: dict[str, StoredTensor], first: Tensor | None, second: Tensor | None, parts: dict[str, StoredTensor]
    ) -> None:
        if left:
            raise self._error(
                next(iter(left.values())),
                "embedding and head take whole tables, plain pairs, and rows of the embedding",
            )
        if (first is None) != (second is None) or (
            first is not None and second is not None and len(first) != second.shape[1]
        ):
            raise self._error(
                next(iter(parts.values())), "it is one half of a pair, or the halves have different ranks"
            )

    def _error(self, stored: StoredTensor, why: str) -> CheckpointError:
        return CheckpointError(f"{self._source.name}: tensor {shown(stored.name)} is not supported: {why}")


def end_of(name: str) -> str | None:
    return next((end for end in ENDS if name.endswith(end)), None)
