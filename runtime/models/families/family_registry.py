"""Which function reads the config.json of which architecture."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import Any

from ...errors import ConfigError
from ..spec.json_fields import shown
from ..spec.model_config import ModelConfig
from ..spec.model_spec import ModelSpec
from ..spec.unused_config_keys import spelled, stray_keys
from .family_files import FILES

Reader = Callable[[ModelConfig], ModelSpec]
_spelled = lru_cache(512)(spelled)

MOST_TOLD = 8
OUTER = ("tie_word_embeddings", "quantization_config")  # keys of a wrapper that count before those of its text model
TIED = {"Mistral3ForConditionalGeneration", "InternVLForConditionalGeneration"}  # if nothing says otherwise
TOWER_KEYS = ("vision_config", "audio_config")
WRAPPED = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head", "lm_head"),
)
TOWERS = (
    r"(model\.)?(visual|vision_tower|vision_model|vision_embedder|audio_tower|embed_vision|embed_audio|multi_modal_projector|mm_projector|"
    r"vision_projection|connector)\..*",
    r"(model\.)?image_newline",
)


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """name: of the function, for people.  architectures: it reads, as in `architectures` of config.json."""

    name: str
    architectures: tuple[str, ...]
    read: Reader


class ModelFamilies(MutableMapping[str, ModelFamily]):
    """By architecture. The file of a family is imported when it is asked for.

    files: names of modules next to this one, with the architectures that each registers.
    """

    def __init__(self, files: Mapping[str, tuple[str, ...]]) -> None:
        self._files = {name: file for file, names in files.items() for name in names}
        self._registered: dict[str, ModelFamily] = {}

    def __getitem__(self, name: str) -> ModelFamily:
        if name not in self._registered and name in self._files:
            import_module(f"{__package__}.{self._files[name]}")
        return self._registered[name]

    def __setitem__(self, name: str, family: ModelFamily) -> None:
        self._registered[name] = family

    def __delitem__(self, name: str) -> None:
        del self._registered[name]

    def __contains__(self, name: object) -> bool:
        return name in self._files or name in self._registered

    def __iter__(self) -> Iterator[str]:
        return iter(self._files | self._registered)

    def __len__(self) -> int:
        return len(self._files | self._registered)


FAMILIES: MutableMapping[str, ModelFamily] = ModelFamilies(FILES)


def family(*architectures: str) -> Callable[[Reader], Reader]:
    """Registers the decorated function as the reader of checkpoints of these architectures."""

    def register(read: Reader) -> Reader:
        for name in architectures:
            FAMILIES[name] = ModelFamily(read.__name__, architectures, read)
        return read

    return register


def read_model(values: Mapping[str, Any], where: str = "config.json", context: int | None = None) -> ModelSpec:
    """The model that a decoded config.json describes. context: the longest sequence that is requested.

    For a wrapper around a text model (`text_config`) it is the text model; `ModelSpec.notes` says so. Raises
    ConfigError naming `where`, the key and its value; also for a key that may change results and is not understood.
    Keys that transformers' own class of the `model_type` does not have are ignored, as transformers does, except those
    that the family's code names. `ModelSpec.stray` has them, and a note says so.
    """
    name, text = architecture_of(values, where), _text_of(values, where)
    config = ModelConfig(
        values if text is None else text, f"{where}: text_config" if "text_config" in values else where, name, context
    )
    own = _spelled(
        FAMILIES[name].read
    )  # keys of published files that the family reads, whatever transformers' class has
    config.leave_out(stray_keys(config.values, config.judged() - own, name if text is None else None))
    if text is not None:
        config.notes.append(f"{name}: its text model only; towers and projectors of pictures or sound are left aside")
    _reject(config)
    model = FAMILIES[name].read(config)
    config.finish()
    if stray := config.stray():
        model = replace(model, stray=stray, notes=(*model.notes, _stray_note(stray, config)))
    if text is None:
        return model
    names = replace(model.names, prefixes=WRAPPED + model.names.prefixes, ignored=TOWERS + model.names.ignored)
    return replace(model, names=names)


def _stray_note(stray: tuple[str, ...], config: ModelConfig) -> str:
    more = f" and {len(stray) - MOST_TOLD} more" if len(stray) > MOST_TOLD else ""
    return (
        f"{config.where}: {', '.join(map(shown, stray[:MOST_TOLD]))}{more} left aside: transformers' own class of "
        f"model_type={shown(config.values['model_type'])} does not have such keys, so they change nothing there"
    )


def _text_of(values: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """A wrapper's keys of the text model: a separate object, or next to those of a tower; None: it is no wrapper."""
    text = values.get("text_config")
    if text is None:
        towers = any(values.get(key) is not None for key in TOWER_KEYS)
        return {key: value for key, value in values.items() if key not in TOWER_KEYS} if towers else None
    if not isinstance(text, dict):
        raise ConfigError(f"{where}: text_config must be an object, not {shown(text)}")
    dtype = values.get("dtype") or values.get("torch_dtype")
    own = {key: value for key, value in text.items() if key != "tie_word_embeddings"}  # which the wrapper says
    named = values.get("architectures")
    if isinstance(named, list) and any(isinstance(name, str) and name in TIED for name in named):
        own["tie_word_embeddings"] = True
    return {"dtype": dtype} | own | {key: values[key] for key in OUTER if values.get(key) is not None}


def architecture_of(values: Mapping[str, Any], where: str) -> str:
    """The first known one of config.json's `architectures`."""
    names = values.get("architectures")
    if not isinstance(names, list) or not names:
        raise ConfigError(f"{where}: key 'architectures' must list the model class, not {shown(names)}; {_supported()}")
    for name in names:
        if isinstance(name, str) and name in FAMILIES:
            return name
    near = difflib.get_close_matches(str(names[0]), FAMILIES, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"{where}: key 'architectures': {shown(names[0])} is not supported; {hint}{_supported()}")


def _supported() -> str:
    return f"`sgl models` lists the {len(FAMILIES)} that are"


def _reject(config: ModelConfig) -> None:
    config.raw("quantization_config", "compression_config")  # `loading` asks the headers, and these for parameters
    config.require("is_encoder_decoder", False)
    config.require("add_cross_attention", False)
    config.require("use_bidirectional_attention", False, "vision")  # of pictures' tokens only
