"""Properties of a model that transformers computes, before it is loaded, and refusals by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ..spec.json_fields import shown

# of `model_type`: what computes differently when sequences are packed, or with separate positions
# i25 rotations that depend on the longest sequence of a batch
DENIED = {
    "llama4": "its temperatures and chunks follow positions of the library's own cache",
    "llama4_text": "its temperatures and chunks follow positions of the library's own cache",
    "deepseek_v32": "its sparse attention needs a mask that is not given to other attention functions",
    "glm_moe_dsa": "its sparse attention needs a mask that is not given to other attention functions",
    "deepseek_v4": "its sparse attention needs a mask that is not given to other attention functions",
}
DENIED |= dict.fromkeys(
    ("axk2", "hy_v4", "dots3_note", "dots3_note_text"),
    "its code reads a mask that is not given to other attention functions",
)
BY_LENGTH = ("dynamic", "longrope")  # rotations that depend on the longest sequence of a batch
STATES = ("linear_attention", "mamba", "mamba2", "conv", "recurrent", "gated_delta_net")


@dataclass(frozen=True)
class TransformersModelSpec:
    """A model of transformers: see `ModelSpec` for the other fields.

    path: of its directory.  remote_code: Python of the checkpoint may be run.  chosen: the user asked for transformers.
    """

    architecture: str
    path: str
    vocab_size: int
    hidden_size: int
    max_position: int
    dtype: str | None
    remote_code: bool
    chosen: bool
    notes: tuple[str, ...]


def read_transformers_model(
    values: Mapping[str, Any], where: str, path: Path, remote_code: bool = False, chosen: bool = False
) -> TransformersModelSpec:
    """Raises ConfigError for what transformers does not support, or would compute wrongly over our cache.

    remote_code: whether Python of the checkpoint may be run.  chosen: by the user, whether or not a family describes
        it.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=remote_code, local_files_only=True)
    except Exception as error:  # whatever the library finds wrong
        if not remote_code and (own := values.get("auto_map")):
            raise ConfigError(
                f"{where}: auto_map={shown(own)}: the model is Python that comes with the checkpoint, which is run "
                "with "
                "Engine(trust_remote_code=True) alone; look at it first, or take a checkpoint of an architecture "
                "that is known"
            ) from error
        raise ConfigError(f"{where}: transformers cannot read it: {_first_line(error)}") from error
    text = config.get_text_config()
    names = values.get("architectures") or [type(config).__name__]
    if not isinstance(names, list):
        raise ConfigError(f"{where}: key 'architectures' must list the model class, not {shown(names)}")
    if not remote_code:
        _require_class(config.model_type, names, where)
    _refuse(text, where, str(names[0]))
    return TransformersModelSpec(
        architecture=str(names[0]),
        path=str(path),
        vocab_size=_size(text, where, "vocab_size"),
        hidden_size=_size(text, where, "hidden_size"),
        max_position=_size(text, where, "max_position_embeddings"),
        dtype=str(text.dtype).removeprefix("torch.") if getattr(text, "dtype", None) else None,
        remote_code=remote_code,
        chosen=chosen,
        notes=(f"{names[0]} runs by transformers' own implementation over our cache, without our kernels",),
    )


def _require_class(model_type: str, names: list[Any], where: str) -> None:
    """The class that transformers uses for `model_type` is one of `architectures`."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as known

    found = known.get(model_type)
    classes = [found] if isinstance(found, str) else list(found or [])
    if not set(classes) & set(map(str, names)):
        takes = f"belongs to {' or '.join(classes)}" if classes else "is not a decoder that generates text"
        raise ConfigError(
            f"{where}: architectures={shown(names)}, but model_type={model_type!r} {takes} in transformers"
        )


def _refuse(text: Any, where: str, name: str) -> None:
    if why := DENIED.get(text.model_type):
        raise ConfigError(f"{where}: {name} cannot run by transformers over our cache: {why}")
    if getattr(text, "is_encoder_decoder", False):
        raise ConfigError(f"{where}: {name} is not a decoder: is_encoder_decoder=True")
    if getattr(text, "quantization_config", None):
        raise ConfigError(f"{where}: quantised checkpoints are not supported; use the original one")
    states = sorted(set(getattr(text, "layer_types", None) or []) & set(STATES))
    if states:
        raise ConfigError(
            f"{where}: {name} has layers with a state ({', '.join(states)}), which would run on from one sequence "
            "into the next"
        )
    if (kind := _rope_kind(text)) in BY_LENGTH:
        raise ConfigError(
            f"{where}: rope_type={kind!r} lets the longest sequence of a step decide for the others; {name} cannot "
            "run so"
        )


def _rope_kind(text: Any) -> str | None:
    found = getattr(text, "rope_parameters", None) or {}
    kinds = [found, *(value for value in found.values() if isinstance(value, dict))]
    return next((kind["rope_type"] for kind in kinds if kind.get("rope_type") in BY_LENGTH), None)


def _size(text: Any, where: str, name: str) -> int:
    value = getattr(text, name, None)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"{where}: {name}={shown(value)} must be a number above 0 for a model that transformers computes"
        )
    return value


def _first_line(error: Exception) -> str:
    return (
        f"{type(error).__name__}: "
        f"{str(error).strip().splitlines()[0][:500] if str(error).strip() else 'no reason given'}"
    )
