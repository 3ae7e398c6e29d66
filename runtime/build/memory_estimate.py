"""What a checkpoint is and would take on this machine, before any of its weights is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..attention.cpu.cpu_attention_support import FLOAT8, expected_attention
from ..errors import CheckpointError, ConfigError, RuntimeFailure
from ..executor.expected_device import ExpectedDevice, expected_device
from ..layers.number_formats import FORMATS
from ..loading.checkpoint import is_state, open_checkpoint, sources_of
from ..loading.describe_model import describe
from ..loading.gguf_files.kept_headers import headers_read_once
from ..loading.load_plan import check_weights
from ..loading.tensor_files.safetensors_header import FLOATS, ITEM_SIZES
from ..memory.memory_sizes import free_memory
from ..models.describe.explain_executors import LayerGroup, described_layers, slower
from ..models.expected_executors import executors_on_cpu
from ..models.families import FAMILIES
from ..models.spec.model_spec import ModelSpec
from ..models.spec.weight_shapes import weight_shapes
from ..models.transformers_backend.transformers_config import TransformersModelSpec
from ..quantization.weight_forms import GROUP, MX_GROUP, NV_GROUP
from .build_tokenizer import tokenizer_summary
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
    device = expected_device(options.device, options.dtype)
    config = options.on(device.type)
    sizes: ModelSizes | None = None
    layers: tuple[LayerGroup, ...] = ()
    if isinstance(model, ModelSpec):
        stored = FLOAT8 if config.kv_dtype == "fp8" else device.dtype
        sizes, layers = _sizes(model, stored), _layers(model, device, stored, config)
    return MemoryEstimate(
        path=str(path),
        architecture=model.architecture,
        family=_family(model),
        notes=model.notes,
        files=_files(model, path, options),
        text=_text(path, config),
        device=device.name,
        dtype=device.dtype,
        free=_free(device),
        context=options.context_for(model.max_position),
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


def _sizes(model: ModelSpec, stored: str) -> ModelSizes:
    """stored: the format of keys and values."""
    per_token = model.attention.bytes_per_slot(FORMATS[stored])
    return ModelSizes(
        len(model.layers), weight_shapes(model).parameters, weights_by_kind(model), per_token, tuple(_longest(model))
    )


def weights_by_kind(model: ModelSpec) -> dict[str, int]:
    """Bytes of the weights, kept once each: of a tied head, which int8 and int4 copy, the copy too."""
    shapes = weight_shapes(model)
    layers, total = shapes.products, shapes.parameters
    outputs = len(model.head_tokens) if model.stage.ends else 0
    head = outputs * (model.embed_size or model.hidden_size)
    inner, rows = sum(product.numbers for product in layers), sum(product.outputs for product in layers)
    rest = 2 * (total - inner - (0 if model.tied else head)) + head + 4 * outputs

    def groups(size: int) -> int:
        return sum(product.outputs * -(-product.inputs // size) for product in layers)

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


def _free(device: ExpectedDevice) -> int:
    """Bytes of its memory."""
    if device.type != "cuda":
        return free_memory()
    import torch

    from . import memory_plan

    return memory_plan.plan_before_loading(torch.device(device.name)).free


def _layers(model: ModelSpec, device: ExpectedDevice, stored: str, config: DeviceDefaults) -> tuple[LayerGroup, ...]:
    attends = (
        expected_attention(config.attention, model.attention, device.dtype, stored, config.deterministic)
        if device.type == "cpu"
        else None
    )
    if attends is None:
        return _layers_by_torch(model, device, stored, config)
    return described_layers(model, executors_on_cpu(model, device.dtype, config.weights), attends)


def _layers_by_torch(
    model: ModelSpec, device: ExpectedDevice, stored: str, config: DeviceDefaults
) -> tuple[LayerGroup, ...]:
    """What a decoder without memory says, and the backends on a pool of a few tokens."""
    import torch

    from ..attention.choose_backend import attention_backend
    from ..models.decoder import Decoder
    from ..models.describe.explain_executors import planned_layers
    from ..models.layer_executors import expected_executors

    place, dtype = torch.device(device.name), getattr(torch, device.dtype)
    layout, decoder = model.attention, Decoder(model, dtype, "meta")
    slots = config.page_size * (SLOTS if device.type == "cuda" else 2)
    attention = attention_backend(
        config.attention,
        layout.pool(slots, getattr(torch, stored), place),
        layout,
        page_size=config.page_size,
        max_running=config.max_running,
        context=config.context or model.max_position,
        deterministic=config.deterministic,
        dtype=dtype,
    )
    return planned_layers(decoder, expected_executors(decoder, place, config.weights), attention)


def _files(model: ModelSpec | TransformersModelSpec, path: Path, options: EngineConfig) -> CheckpointFileSummary:
    try:
        sources = sources_of(path, options.load_format)
    except CheckpointError as error:
        return CheckpointFileSummary(0, 0, {}, str(error))
    dtypes: dict[str, int] = {}
    for stored in (stored for source in sources for stored in source.tensors):
        item = ITEM_SIZES[stored.dtype] if stored.dtype in FLOATS else 1
        dtypes[stored.dtype] = dtypes.get(stored.dtype, 0) + (stored.stop - stored.start) // item
    size = sum(source.bytes for source in sources)
    return CheckpointFileSummary(len(sources), size, dtypes, _misfit(model, path, options))


def _misfit(model: ModelSpec | TransformersModelSpec, path: Path, options: EngineConfig) -> str | None:
    if isinstance(model, TransformersModelSpec):
        return None
    try:
        if is_state(path, options.load_format):
            from ..parallel.pp.pipeline_stages import require_state

            require_state(path, options.parts, options.load_format, options.changes_weights)
            return None
        checkpoint = open_checkpoint(path, load_format=options.load_format)
        check_weights(model, checkpoint.sources, checkpoint.readers, checkpoint.where)
    except ConfigError as error:
        return str(error)
    return None


def _text(path: Path, config: DeviceDefaults) -> TokenizerSummary:
    try:
        vocabulary, chat = tokenizer_summary(path, config)
    except (RuntimeFailure, OSError, ValueError) as error:
        return TokenizerSummary(0, False, str(error))
    return TokenizerSummary(vocabulary, chat, None)
