"""Layers that stand for all while kernels are compiled ahead."""

from __future__ import annotations

from itertools import pairwise

import pytest

pytest.importorskip("triton")

from hypothesis import given
from hypothesis import strategies as st

from sgl.runtime.models.gpu.repeated_layers import distinct


@pytest.mark.parametrize(
    ("kinds", "indices"),
    [
        ("a", (0,)),
        ("aa", (0, 1)),
        ("aaaaaaaa", (0, 1, 7)),
        ("dddaaaaaaaa", (0, 1, 2, 3, 4, 10)),
        ("abababab", (0, 1, 2, 3, 6, 7)),
        ("llgllgllgllgl", (0, 1, 2, 3, 4, 5, 12)),
        ("abcdefgh", tuple(range(8))),
    ],
)
def test_patterns(kinds: str, indices: tuple[int, ...]) -> None:
    assert distinct(kinds) == indices


@given(
    st.tuples(st.text("abc", max_size=4), st.text("abc", min_size=1, max_size=9), st.integers(1, 12), st.integers(0, 9))
)
def test_every_kind_is_there_after_the_kind_before_it(parts: tuple[str, str, int, int]) -> None:
    prefix, pattern, times, cut = parts
    kinds = (prefix + pattern * times)[: -cut or None] or pattern
    kept = distinct(kinds)
    assert kept[0] == 0 and kept[-1] == len(kinds) - 1 and list(kept) == sorted(set(kept))
    walked = [(None, kinds[0]), *((kinds[before], kinds[index]) for before, index in pairwise(kept))]
    assert set(walked) == {(None, kinds[0]), *pairwise(kinds)}
