"""`engine.adapters`: what users load, list, pin and unload, whatever process the model runs in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from .adapter_manager import AdapterInfo
from .files.tensor_adapters import TensorAdapters


class AdapterApi:
    """The adapters (LoRA) of an engine, by name. All methods are thread-safe.

        engine.adapters.load("sql", "adapters/sql")         # a directory of PEFT's, or a GGUF file
        engine.open(adapter="sql").extend(tokens)

    `docs/adapters.md` says what is read and what is refused. ask: calls a method of `room.AdapterManager` where the
    model is.  trained: keeps
    the files of those that came as tensors.
    """

    def __init__(self, ask: Callable[..., Any], trained: TensorAdapters) -> None:
        self._ask, self._trained = ask, trained

    def load(self, name: str, path: str | Path, *, pin: bool = False) -> AdapterInfo:
        """Read an adapter into main memory; `name` means it from now on. pin: it stays there whatever else is loaded.

        If the name meant another one before, sequences that are open keep that. Raises CheckpointError for what is
        damaged, does not fit the model or is not supported, ConfigError where the device has no slot that is wide
        enough.
        """
        return self._ask("load", name, str(Path(path).absolute()), pin)

    def update(self, name: str, tensors: Mapping[str, Tensor], config: Mapping[str, Any] | None = None) -> AdapterInfo:
        """Let `name` mean these pairs from now on: for training an adapter in parallel with the engine,
        step by step.

            engine.adapters.update("sql", peft_model.state_dict(), peft_model.peft_config["default"].to_dict())

        tensors: PEFT's pairs by the names of `get_peft_model_state_dict`, or of `state_dict` with the adapter's name in
            them; what is no part of a pair is left out if it is the base's, and refused
            otherwise. Any float type, on any device; they are copied.
        config: as in `adapter_config.json`; None: that of the adapter which the name means now.

        Sequences that are open keep the adapter that they have. Pins stay. Raises as `load` does; the name keeps its
        adapter then.
        """
        with self._trained.turn:
            now = next((info for info in self.list() if info.name == name), None)
            with self._trained.written(name, tensors, config, None if now is None else Path(now.path)) as folder:
                return self.load(name, folder, pin=now is not None and now.pinned)

    def unload(self, name: str) -> None:
        """Forget an adapter. Raises ConfigError while sequences are open with it, and for a name that is not loaded."""
        self._ask("unload", name)
        self._trained.forget(name)

    def pin(self, name: str, pinned: bool = True) -> AdapterInfo:
        """Keep an adapter in main memory, or let it be dropped for others again."""
        return self._ask("pin", name, pinned)

    def get(self, name: str) -> AdapterInfo:
        """Raises ConfigError, which lists those that are loaded, for another name."""
        return self._ask("get", name)

    def list(self) -> list[AdapterInfo]:
        """All that are loaded, in the order in which they were."""
        return self._ask("list")
