"""Attention to chosen tokens on a CPU, and by Triton's kernels in Triton's
interpreter, against one query and one head at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from attention_cases import Work
from attention_oracle import works
from hypothesis import given, settings
from hypothesis import strategies as st
from topk_checks import RAGGED, Choices

from sgl.runtime.attention import topk_attention as by_reference
from sgl.runtime.attention.cpu import cpu_mla_attention
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.float8_reference import FP8

NAMES = ["torch_native", *(["cpu"] if cpu_kernels.kernels else [])]
needs_kernels = pytest.mark.skipif(cpu_kernels.kernels is None, reason="needs the compiled kernels")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    yield
    cpu_kernels.set_threads(1)


@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("name", NAMES)
@given(work=works(), page_size=st.sampled_from([1, 16]), most=st.sampled_from([1, 4, 30]), seed=st.integers(0, 99))
def test_random_steps(name: str, work: Work, page_size: int, most: int, seed: int) -> None:
    cpu_kernels.set_threads(1 + seed % 3)
    world = Choices(
        work,
        most=most,
        by=((3, 4), (9, 64), (1, 4), (16, 64))[seed % 4],
        page_size=page_size,
        seed=seed,
        pages=400 if page_size == 1 else 60,
    )
    world.check(world.world.backend(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kept", [None, FP8])
def test_other_types(name: str, kept: torch.dtype | None) -> None:
    world = Choices(RAGGED, torch.bfloat16, kept=kept)
    world.check(world.world.backend(name, dtype=torch.bfloat16), tolerance=0.03 if kept is None else 0.1)


def test_many_tokens_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_reference, "ROWS", 5)
    monkeypatch.setattr(by_reference, "GATHERED", 40)
    world = Choices(RAGGED)
    world.check(world.world.backend("torch_native"))


@needs_kernels
@pytest.mark.parametrize("by", [(5, 20), (11, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_of_any_size_and_sign(dtype: torch.dtype, by: tuple[int, int]) -> None:
    """The choice is that of the law, whose sums are the same but for what
    float32 rounds; of more rows than a piece has.
    """
    world = Choices([(1100, 1), (20, 3), (600, 2)], dtype, most=77, whole=False, by=by, pages=2000)
    ours, law = (world.choose(world.world.backend(name)) for name in ("cpu", "torch_native"))
    assert torch.equal(ours.counts, law.counts)
    for row, count in enumerate(law.counts[:, 0].tolist()):
        assert torch.equal(ours.slots[row, 0, :count], law.slots[row, 0, :count])


@needs_kernels
@pytest.mark.parametrize("by", [(3, 4), (9, 64)])
def test_what_is_chosen_is_the_same_in_any_step(by: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the threads and the scores that are kept at a time; and all that
    there is has the bits of attention to all.
    """
    found = []
    for threads, room in ((1, 1 << 22), (3, 900)):
        cpu_kernels.set_threads(threads)
        monkeypatch.setattr(cpu_mla_attention, "ROOM", room)
        world = Choices([(700, 1), (5, 1), (300, 40)], whole=False, by=by, pages=1500)
        backend = world.world.backend("cpu", deterministic=True)
        chosen = world.choose(backend)
        found.append(backend.attend_topk(world.q, chosen, 0, world.world.batch))
        assert torch.equal(found[-1][1], backend.attend(world.q, None, None, 0, world.world.batch)[1])
    assert torch.equal(*found) and backend.reasons(0) == ("cpu", None)


@needs_kernels
def test_keys_in_another_dtype_are_left_to_torch() -> None:
    world = Choices(RAGGED, kept=FP8)
    backend = world.world.backend("auto", dtype=torch.float32)
    assert backend.reasons(0) == ("cpu", "in steps with more than 9 tokens of a sequence torch chooses tokens")
    world.check(backend)


@needs_kernels
def test_the_compiled_kernels_cut_and_merge_what_is_chosen() -> None:
    """Of more rows than a piece has."""
    world = Choices([(700, 1), (3, 1), (600, 2)], most=600, pages=1500)
    world.check(world.world.backend("cpu"))
