"""The formats of weights and of keys and values, by their names in torch, for who computes sizes alone."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class HasItemSize(Protocol):
    """A dtype of torch, or a `NumberFormat`."""

    @property
    def itemsize(self) -> int: ...


class NumberFormat(NamedTuple):
    """name: as torch has it.  itemsize: bytes of a number."""

    name: str
    itemsize: int


FLOATS = ("float32", "bfloat16", "float16")  # that a model computes in
FORMATS = {
    name: NumberFormat(name, size)
    for name, size in {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}.items()
}
