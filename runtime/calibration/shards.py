"""A checkpoint that is being written: safetensors files of bounded size with an index, complete or not there at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from ..errors import ConfigError
from ..loading.choosing import INDEX, WEIGHTS

SHARD = 2 * 10**9  # bytes of a file, which are in memory until it is written
CONFIG = "config.json"
NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")


class Shards:
    """Writes into `out`.part, which becomes `out` when the `with` block ends well and is deleted otherwise.

    names: of that many files, in their order; None: what checkpoints call them, with an index where there are several.
    """

    def __init__(self, out: Path, names: Callable[[int], list[str]] | None = None) -> None:
        if out.exists():
            raise ConfigError(f"{out} is there already: name a folder that is not")
        self.out, self._names = out, names
        self._folder = out.with_name(out.name + ".part")
        self._held: dict[str, Tensor] = {}
        self._files: list[list[str]] = []
        self.bytes = 0

    def __enter__(self) -> Shards:
        try:
            self._folder.mkdir(parents=True)
        except OSError as error:
            raise ConfigError(f"{self._folder} cannot be made ({error}); delete what an earlier try left, or name another folder") from error
        return self

    def add(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._held[name] = tensor
            self.bytes += tensor.nbytes
            if sum(held.nbytes for held in self._held.values()) >= SHARD:
                self._write()

    def finish(self, origin: Path, config: dict[str, Any], left: Collection[str] = ()) -> list[str]:
        """The last tensors, config.json, and every other file that lies in `origin` beside its weights, but for those in `left`.

        Returns the names of the files with tensors.
        """
        self._write()
        count = len(self._files)
        names = (self._names or checkpoint_names)(count)
        for number, name in enumerate(names):
            self._part(number).rename(self._folder / name)
        if count > 1 and self._names is None:
            where = {tensor: name for name, tensors in zip(names, self._files, strict=True) for tensor in tensors}
            self.json(INDEX, {"metadata": {"total_size": self.bytes}, "weight_map": dict(sorted(where.items()))})
        self.json(CONFIG, config)
        for file in sorted(origin.iterdir()):
            if file.is_file() and file.suffix not in NOT_COPIED and not file.name.endswith(".index.json") and file.name not in (CONFIG, *left):
                shutil.copyfile(file, self._folder / file.name)
        return names

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._folder.rename(self.out)
        else:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self) -> None:
        if self._held:
            save_file(self._held, self._part(len(self._files)), {"format": "pt"})
            self._files.append(list(self._held))
            self._held = {}

    def _part(self, number: int) -> Path:
        return self._folder / f"part-{number}.safetensors"

    def json(self, name: str, value: dict[str, Any]) -> None:
        """A file beside the tensors."""
        (self._folder / name).write_text(json.dumps(value, indent=2) + "\n")


def checkpoint_names(count: int) -> list[str]:
    return [WEIGHTS] if count == 1 else [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
