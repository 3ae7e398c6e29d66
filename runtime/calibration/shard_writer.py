"""A model's directory that is being written: safetensors files of bounded size, complete or not there at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from ..errors import ConfigError
from ..loading.model_files.choose_weight_files import INDEX, WEIGHTS
from ..loading.tensor_files.save_safetensors import save_tensors

SHARD = 2 * 10**9  # bytes of a file, which are in memory until it is written
CONFIG = "config.json"
NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")


class ShardWriter:
    """Writes into `out`.part, which becomes `out` when the `with` block ends well and is deleted otherwise."""

    def __init__(self, out: Path) -> None:
        if out.exists():
            raise ConfigError(f"{out} is there already: name a folder that is not")
        self.out = out
        self._folder = out.with_name(out.name + ".part")
        self._held: dict[str, Tensor] = {}
        self._files: list[list[str]] = []
        self.bytes = 0
        self.metadata = {"format": "pt"}  # of each file

    def __enter__(self) -> ShardWriter:
        try:
            self._folder.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(
                f"{self._folder} cannot be made ({error}); delete what an earlier try left, or name another folder"
            ) from error
        return self

    def add(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._held[name] = tensor
            self.bytes += tensor.nbytes
            if sum(held.nbytes for held in self._held.values()) >= SHARD:
                self._write()

    def named(self, names: Callable[[int], list[str]]) -> dict[str, list[str]]:
        """Ends the files of all tensors that were added since the last call; the names of these, by
        the file. names: of that many files, in their order.
        """
        self._write()
        found = dict(zip(names(len(self._files)), self._files, strict=True))
        for number, name in enumerate(found):
            self._part(number).rename(self._folder / name)
        self._files = []
        return found

    def size(self, name: str) -> int:
        """Bytes of a file that has ended."""
        return (self._folder / name).stat().st_size

    def index(self) -> None:
        """The tensors are a checkpoint's: its files, with an index where there are several."""
        files = self.named(checkpoint_names)
        if len(files) > 1:
            where = {tensor: name for name, tensors in files.items() for tensor in tensors}
            self.json(INDEX, {"metadata": {"total_size": self.bytes}, "weight_map": dict(sorted(where.items()))})

    def finish(self, origin: Path, config: dict[str, Any], left: Collection[str] = ()) -> None:
        """config.json, and every other file of `origin` that is no weight, but for those in `left`."""
        self.json(CONFIG, config)
        for file in sorted(origin.iterdir()):
            if (
                file.is_file()
                and file.suffix not in NOT_COPIED
                and not file.name.endswith(".index.json")
                and file.name not in (CONFIG, *left)
            ):
                shutil.copyfile(file, self._folder / file.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._folder.rename(self.out)
        else:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self) -> None:
        if self._held:
            save_tensors(self._held, self._part(len(self._files)), self.metadata)
            self._files.append(list(self._held))
            self._held = {}

    def _part(self, number: int) -> Path:
        return self._folder / f"part-{number}.safetensors"

    def json(self, name: str, value: dict[str, Any]) -> None:
        """A file next to the tensors."""
        (self._folder / name).write_text(json.dumps(value, indent=2) + "\n")


def checkpoint_names(count: int) -> list[str]:
    return (
        [WEIGHTS] if count == 1 else [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    )
