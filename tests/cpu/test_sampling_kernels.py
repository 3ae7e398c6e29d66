"""The GPU's sampler in Triton's interpreter: the CPU sampler's tokens, and the CPU's noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sgl.runtime.sampling import Sampler, SamplingBatch, SamplingParams, SamplingRow
from sgl.runtime.sampling.sampling_noise import column_hash, exponential_race, noise_row_keys, seed_hash_words

triton = pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("tests/gpu has the same on the device", allow_module_level=True)

import triton.language as tl  # noqa: E402

from sgl.runtime.kernels import sampling_kernels as kernels  # noqa: E402
from sgl.runtime.sampling.device_sampler import DeviceSampler  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:(divide by zero|invalid value):RuntimeWarning")
CPU = torch.device("cpu")
CHUNK = 64
WIDTH = 150  # three chunks, the last one not full
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"top_p": 0.9, "temperature": 0.7},
    {"top_k": 5},
    {"min_p": 0.05, "top_p": 0.5},
    {"top_k": 1, "logprobs": True},
    {"min_p": 1.0},
    {"top_p": 0.2, "temperature": 2.0, "top_logprobs": 3, "masked_logprobs": True},
    {"frequency_penalty": 0.5, "presence_penalty": 0.3, "repetition_penalty": 1.2, "top_logprobs": 2},
    {"top_n_sigma": 1.3, "temperature": 3.0},
    {"top_n_sigma": 0.7, "top_p": 0.9, "logit_bias": {5: 9.0}, "min_tokens": 9, "presence_penalty": 0.3},
    {"logit_bias": {5: 9.0, 7: -3.0}, "min_tokens": 9, "temperature": 0.3},
]


def rows_of(n: int, options: list[dict[str, Any]] = OPTIONS) -> list[SamplingRow]:
    return [
        SamplingRow(SamplingParams(**options[i % len(options)]), i * 977 - 3, [1, 2], [2, 3], frozenset({1}))
        for i in range(n)
    ]


def random_masks(n: int, rng: np.random.Generator) -> list[np.ndarray | None]:
    words = (WIDTH + 31) // 32
    masks = [rng.integers(-(2**31), 2**31 - 1, words, dtype=np.int32) for _ in range(n)]
    return [None if i % 3 == 0 else mask for i, mask in enumerate(masks)]


@triton.jit
def _noise(keys, words, positions, out, width, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    offset, factor = kernels._row_key(words, tl.load(positions))
    tl.store(keys, offset)
    tl.store(keys + 1, factor)
    tl.store(out + columns, kernels._variates(columns, offset, factor), columns < width)


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (2**64 - 1, 131_071), (-5, 4096)])
def test_the_noise_is_the_noise_of_the_cpu(seed: int, position: int) -> None:
    words = seed_hash_words([seed])
    keys, out = torch.zeros(2, dtype=torch.int32), torch.zeros(4096)
    _noise[(1,)](
        keys, torch.from_numpy(words.view(np.int32)), torch.tensor([position], dtype=torch.int32), out, 4096, BLOCK=4096
    )
    expected = noise_row_keys(words, [position])
    assert keys.tolist() == expected[0].tolist()
    there = exponential_race(torch.from_numpy(expected), torch.from_numpy(column_hash(4096)))[0]
    torch.testing.assert_close(out, there, rtol=1e-6, atol=0)


def hashed_to(target: int) -> int:
    """A column word whose last mixing steps in `noise.exponential_race` end at
    `target`; both shifts are undone by themselves.
    """
    for word in (target ^ (target >> 15) ^ (target >> 30), ~(target ^ (target >> 15) ^ (target >> 30))):
        product = word * pow(0x7FEB352D, -1, 1 << 32) % (1 << 32)
        if product < 1 << 31:
            return product ^ (product >> 16)
    raise AssertionError(f"no word leads to {target}")


@triton.jit
def _one_variate(offset, out):
    tl.store(out + tl.arange(0, 1), kernels._variates(tl.arange(0, 1), tl.load(offset), 1))


@pytest.mark.parametrize("target", [0, 2**31 - 2])
def test_the_smallest_and_the_largest_variate_are_finite(target: int) -> None:
    word = hashed_to(target)
    there = exponential_race(torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([word], dtype=torch.int32))[0]
    assert there.isfinite().all() and (there < 0).all()
    offset, here = torch.tensor([word - int(column_hash(1)[0])]).to(torch.int32), torch.zeros(1)
    _one_variate[(1,)](offset, here)
    torch.testing.assert_close(here, there, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("dtype", "masked", "plain"),
    [(torch.float32, True, False), (torch.float16, True, True), (torch.bfloat16, False, False)],
)
def test_same_tokens_as_the_cpu_sampler(dtype: torch.dtype, masked: bool, plain: bool) -> None:
    """`plain` has no penalties, so that the kernels read the model's own dtype."""
    n, rng = 22, np.random.default_rng(1)
    logits = torch.from_numpy(rng.normal(0, 3, (n, WIDTH + 6)).astype(np.float32)).to(dtype)
    logits[4, 5] = float("nan")
    logits[12, :] = -float("inf")
    logits[21, 8] = float("inf")
    logits[:, WIDTH:] = 99.0
    masks = random_masks(n, rng) if masked else None
    if masks is not None:
        masks[16] = np.zeros((WIDTH + 31) // 32, np.int32)
        masks[19] = np.array([0, 0, 1 << 9, 0, 0], np.int32)
    before = logits.clone()
    positions = [100 + 7 * i for i in range(n)]
    batch = SamplingBatch(rows_of(n, OPTIONS[:8] if plain else OPTIONS))
    expected = Sampler(WIDTH).sample(logits, batch, positions, masks)
    last = torch.full((2 * n,), -7, dtype=torch.int32)
    places = [2 * i + 1 for i in range(n)]
    device = DeviceSampler(WIDTH, CPU, chunk=CHUNK)
    found = device.launch(logits, batch, positions, masks, last, places)()
    assert found.ids == expected.ids
    assert found.errors == expected.errors and {4, 12, 21} <= set(found.errors)
    assert last.tolist() == [v for i in expected.ids for v in (-7, max(i, 0))]
    assert torch.equal(logits.nan_to_num(9e4), before.nan_to_num(9e4))
    check_logprobs(found, expected)


def check_logprobs(found: Any, expected: Any) -> None:
    assert found.logprobs is not None and found.top is not None
    for i, (one, other) in enumerate(zip(found.logprobs, expected.logprobs, strict=True)):
        if i not in expected.errors:
            assert one == (other if other is None else pytest.approx(other, abs=1e-4))
            assert found.top[i] is None or [t for _, t in found.top[i]] == [t for _, t in expected.top[i]]


def test_frequent_rejection_on_a_flat_row() -> None:
    """Equal and nearly equal logits: many rounds, ties at the edge, and no endless race."""
    logits = torch.zeros(16, WIDTH)
    logits[8:] = torch.linspace(0, 1e-3, WIDTH)
    options = [{"top_k": 2}, {"top_p": 0.01}, {"min_p": 1.0}, {"top_k": 1000}]
    batch = SamplingBatch(rows_of(16, options))
    expected = Sampler(WIDTH).sample(logits, batch, list(range(16)))
    found = DeviceSampler(WIDTH, CPU, chunk=CHUNK).sample(logits, batch, list(range(16)))
    assert found.ids == expected.ids


def test_a_row_alone_among_others_and_over_steps() -> None:
    """Changing batches, masks seen before and new, a pool that starts over."""
    rng = np.random.default_rng(3)
    sampler, oracle = DeviceSampler(None, CPU, chunk=CHUNK), Sampler()
    rows, known = rows_of(12), random_masks(24, rng)
    for step in range(3):
        chosen = sorted(rng.choice(12, size=rng.integers(1, 5), replace=False).tolist())
        masks = [known[int(rng.integers(24))] for _ in chosen]
        logits = torch.from_numpy(rng.normal(0, 3, (len(chosen), WIDTH)).astype(np.float32))
        batch = SamplingBatch([rows[i] for i in chosen])
        found = sampler.sample(logits, batch, [step] * len(chosen), masks)
        assert found.ids == oracle.sample(logits, batch, [step] * len(chosen), masks).ids
        alone = sampler.sample(logits[:1], SamplingBatch([rows[chosen[0]]]), [step], masks[:1])
        assert alone.ids == found.ids[:1]
        for i, token in zip(chosen, found.ids, strict=True):
            rows[i].output_ids.append(max(token, 0))


def test_places_on_the_device_and_on_the_host() -> None:
    logits = torch.from_numpy(np.random.default_rng(0).normal(0, 3, (4, WIDTH)).astype(np.float32))
    batch = SamplingBatch(rows_of(4))
    places = [3, 0, 2, 5]
    for sampler in (Sampler(WIDTH), DeviceSampler(WIDTH, CPU, chunk=CHUNK)):
        for given in (places, np.array(places), torch.tensor(places, dtype=torch.int32)):
            last = torch.full((6,), -1, dtype=torch.int32)
            ids = sampler.launch(logits, batch, [9] * 4, None, last, given)().ids
            assert last[places].tolist() == ids
            assert int((last == -1).sum()) == 2


def test_warming_up_samples() -> None:
    DeviceSampler(WIDTH, CPU, chunk=CHUNK).warm(torch.bfloat16, WIDTH)
