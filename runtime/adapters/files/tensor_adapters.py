"""Adapters that come as tensors: they are laid on disk as PEFT lays them, so that all that is true of others is true of
them.
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from ...common.argument_checks import shown
from ...errors import CheckpointError, ConfigError
from ...loading.model_files.bounded_json import read_json
from .peft_file_names import CONFIG, SAFETENSORS

KEPT = 2  # folders of a name: a sequence that was opened with the adapter before may still read that from its folder
NAMED = (  # the adapter's name, where a module has several
    (re.compile(r"(\.lora_[AB])\.[^.]+(\.weight|\.bias)$"), r"\1\2"),
    (re.compile(r"(\.lora_magnitude_vector)\.[^.]+\.weight$"), r"\1"),
    (re.compile(r"(\.lora_embedding_[AB]|\.trainable_tokens_delta)\.[^.]+$"), r"\1"),
    (re.compile(r"\.modules_to_save\.[^.]+(\.weight|\.bias)$"), r"\1"),
)
OWN = (".lora_", ".trainable_tokens_delta", ".modules_to_save.")  # in the names of what is no part of the base


class TensorAdapters:
    """Adapters of one engine that came as tensors. The folders end with this object, or before, by `close`.

    turn: to be held by an update, so that the newest folder of a name is what it means.
    """

    def __init__(self) -> None:
        self._folders: dict[str, list[tempfile.TemporaryDirectory[str]]] = {}
        self.turn = threading.Lock()

    @contextmanager
    def written(
        self, name: str, tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None, before: Path | None
    ) -> Iterator[Path]:
        """A folder with this adapter, kept for the name unless something is raised.

        before: that of the adapter which it meant so far.
        """
        if config is None and before is None:
            raise ConfigError(
                f"no adapter {name!r} is loaded whose {CONFIG} these tensors could have; give config=, such as "
                "peft_model.peft_config['default'].to_dict()"
            )
        with self._made(name) as folder:
            values = read_json(before / CONFIG) if config is None and before is not None else dict(config or {})
            _write(folder, own_of(tensors, values), values)
            yield folder

    @contextmanager
    def _made(self, name: str) -> Iterator[Path]:
        made = tempfile.TemporaryDirectory(prefix="sgl-adapter-")
        try:
            yield Path(made.name)
        except BaseException:
            made.cleanup()
            raise
        kept = self._folders.setdefault(name, [])
        kept.append(made)
        while len(kept) > KEPT:
            kept.pop(0).cleanup()

    def forget(self, name: str) -> None:
        for made in self._folders.pop(name, []):
            made.cleanup()

    def close(self) -> None:
        for name in list(self._folders):
            self.forget(name)


def _write(folder: Path, pairs: Mapping[str, Tensor], config: Any) -> None:
    save_file({key: tensor.detach().cpu().contiguous() for key, tensor in pairs.items()}, folder / SAFETENSORS)
    (folder / CONFIG).write_text(json.dumps(config, default=_plain))


def own_of(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Those of adapters, by the names that PEFT saves them under.

    Raises CheckpointError where they are of several adapters.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not _is_own(name, config):
            continue
        plain = next((pattern.sub(instead, name) for pattern, instead in NAMED if pattern.search(name)), name)
        if plain in found:
            raise CheckpointError(
                f"tensor {shown(name)}: there are several that PEFT would save as {shown(plain)}; give those of one "
                "adapter, as get_peft_model_state_dict does"
            )
        found[plain] = tensor
    if not found:
        raise CheckpointError(
            f"none of the {len(tensors)} tensors is one of an adapter's pairs (names with .lora_A and .lora_B); "
            f"{CONFIG} and PEFT's state_dict belong together"
        )
    return found


def _is_own(name: str, config: Mapping[str, Any]) -> bool:
    """Whether it is no tensor of the base, or one that was trained."""
    if any(part in name for part in OWN):
        return True
    if name.endswith(".base_layer.bias"):
        return config.get("bias", "none") != "none"
    module = name.removesuffix(".weight").rpartition(".")[2]
    return name.endswith(".weight") and module in (config.get("modules_to_save") or ())


def _plain(value: Any) -> Any:
    """What JSON has no type for, as PEFT writes it."""
    if isinstance(value, set | frozenset | tuple):
        return sorted(value)
    return str(getattr(value, "value", value))
