"""Values that no field is meant for, and what is done with them."""

from __future__ import annotations

import decimal
import enum
import fractions
import os
import random
from typing import Any

import numpy as np
import torch

CASES = int(os.environ.get("SGL_FUZZ_CASES", "0"))  # 0: a few for each field


class Odd(enum.IntEnum):
    FIVE = 5


class Liar(int):
    """A number that is none."""

    def __lt__(self, other: object) -> bool:
        raise ArithmeticError("who is less?")

    __gt__ = __le__ = __ge__ = __lt__  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise GeneratorExit("no words")


class Mute:
    def __repr__(self) -> str:
        raise GeneratorExit

    def __index__(self) -> int:
        raise MemoryError

    def __iter__(self) -> Any:
        raise RecursionError


NUMBERS: list[Any] = [
    0,
    1,
    -1,
    2,
    2**31 - 1,
    2**31,
    -(2**31),
    2**63 - 1,
    2**63,
    2**64,
    10**19,
    10**310,
    -(10**310),
    10**5000,
    -(10**5000),
    0.5,
    1.5,
    -0.0,
    1e-310,
    5e-324,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    -float("inf"),
]
WORDS: list[Any] = ["", "x", "1", "nan", "\ud800", "\x00", "ab" * 20_000, "(" * 200]
ROWS: list[Any] = [
    [],
    [1],
    [None],
    [[]],
    [1e308],
    [10**310],
    [-1],
    [float("nan")],
    ["x"],
    [""],
    ["a", 1],
    (),
    ("",),
    ("x", "\ud800"),
    (5, 10**310),
    {},
    {"x": 1},
    {1: 10**310},
    {1: float("nan")},
    {10**310: 1},
    {-1: 1.0},
    {5: "x"},
    {5: None},
    {1.5: 2},
    {5: 1e308, 6: -1e308},
    set(),
    {5},
]
ODD: list[Any] = [
    None,
    True,
    False,
    b"x",
    1j,
    object(),
    int,
    len,
    Odd.FIVE,
    Liar(5),
    Mute(),
    decimal.Decimal("nan"),
    decimal.Decimal("1e400"),
    fractions.Fraction(1, 3),
    np.int64(5),
    np.float32("nan"),
    np.float64(0.5),
    np.array(5),
    np.array([1, 2]),
    np.array([[1], [2]]),
    np.array(["x"]),
    np.bool_(True),
    torch.tensor(5),
    torch.tensor([1.5, 2.5]),
]
VALUES = [*NUMBERS, *WORDS, *ROWS, *ODD]


def some(values: list[Any], seed: str, usual: int = 16) -> list[Any]:
    """A few of them, others for each seed; all where a long run is asked for."""
    return values if CASES else random.Random(seed).sample(values, min(usual, len(values)))
