"""The samplers on a GPU choose what the CPU chooses, and the kernels' one never waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from sgl.runtime.sampling import (
    Sampler,
    SamplingBatch,
    SamplingParams,
    SamplingRow,
    launch_top_logprobs,
    make_sampler,
    top_logprobs,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"top_p": 0.9, "temperature": 0.7},
    {"top_k": 20},
    {"min_p": 0.05, "top_p": 0.5},
    {"top_n_sigma": 1.3, "temperature": 3.0},
    {"frequency_penalty": 0.5, "repetition_penalty": 1.2, "top_logprobs": 3},
    {"logit_bias": {5: 9.0}, "min_tokens": 9, "temperature": 0.3},
    {"min_p": 1.0, "logprobs": True},
]
PLAIN = OPTIONS[:5]
LLAMA = 128_256
CUDA = torch.device("cuda")


def rows_of(n: int, options: list[dict[str, Any]] = OPTIONS) -> list[SamplingRow]:
    return [
        SamplingRow(SamplingParams(**options[i % len(options)]), 31 * i, [1, 2], [2, 3], frozenset({1}))
        for i in range(n)
    ]


def random_masks(n: int, width: int, rng: np.random.Generator) -> list[np.ndarray | None]:
    masks = [rng.integers(-(2**31), 2**31 - 1, (width + 31) // 32, dtype=np.int32) for _ in range(n)]
    return [None if i % 3 == 0 else mask for i, mask in enumerate(masks)]


def normal(n: int, width: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (n, width)).astype(np.float32)).to(dtype)


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [5000, LLAMA])
def test_same_tokens_as_on_the_cpu(kernels: bool, masked: bool, dtype: torch.dtype, width: int) -> None:
    n = 64
    logits = normal(n, width, 0, dtype)
    logits[9, 5] = float("nan")
    logits[10] = -float("inf")
    masks = random_masks(n, width, np.random.default_rng(1)) if masked else None
    expected = Sampler(width - 3).sample(logits, SamplingBatch(rows_of(n)), list(range(n)), masks)
    sampler: Any = make_sampler(width - 3, CUDA) if kernels else Sampler(width - 3)
    found = sampler.sample(logits.cuda(), SamplingBatch(rows_of(n)), list(range(n)), masks)
    assert list(expected.errors) == [9, 10]
    assert found.errors == expected.errors
    assert found.ids == expected.ids
    for i, value in enumerate(expected.logprobs or []):
        if value is not None and i not in expected.errors:
            assert found.logprobs[i] == pytest.approx(value, abs=2e-3)


@pytest.mark.parametrize("options", [PLAIN, OPTIONS], ids=["plain", "all"])
def test_changing_batches_without_waiting(options: list[dict[str, Any]]) -> None:
    """Twelve steps in flight at once, each read only at the end; rows come and go, masks are new and known."""
    rng = np.random.default_rng(3)
    rows, masks = rows_of(40, options), random_masks(60, LLAMA, rng)
    sampler, oracle = make_sampler(LLAMA, CUDA), Sampler(LLAMA)
    logits = normal(40, LLAMA, 4, torch.bfloat16)
    on_device, last = logits.cuda(), torch.full((40,), -1, dtype=torch.int32, device=CUDA)
    sampler.launch(on_device, SamplingBatch(rows), [0] * 40, masks[:40], last, list(range(40)))()
    written = torch.full((40,), -1, dtype=torch.int32)
    waiting = []
    for step in range(12):
        chosen = sorted(rng.choice(40, size=int(rng.integers(1, 40)), replace=False).tolist())
        picked = [masks[int(rng.integers(60))] for _ in chosen]
        positions = [1000 + step] * len(chosen)
        part = on_device[torch.tensor(chosen, device=CUDA)]
        with no_waiting():
            batch = SamplingBatch([rows[i] for i in chosen])
            read = sampler.launch(part, batch, positions, picked, last, chosen)
        expected = oracle.launch(
            logits[chosen], SamplingBatch([rows[i] for i in chosen]), positions, picked, written, chosen
        )()
        waiting.append((read, expected))
        for i, token in zip(chosen, expected.ids, strict=True):
            rows[i].output_ids.append(max(token, 0))
    for read, expected in waiting:
        assert read().ids == expected.ids
    touched = written >= 0
    assert torch.equal(last.cpu()[touched], written[touched])


def test_a_row_alone_and_among_others() -> None:
    logits = normal(256, LLAMA, 6, torch.bfloat16).cuda()
    sampler: Any = make_sampler(LLAMA, CUDA)
    rows = rows_of(256, PLAIN)
    together = sampler.sample(logits, SamplingBatch(rows), list(range(256))).ids
    alone = [sampler.sample(logits[i : i + 1], SamplingBatch([rows[i]]), [i]).ids[0] for i in range(256)]
    assert alone == together
    assert together == Sampler(LLAMA).sample(logits.cpu(), SamplingBatch(rows), list(range(256))).ids


def test_scores_without_waiting() -> None:
    logits = normal(5, LLAMA, 7, torch.bfloat16)
    ids = [[3, 4], [], [LLAMA - 1], [0], [7, 7, 7]]
    on_device = logits.cuda()
    with no_waiting():
        read = launch_top_logprobs(on_device, ids, 4, LLAMA - 1)
    pairs, tops = read()
    expected, expected_tops = top_logprobs(logits.float(), ids, 4, LLAMA - 1)
    for row, other in zip(pairs + tops, expected + expected_tops, strict=True):
        assert [value for value, _ in row] == pytest.approx([value for value, _ in other], abs=1e-3)
    assert [[i for _, i in row] for row in pairs] == ids
