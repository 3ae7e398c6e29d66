"""Tensor parallel quantized weights: in any format, each tensor is read whole and the rank's part is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from ...errors import CheckpointError
from ...loading.load_plan import WEIGHT, ZERO_POINTS, FindsWeightReader, renamed, scale_of_kv
from ...loading.tensor_files.safetensors_header import FLOATS, StoredTensor
from ...models.spec.model_spec import ModelSpec
from ...quantization.quantized_weight import QuantizedWeight
from ...quantization.readers import TensorHeader, WeightReader
from .tensor_parallel_split import TensorSlice

PLAIN = ("weight", "bias")  # what a projection has that is not quantized
LONGEST = 4  # parts of a name after a module's


def coded(tensors: Iterable[StoredTensor], model: ModelSpec, found: Mapping[str, TensorSlice]) -> set[str]:
    """By their names in the model the weights of `found` that are quantized, by the headers of all their tensors."""
    names: set[str] = set()
    for stored in tensors:
        if scale_of_kv(renamed(stored.name, model, found), model) is not None:
            continue
        parts = stored.name.split(".")
        for count in range(1, min(len(parts), LONGEST + 1)):
            name, suffix = renamed(".".join(parts[:-count]) + WEIGHT, model, found), ".".join(parts[-count:])
            if name in found and suffix not in ZERO_POINTS and (suffix not in PLAIN or stored.dtype not in FLOATS):
                names.add(name)
    return names


class ShardedWeightReaders:
    """The readers of a checkpoint, of a rank: weights that are cut are read as its part of them.

    found: by the names in the model.
    """

    def __init__(self, readers: FindsWeightReader, model: ModelSpec, found: Mapping[str, TensorSlice]) -> None:
        self._readers, self._model, self._cuts = readers, model, found
        self.other_kv = readers.other_kv

    def claim(self, module: str, siblings: Mapping[str, TensorHeader]) -> WeightReader | None:
        """See `quantization.readers.Readers`."""
        claim, name = self._readers.claim(module, siblings), renamed(module + WEIGHT, self._model, self._cuts)
        cut = self._cuts.get(name)
        if claim is None or cut is None:
            return claim
        shape, kept, of_inputs = [*claim.shape], torch.from_numpy(cut.kept), cut.inputs
        if shape[0] == 1:  # flat ones know no shape
            shape[1] = shape[1] // cut.places * len(kept)
        elif shape[of_inputs] != cut.places:
            raise CheckpointError(
                f"{module} is {list(claim.shape)} by its {claim.format}, config.json asks for {cut.places} "
                f"{'inputs' if of_inputs else 'outputs'}"
            )
        else:
            shape[of_inputs] = len(kept)
        return claim._replace(shape=(shape[0], shape[1]), read=partial(_part, module, claim, kept, of_inputs))


def _part(
    module: str, claim: WeightReader, kept: Tensor, of_inputs: bool, tensors: Mapping[str, Tensor]
) -> QuantizedWeight:
    whole = claim.read(tensors)
    own = kept.to(whole.device)
    try:
        return whole.of_inputs(own) if of_inputs else whole.take(own)
    except ValueError as error:
        raise CheckpointError(
            f"{module} in {claim.format}: {error}; take fewer ranks, pipeline_parallel, or the model as it was before"
        ) from error
