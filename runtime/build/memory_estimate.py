"""What a checkpoint is and would take on this machine, before any of its weights is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ..attention import AttentionBackend, attention_backend
from ..errors import CheckpointError, ConfigError, RuntimeFailure
from ..executor.device_choice import DeviceChoice, choose_device
from ..loading import describe
from ..loading.checkpoint import is_state, open_checkpoint, sources_of
from ..loading.gguf_files.kept_headers import headers_read_once
from ..loading.load_plan import plan_for
from ..loading.tensor_files.safetensors_header import FLOATS
from ..models.decoder import Decoder
from ..models.describe.explain_executors import LayerGroup, planned_layers, slower
from ..models.families import FAMILIES
from ..models.layer_executors import expected_executors
from ..models.spec.model_spec import ModelSpec
from ..models.transformers_backend import TransformersModelSpec
from ..parallel.pp.pipeline_stages import require_state
from ..quantization.fp4_fp8_rounding import MX_GROUP, NV_GROUP
from ..quantization.weight_rounding import GROUP
from . import memory_plan
from .build_engine import context_of
from .build_tokenizer import load_tokenizer
from .engine_config import DeviceDefaults, EngineConfig

SLOTS = 64  # pages of a pool that a GPU's backends try themselves on


@dataclass(frozen=True, slots=True)
class CheckpointFileSummary:
    """bytes: of all files together; dtypes: how many numbers the tensors hold in each.

    problem: why they do not load.
    """

    count: int
    bytes: int
    dtypes: dict[str, int]
    problem: str | None


@dataclass(frozen=True, slots=True)
class TokenizerSummary:
    """chat: whether there is a chat template.  problem: why the tokenizer does not load."""

    vocabulary: int
    chat: bool
    problem: str | None


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Of the decoder. weights: bytes by what they are kept as.  kv_token: bytes of a token's keys and values.

    longest: tokens, and where that comes from.
    """

    layers: int
    parameters: int
    weights: dict[str, int]
    kv_token: int
    longest: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """layers, slower: see `models.explain`.

    family, sizes: None where transformers computes the model.  free: bytes here.
    """

    path: str
    architecture: str
    family: str | None
    notes: tuple[str, ...]
    files: CheckpointFileSummary
    text: TokenizerSummary
    device: str
    dtype: str
    free: int
    context: int
    sequences: int
    sizes: ModelSizes | None
    layers: tuple[LayerGroup, ...]
    slower: tuple[str, ...]

    @property
    def loads(self) -> bool:
        return self.files.problem is None and self.text.problem is None


@headers_read_once()
def estimate_memory(path: Path, options: EngineConfig) -> MemoryEstimate:
    """Raises ConfigError for a config.json that nothing computes, and for options that this machine does not have."""
    model = _with_own_head(
        describe(path, options.context, options.implementation, options.trust_remote_code), path, options
    )
    choice = choose_device(options.device, options.dtype, options.threads)
    config = options.on(choice.device.type)
    sizes: ModelSizes | None = None
    layers: tuple[LayerGroup, ...] = ()
    if isinstance(model, ModelSpec):
        decoder, stored = Decoder(model, choice.dtype, "meta"), memory_plan.stored_dtype(config, choice.dtype)
        sizes = _sizes(decoder, stored)
        layers = planned_layers(
            decoder,
            expected_executors(decoder, choice.device, config.weights),
            _attention(model, config, choice, stored),
        )
    return MemoryEstimate(
        path=str(path),
        architecture=model.architecture,
        family=_family(model),
        notes=model.notes,
        files=_files(model, path, options),
        text=_text(path, config),
        device=str(choice.device),
        dtype=_name(choice.dtype),
        free=memory_plan.plan_before_loading(choice.device).free,
        context=context_of(model, options),
        sequences=config.max_running,
        sizes=sizes,
        layers=layers,
        slower=tuple(slower(layers))
        if sizes
        else (f"all layers use the transformers executor: no family describes {model.architecture}",),
    )


def _with_own_head(
    model: ModelSpec | TransformersModelSpec, path: Path, options: EngineConfig
) -> ModelSpec | TransformersModelSpec:
    """As the loader takes it; where the files cannot be read, `CheckpointFileSummary.problem` will say so."""
    try:
        return (
            model
            if isinstance(model, TransformersModelSpec)
            else open_checkpoint(path, options.context, load_format=options.load_format, parts=options.parts).model
        )
    except ConfigError:
        return model


def _family(model: ModelSpec | TransformersModelSpec) -> str | None:
    """The function that reads the config.json, and its file."""
    if isinstance(model, TransformersModelSpec):
        return None
    read = FAMILIES[model.architecture].read
    return f"{read.__name__} in families/{read.__module__.rpartition('.')[2]}.py"


def _sizes(decoder: Decoder, stored: torch.dtype) -> ModelSizes:
    """stored: of keys and values."""
    model = decoder.config
    per_token = model.attention.bytes_per_slot(stored)
    return ModelSizes(
        len(model.layers), decoder.parameter_count, weights_by_kind(decoder), per_token, tuple(_longest(model))
    )


def weights_by_kind(decoder: Decoder) -> dict[str, int]:
    """Bytes of the weights, kept once each: of a tied head, which int8 and int4 copy, the copy too."""
    layers = [getattr(*place).weight for block in decoder.layers for place in block.products()]
    head, total = decoder.head.product.weight, decoder.parameter_count
    inner, rows = sum(weight.numel() for weight in layers), sum(len(weight) for weight in layers)
    rest = 2 * (total - inner - (0 if decoder.config.tied else head.numel())) + head.numel() + 4 * len(head)

    def groups(size: int) -> int:
        return sum(len(weight) * -(-weight.shape[1] // size) for weight in layers)

    return {
        "float32": 4 * total,
        "bfloat16": 2 * total,
        "fp8": 2 * (total - inner) + inner + 4 * rows,
        "int8": rest + inner + 4 * rows,
        "int4": rest + inner // 2 + 3 * groups(GROUP),
        "nvfp4": rest + inner // 2 + 2 * groups(NV_GROUP),
        "mxfp4": rest + inner // 2 + 2 * groups(MX_GROUP),
    }


def _longest(model: ModelSpec) -> list[str]:
    lines = [f"{model.max_position:,} tokens by config.json"]
    if model.positions is not None:
        lines.append(f"a learned table of {model.positions.count:,} positions")
    for rope in model.ropes:
        if rope.kind == "longrope":
            lines.append(
                "longrope: one choice of factors for all sequences of the engine, by its context; trained on "
                f"{rope.original_context:,}"
            )
        elif rope.kind != "default":
            trained = f", trained on {rope.original_context:,}" if rope.original_context else ""
            lines.append(f"RoPE {rope.kind}, factor {rope.factor:g}{trained}")
    return lines


def _attention(model: ModelSpec, config: DeviceDefaults, choice: DeviceChoice, stored: torch.dtype) -> AttentionBackend:
    """What the layers would attend by, on a pool of a few tokens."""
    layout = model.attention
    slots = config.page_size * (SLOTS if choice.device.type == "cuda" else 2)
    return attention_backend(
        config.attention,
        layout.pool(slots, stored, choice.device),
        layout,
        page_size=config.page_size,
        max_running=config.max_running,
        context=config.context or model.max_position,
        deterministic=config.deterministic,
        dtype=choice.dtype,
    )


def _files(model: ModelSpec | TransformersModelSpec, path: Path, options: EngineConfig) -> CheckpointFileSummary:
    try:
        sources = sources_of(path, options.load_format)
    except CheckpointError as error:
        return CheckpointFileSummary(0, 0, {}, str(error))
    dtypes: dict[str, int] = {}
    for stored in (stored for source in sources for stored in source.tensors):
        item = FLOATS[stored.dtype].itemsize if stored.dtype in FLOATS else 1
        dtypes[stored.dtype] = dtypes.get(stored.dtype, 0) + (stored.stop - stored.start) // item
    size = sum(source.bytes for source in sources)
    return CheckpointFileSummary(len(sources), size, dtypes, _misfit(model, path, options))


def _misfit(model: ModelSpec | TransformersModelSpec, path: Path, options: EngineConfig) -> str | None:
    if isinstance(model, TransformersModelSpec):
        return None
    try:
        if is_state(path, options.load_format):
            require_state(path, options.parts, options.load_format, options.changes_weights)
            return None
        checkpoint = open_checkpoint(path, load_format=options.load_format)
        plan_for(Decoder(model, torch.float32, "meta"), checkpoint.sources, checkpoint.readers, checkpoint.where)
    except ConfigError as error:
        return str(error)
    return None


def _text(path: Path, config: DeviceDefaults) -> TokenizerSummary:
    try:
        tokenizer = load_tokenizer(path, config)
    except (RuntimeFailure, OSError, ValueError) as error:
        return TokenizerSummary(0, False, str(error))
    return TokenizerSummary(tokenizer.vocab_size, tokenizer.chat_template is not None, None)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
