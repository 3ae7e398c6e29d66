"""Arrays of a file, kept in few bytes: their values become Python objects when they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, overload

import numpy as np

LENGTH = 8  # bytes before each text that say how many it has, the low one first
MOST_SHOWN = 8  # values that an error quotes


@cache
def compiled() -> Any:
    """The core's functions of texts (`grammars/core/python/text_blocks.c`), or None where the package was installed
    without it."""
    try:
        return importlib.import_module("sgl.grammars._core")
    except ImportError:
        return None


class PackedArray(Sequence[Any]):
    """Equal to the list of its values, and shown as one."""

    def tolist(self) -> list[Any]:
        raise NotImplementedError

    def _value(self, index: int) -> Any:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        places = range(len(self))[index]
        return self._value(places) if isinstance(places, int) else [self._value(place) for place in places]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | PackedArray) and len(other) == len(self) and self.tolist() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.tolist()) if len(self) <= MOST_SHOWN else f"{repr(self[:MOST_SHOWN])[:-1]}, ...]"


class PackedNumbers(PackedArray):
    """numbers: of one dimension; integers, floats or bools."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def _value(self, index: int) -> Any:
        return self.numbers[index].item()

    def tolist(self) -> list[Any]:
        values: list[Any] = self.numbers.tolist()
        return values


class PackedTexts(PackedArray):
    """Texts in UTF-8 in one block, each after its length in 8 bytes. places: where they begin, int32 [n]."""

    def __init__(self, block: bytes, places: np.ndarray) -> None:
        self._block, self._places = block, places

    @property
    def parts(self) -> tuple[bytes, np.ndarray]:
        """The block, and the places."""
        return self._block, self._places

    def __len__(self) -> int:
        return len(self._places)

    def _value(self, index: int) -> str:
        return self._block[self._places[index] : self._stop(index)].decode()

    def _stop(self, index: int) -> int:
        return int(self._places[index + 1]) - LENGTH if index + 1 < len(self) else len(self._block)

    def tolist(self) -> list[str]:
        if (core := compiled()) is None:
            return [self._value(index) for index in range(len(self))]
        texts: list[str] = core.texts_of(self._block, self._places)
        return texts

    def halves(self) -> list[Any]:
        """Each text parted at its first space that is not its first letter, (left, right); one without as it is."""
        if (core := compiled()) is None:
            return [halves_of(text) for text in self.tolist()]
        pairs: list[Any] = core.halves_of(self._block, self._places)
        return pairs


def halves_of(text: str) -> tuple[str, str] | str:
    """The two parts of one text, see `PackedTexts.halves`."""
    cut = text.find(" ", 1)
    return text if cut < 0 else (text[:cut], text[cut + 1 :])


def merges_known(texts: PackedTexts, merges: PackedTexts) -> bool:
    """Whether all texts differ, and both halves of each merge are such texts, together too.

    False also where that would take long, and without the core: then the texts themselves must be looked at.
    """
    core = compiled()
    return core is not None and core.merges_known(*texts.parts, *merges.parts)


def find_texts(data: bytes, start: int, most: int) -> np.ndarray:
    """Where at most so many texts begin, the first of them after its length at byte `start`: int32 [n].

    They end before the first that is not whole in the data, or no UTF-8.
    """
    if (core := compiled()) is None:
        return np.array(list(_walk(data, start, most)), np.int32)
    return np.frombuffer(core.find_texts(data, start, most), np.int32)


def _walk(data: bytes, at: int, most: int) -> Iterator[int]:
    for _ in range(most):
        begin = at + LENGTH
        at = begin + int.from_bytes(data[at:begin], "little")
        if begin > len(data) or at > len(data) or not _is_text(data[begin:at]):
            return
        yield begin


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
