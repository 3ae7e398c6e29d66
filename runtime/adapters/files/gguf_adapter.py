"""Reads an adapter from a GGUF file, and reorders rows of PEFT's adapters for a base in GGUF.

Such a file names its architecture and `adapter.lora.alpha`, and has two tensors for each matrix: A [rank, inputs]
with the suffix `.lora_a`, B [outputs, rank] with `.lora_b`. Rows of B have the order that the matrix has in GGUF files.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ...common.argument_checks import shown
from ...errors import CheckpointError
from ...loading.gguf_files.gguf_config import GGUFArchitecture, architecture_of
from ...loading.gguf_files.gguf_file import read_gguf, read_parts
from ...loading.gguf_files.gguf_tensor_names import places_of
from ...loading.tensor_files.safetensors_header import FLOATS, StoredTensor
from ...loading.tensor_files.tensor_source import FileWeightSource, WeightSource
from ...models.spec.model_spec import AttentionSpec, ModelSpec
from ...models.spec.tensor_names import MergedProjections
from ..adapter_sites import WEIGHT

A, B = ".lora_a", ".lora_b"
SAME = {
    "LlamaForCausalLM": ("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM")
}  # models of one of the format's architectures
UNUSED = ("adapter.type", "adapter.lora.alpha", "adapter.lora.task_name", "adapter.lora.prompt_prefix")
MOST_RANK = 1024

Shapes = dict[str, tuple[int, int]]
Pairs = dict[str, tuple[Tensor, Tensor, float]]


class GGUFRowOrder:
    """Of a model that is a GGUF file: rows of B as the file has those of its matrices, from Hugging Face's order."""

    def __init__(self, file: Path, model: ModelSpec) -> None:
        part = read_parts(file)[0]
        _, found = architecture_of(part.metadata, str(part.file))
        self._heads: dict[str, int] = {}
        for index, layer in enumerate(model.layers if found.interleaved else ()):
            if isinstance(layer.mixer, AttentionSpec):
                prefix = model.names.layer.format(index)
                self._heads |= {
                    f"{prefix}{model.names.q}": layer.mixer.heads,
                    f"{prefix}{model.names.k}": layer.mixer.kv_heads,
                }

    def of(self, module: str, second: Tensor) -> Tensor:
        """B of queries and keys: the two rows of a rotary pair are adjacent in the file, half a head apart in Hugging
        Face's order.
        """
        heads = self._heads.get(module)
        return (
            second
            if heads is None
            else second.view(heads, 2, len(second) // heads // 2, -1).transpose(1, 2).reshape(second.shape)
        )


def read_adapter(
    file: Path,
    model: ModelSpec,
    shapes: Shapes,
    tensor: Callable[[WeightSource, StoredTensor], Tensor],
    stays: bool = False,
) -> Pairs:
    """By module as the model calls it (A, B, scale). shapes: [outputs, inputs] of the modules that can be adapted.
    tensor: reads one in float32.  stays: the model's rows have the order of GGUF files.

    Raises CheckpointError for what is damaged, of another kind of model, or not supported.
    """
    header = read_gguf(file)
    found, alpha = _checked(header.metadata, model, str(file))
    source = FileWeightSource(file, header.tensors)
    halves: dict[str, dict[str, StoredTensor]] = {}
    for stored in header.tensors:
        end = stored.name[-len(A) :]
        if end not in (A, B):
            raise _error(source, stored, "it is no half of a pair")
        halves.setdefault(stored.name[: -len(A)], {})[end] = stored
    return dict(
        _pair(
            source,
            name,
            pair,
            model,
            replace(found, interleaved=found.interleaved and not stays),
            shapes,
            alpha,
            tensor,
        )
        for name, pair in halves.items()
    )


def _checked(metadata: dict[str, Any], model: ModelSpec, where: str) -> tuple[GGUFArchitecture, float]:
    if metadata.get("general.type") != "adapter" or metadata.get("adapter.type") != "lora":
        kinds = (
            f"general.type={shown(metadata.get('general.type'))}, adapter.type={shown(metadata.get('adapter.type'))}"
        )
        raise CheckpointError(f"{where}: {kinds}: the file holds no LoRA adapter")
    _, found = architecture_of(metadata | {"general.type": "model"}, where)
    if model.architecture not in SAME.get(found.name, (found.name,)):
        raise CheckpointError(f"{where}: the adapter is for {found.name}, the model is {model.architecture}")
    strange = next(
        (key for key, value in metadata.items() if key.startswith("adapter.") and key not in UNUSED and value), None
    )
    if strange is not None:
        raise CheckpointError(
            f"{where}: {strange}={shown(metadata[strange])} is not supported; an adapter that may mean something "
            "else is not loaded"
        )
    alpha = metadata.get("adapter.lora.alpha", 0.0)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise CheckpointError(f"{where}: adapter.lora.alpha={shown(alpha)} must be a number")
    return found, float(alpha)


def _pair(
    source: WeightSource,
    name: str,
    pair: dict[str, StoredTensor],
    model: ModelSpec,
    found: GGUFArchitecture,
    shapes: Shapes,
    alpha: float,
    tensor: Callable[[WeightSource, StoredTensor], Tensor],
) -> tuple[str, tuple[Tensor, Tensor, float]]:
    stored = next(iter(pair.values()))
    if len(pair) < 2:
        raise CheckpointError(f"{source.name} lacks the other half of {shown(stored.name)}")
    module = places_of(model, [stored._replace(name=name)], source.name, found.roles).get(name, "").removesuffix(WEIGHT)
    if module not in shapes:
        raise _error(source, stored, "adapters change the products of attention and of dense feedforward networks here")
    if model.names.transposed or (name.split(".")[2] == "attn_qkv" and (found.interleaved or _order(model) != "rows")):
        raise _error(
            source,
            stored,
            f"GGUF files hold the rows of this matrix of {model.architecture} in another order; take PEFT's directory",
        )
    (outputs, inputs), rank = shapes[module], pair[A].shape[0]
    for end, shape in ((A, [rank, inputs]), (B, [outputs, rank])):
        if pair[end].shape != shape or not 1 <= rank <= MOST_RANK or pair[end].dtype not in FLOATS:
            raise CheckpointError(
                f"{source.name}: tensor {shown(pair[end].name)} holds {pair[end].dtype} of shape {pair[end].shape}; "
                f"the model asks for floats of {shape}, of rank up to {MOST_RANK}"
            )
    first, second = tensor(source, pair[A]), tensor(source, pair[B])
    return module, (first, _rows(second, name, model) if found.interleaved else second, alpha / rank if alpha else 1.0)


def _order(model: ModelSpec) -> str:
    merged = model.names.qkv
    return merged.order if isinstance(merged, MergedProjections) else "rows"


def _rows(second: Tensor, name: str, model: ModelSpec) -> Tensor:
    """B of queries and keys, whose heads hold numbers that turn together side by side in the file, and half a head
    apart here.
    """
    _, layer, part, *_ = name.split(".")
    mixer = model.layers[int(layer)].mixer
    if part not in ("attn_q", "attn_k") or not isinstance(mixer, AttentionSpec):
        return second
    heads = mixer.heads if part == "attn_q" else mixer.kv_heads
    return second.view(heads, mixer.dim // 2, 2, -1).transpose(1, 2).reshape(second.shape)


def _error(source: WeightSource, stored: StoredTensor, why: str) -> CheckpointError:
    return CheckpointError(f"{source.name}: tensor {shown(stored.name)} is not supported: {why}")
