"""Attention to chosen tokens on a CPU, and by Triton's kernels in Triton's interpreter, against one query and one head at a time."""

from __future__ import annotations

import pytest
import torch
from attention_cases import Work
from attention_oracle import works
from choice_checks import RAGGED, Choices
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl.runtime.attention import chosen as by_law
from sgl.runtime.layers import cpu
from sgl.runtime.layers.float8 import FP8

NAMES = ["torch_native", *(["cpu"] if cpu.kernels else [])]
needs_kernels = pytest.mark.skipif(cpu.kernels is None, reason="needs the compiled kernels")


@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("name", NAMES)
@given(work=works(), page_size=st.sampled_from([1, 16]), most=st.sampled_from([1, 4, 30]), seed=st.integers(0, 99))
def test_random_steps(name: str, work: Work, page_size: int, most: int, seed: int) -> None:
    world = Choices(work, most=most, page_size=page_size, seed=seed, pages=400 if page_size == 1 else 60)
    world.check(world.world.backend(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kept", [None, FP8])
def test_other_types(name: str, kept: torch.dtype | None) -> None:
    world = Choices(RAGGED, torch.bfloat16, kept=kept)
    world.check(world.world.backend(name, dtype=torch.bfloat16), tolerance=0.03 if kept is None else 0.1)


def test_many_tokens_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_law, "ROWS", 5)
    monkeypatch.setattr(by_law, "GATHERED", 40)
    world = Choices(RAGGED)
    world.check(world.world.backend("torch_native"))


@needs_kernels
def test_the_compiled_kernels_cut_and_merge_what_is_chosen() -> None:
    """Of more rows than a piece has."""
    world = Choices([(700, 1), (3, 1), (600, 2)], most=600, pages=1500)
    world.check(world.world.backend("cpu"))
