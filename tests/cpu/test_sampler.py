"""Sampler against a slow oracle that treats every row alone, in NumPy, by sorting."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl.runtime.sampling import Sampler, SamplingBatch, SamplingParams, SamplingRow, top_logprobs
from sgl.runtime.sampling.sampling_noise import column_hash, exponential_race, noise_row_keys, seed_hash_words
from sgl.runtime.sampling.token_masks import MaskExpander, PackedMaskPool, by_bits, unpack

V = 70
END_IDS = frozenset({1, 3})
needs_kernels = pytest.mark.skipif(Sampler().kernels is None, reason="needs the compiled kernels")


def pack(allowed: np.ndarray) -> np.ndarray:
    bits = np.pad(allowed, (0, -len(allowed) % 32))
    return np.packbits(bits, bitorder="little").view(np.int32)


def noise(seed: int, position: int, width: int) -> np.ndarray:
    keys = torch.from_numpy(noise_row_keys(seed_hash_words([seed]), [position]))
    return exponential_race(keys, torch.from_numpy(column_hash(width)))[0].numpy().astype(np.float64)


def adjusted(logits: np.ndarray, row: SamplingRow, mask: np.ndarray | None) -> np.ndarray:
    p = row.params
    x = logits.astype(np.float64)
    for token in set(row.prompt_ids) | set(row.output_ids):
        if p.repetition_penalty != 1.0:
            x[token] = x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
    for token, count in Counter(row.output_ids).items():
        x[token] -= p.frequency_penalty * count + p.presence_penalty
    for token, bias in p.logit_bias.items():
        x[token] += bias
    allowed = np.ones(len(x), bool) if mask is None else unpack(mask, len(x))
    banned = np.isin(np.arange(len(x)), list(row.end_ids)) & (len(row.output_ids) < p.min_tokens)
    if mask is not None and not (allowed & ~np.isin(np.arange(len(x)), list(row.end_ids))).any():
        banned[:] = False
    x = np.where(allowed & ~banned, x, -np.inf)
    if p.top_n_sigma and not p.greedy and np.isfinite(x).any():
        x[x < x.max() - p.top_n_sigma * x[np.isfinite(x)].std()] = -np.inf
    return x


def support(x: np.ndarray, p: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """(probabilities, which tokens may be sampled), by sorting."""
    scaled = (x - x.max()) / p.temperature
    probability = np.exp(scaled) / np.exp(scaled).sum()
    order = np.argsort(-probability, kind="stable")
    ranked = probability[order]
    above = np.searchsorted(-ranked, -ranked, side="left")  # how many are likelier
    mass = np.concatenate([[0.0], np.cumsum(ranked)])[above]
    inside = np.ones(len(x), bool)
    if p.top_k > 0:
        inside &= above < p.top_k
    if p.top_p < 1:
        inside &= mass < p.top_p
    inside &= ranked >= p.min_p * ranked[0]
    kept = np.zeros(len(x), bool)
    kept[order[inside]] = True
    return probability, kept & (probability > 0)


def oracle(logits: np.ndarray, row: SamplingRow, position: int, mask: np.ndarray | None) -> int | None:
    """The token, None when nothing is allowed."""
    if np.isnan(logits).any():
        return None
    x = adjusted(logits, row, mask)
    if x.max() == -np.inf:
        return None
    if row.params.greedy:
        return int(x.argmax())
    probability, kept = support(x, row.params)
    with np.errstate(divide="ignore"):
        finish = np.where(kept, noise(row.seed, position, len(x)) / probability, -np.inf)
    return int(finish.argmax())


params_list = st.builds(
    SamplingParams,
    max_tokens=st.just(50),
    min_tokens=st.sampled_from([0, 0, 3]),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.93, 0.51, 0.07]),
    top_k=st.sampled_from([-1, 1, 2, 7, 1000]),
    min_p=st.sampled_from([0.0, 0.11, 0.53]),
    top_n_sigma=st.sampled_from([0.0, 0.0, 0.7, 2.9]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.7, -1.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.3]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.5, 0.7]),
    logit_bias=st.sampled_from([{}, {}, {5: 4.0}, {5: -100.0, 60: 2.5}, {2: -float("inf")}]),
    logprobs=st.booleans(),
    top_logprobs=st.sampled_from([0, 0, 3]),
    masked_logprobs=st.booleans(),
)
ids = st.lists(st.integers(0, V - 1), max_size=6)
rows_list = st.builds(
    SamplingRow, params_list, st.integers(0, 2**70), ids, ids, st.sampled_from([frozenset(), END_IDS])
)
masks_list = st.one_of(
    st.none(),
    st.integers(0, 2**32 - 1).map(lambda seed: pack(np.random.default_rng(seed).random(V) < 0.4)),
    st.just(pack(np.isin(np.arange(V), [1, 3]))),
    st.just(pack(np.zeros(V, bool))),
)


def make_logits(n: int, seed: int, width: int = V) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 2, (n, width)).astype(np.float32))


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(st.tuples(rows_list, masks_list), min_size=1, max_size=6),
    seed=st.integers(0, 10**6),
    nan=st.booleans(),
)
def test_every_row_like_the_oracle(rows: list[tuple[SamplingRow, Any]], seed: int, nan: bool) -> None:
    logits = make_logits(len(rows), seed)
    if nan:
        logits[0, 7] = float("nan")
    before = logits.clone()
    positions = [seed % 1000 + i for i in range(len(rows))]
    batch = SamplingBatch([row for row, _ in rows])
    expected = [oracle(logits[i].numpy(), row, positions[i], mask) for i, (row, mask) in enumerate(rows)]
    for sampler in both(V):
        samples = sampler.sample(logits, batch, positions, [mask for _, mask in rows])
        assert torch.equal(logits.nan_to_num(9e9), before.nan_to_num(9e9))
        assert samples.ids == [-1 if token is None else token for token in expected]
        assert set(samples.errors) == {i for i, token in enumerate(expected) if token is None}
        check_logprobs(samples, logits, batch, [mask for _, mask in rows])


def both(vocab_size: int | None = None) -> list[Sampler]:
    """By the compiled kernels, and by torch."""
    samplers = [Sampler(vocab_size), Sampler(vocab_size)]
    samplers[1].kernels = None
    return samplers


def check_logprobs(samples: Any, logits: torch.Tensor, batch: SamplingBatch, masks: list[Any]) -> None:
    unmasked = torch.log_softmax(logits.double(), -1)
    for i, row in enumerate(batch.rows):
        within = row.params.masked_logprobs and masks[i] is not None
        raw = torch.log_softmax(torch.where(allowed(masks[i]), logits.double(), -torch.inf), -1) if within else unmasked
        if not (row.params.logprobs or row.params.top_logprobs) or i in samples.errors:
            assert i in samples.errors or samples.logprobs is None or samples.logprobs[i] is None
            continue
        assert samples.logprobs[i] == pytest.approx(float(raw[i, samples.ids[i]]), abs=1e-4)
        top = samples.top[i]
        possible = int((raw[i] > -torch.inf).sum())
        assert len(top) == min(row.params.top_logprobs, possible)
        values, columns = raw[i].topk(len(top))
        assert [token for _, token in top] == columns.tolist()
        assert [value for value, _ in top] == pytest.approx(values.tolist(), abs=1e-4)


def allowed(mask: np.ndarray | None) -> torch.Tensor:
    return torch.ones(V, dtype=torch.bool) if mask is None else torch.from_numpy(unpack(mask, V))


@settings(max_examples=30, deadline=None)
@given(params=params_list, seed=st.integers(0, 10**6), place=st.integers(0, 31))
def test_a_row_alone_and_among_others(params: SamplingParams, seed: int, place: int) -> None:
    width = 1000
    logits = make_logits(32, seed, width)
    rows = [SamplingRow(SamplingParams(temperature=0.3 + i / 10, top_p=0.5 + i / 64), i) for i in range(32)]
    rows[place] = SamplingRow(params, seed, [1, 2], [2, 3], END_IDS)
    together = Sampler().sample(logits, SamplingBatch(rows), list(range(32)))
    alone = Sampler().sample(logits[place : place + 1], SamplingBatch([rows[place]]), [place])
    assert alone.ids[0] == together.ids[place]


SUPPORTS = [
    {"top_k": 3},
    {"top_p": 0.6},
    {"min_p": 0.2},
    {"top_k": 8, "top_p": 0.8, "min_p": 0.02},
    {"temperature": 2.0, "top_p": 0.5},
]


@pytest.mark.parametrize("options", SUPPORTS, ids=str)
def test_frequencies_follow_the_probabilities(options: dict[str, Any]) -> None:
    """Chi-square over 20,000 positions: exactly the support, and the right shares of it."""
    width, count = 24, 20_000
    logits = make_logits(1, 5, width)
    params = SamplingParams(**options)
    batch = SamplingBatch([SamplingRow(params, 11)] * 500)
    sampler, seen = Sampler(), Counter()
    for start in range(0, count, 500):
        seen.update(sampler.sample(logits.expand(500, -1), batch, list(range(start, start + 500))).ids)
    probability, kept = support(logits[0].numpy().astype(np.float64), params)
    expected = np.where(kept, probability, 0)
    expected *= count / expected.sum()
    assert {i for i in range(width) if kept[i] and expected[i] > 15} <= set(seen) <= set(np.flatnonzero(kept).tolist())
    tested = expected > 5
    chi = sum((seen[i] - expected[i]) ** 2 / expected[i] for i in np.flatnonzero(tested))
    freedom = max(int(tested.sum()) - 1, 1)
    assert chi < freedom + 5 * np.sqrt(2 * freedom) + 5


@pytest.mark.parametrize("temperature", [0.2, 1.0, 30.0])
def test_top_n_sigma_keeps_the_same_tokens_at_any_temperature(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_n_sigma=1.0)
    logits = torch.tensor([[5.0, 4.9, 3.2, 2.0, 1.0, -3.0]])  # the deviation is 2.73
    batch = SamplingBatch([SamplingRow(params, 3)] * 300)
    for sampler in both():
        seen = set(sampler.sample(logits.expand(300, -1), batch, list(range(300))).ids)
        assert seen <= {0, 1, 2} and (temperature < 1 or seen == {0, 1, 2})


@pytest.mark.parametrize("by", ["column", "position", "seed"])
def test_noise_is_uniform_and_uncorrelated(by: str) -> None:
    """Probability integral transform of the race times, over columns, positions or seeds."""
    width = 4096
    columns = torch.from_numpy(column_hash(width))
    seeds = list(range(256)) if by == "seed" else [7] * 256
    positions = list(range(256)) if by != "seed" else [3] * 256
    uniform = 1 - np.exp(
        exponential_race(torch.from_numpy(noise_row_keys(seed_hash_words(seeds), positions)), columns)
        .numpy()
        .astype(np.float64)
    )
    assert ((uniform > 0) & (uniform <= 1)).all()
    cells = np.histogram(uniform, bins=64, range=(0, 1))[0]
    mean = uniform.size / 64
    chi = float(((cells - mean) ** 2 / mean).sum())
    assert chi < 63 + 5 * np.sqrt(126)
    axis = uniform if by == "column" else uniform.T
    for shift in (1, 2, 16):
        pairs = np.corrcoef(axis[:, :-shift].ravel(), axis[:, shift:].ravel())[0, 1]
        assert abs(pairs) < 5 / np.sqrt(uniform.size)


def test_columns_far_apart_share_no_noise() -> None:
    """No two of 4,096 columns follow each other over 512 positions."""
    keys = torch.from_numpy(noise_row_keys(seed_hash_words([1] * 512), list(range(512))))
    values = exponential_race(keys, torch.from_numpy(column_hash(4096))).numpy()
    correlation = np.corrcoef(values.T)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 0.5


def test_column_hash_is_distinct() -> None:
    assert len(np.unique(column_hash(1 << 18))) == 1 << 18


def test_a_rewritten_output_is_counted_anew() -> None:
    output = [1, 1, 2]
    row = SamplingRow(SamplingParams(temperature=0, frequency_penalty=2.0), 0, [], output)
    batch, sampler = SamplingBatch([row]), Sampler()
    logits = torch.zeros(1, 4)
    for change in ([1, 1, 2], [1, 1, 2, 3], [1, 0, 3, 3], [0], [0, 2, 2]):
        output[:] = change
        counts = np.bincount(change, minlength=4)
        assert sampler.sample(logits, batch, [0]).ids == [int(counts.argmin())]


def test_a_token_that_comes_again_and_again_is_counted_each_time() -> None:
    """In steps of one token and of several."""
    rng = np.random.default_rng(3)
    output: list[int] = []
    params = SamplingParams(temperature=0, frequency_penalty=0.7, presence_penalty=0.2, repetition_penalty=1.3)
    row = SamplingRow(params, 0, [2, 5], output)
    batch, sampler = SamplingBatch([row]), Sampler()
    for fresh in rng.integers(1, 4, 40):
        output += rng.integers(0, 6, fresh).tolist()
        logits = 9 * rng.standard_normal((1, V)).astype(np.float32)
        logits[0, :6] += 40
        found = sampler.sample(torch.from_numpy(logits), batch, [len(output)]).ids
        assert found == [oracle(logits[0], row, len(output), None)]


def test_padding_columns_are_never_sampled() -> None:
    logits = torch.zeros(2, 100)
    logits[:, 90] = 50.0
    options = [{"temperature": 0.0}, {}, {"frequency_penalty": 0.1}]
    rows = [SamplingRow(SamplingParams(top_logprobs=2, **o), 1, [], [3]) for o in options]
    logits = logits.repeat(2, 1)[:3]
    samples = Sampler(80).sample(logits, SamplingBatch(rows), [0, 1, 2])
    assert max(samples.ids) < 80
    assert samples.top is not None
    assert all(token < 80 for top in samples.top if top for _, token in top)


def test_the_pool_of_masks_starts_over_when_full() -> None:
    pool = PackedMaskPool((V + 31) // 32, torch.device("cpu"), capacity=4)
    rng = np.random.default_rng(0)
    masks = [pack(rng.random(V) < 0.5) for _ in range(40)]
    for start in range(36):
        chosen = [masks[start], masks[start + 3], masks[0], masks[start]]
        assert (pool.gather(chosen).numpy() == np.stack(chosen)).all()
    assert (pool.gather(masks).numpy() == np.stack(masks)).all()
    assert (pool.gather(masks[:3]).numpy() == np.stack(masks[:3])).all()


@pytest.mark.parametrize("width", [1, 8, 31, 32, 33, 64, 100])
def test_masks_expand_bit_by_bit(width: int) -> None:
    allowed = np.random.default_rng(width).random(64) < 0.5
    values = MaskExpander(width, torch.device("cpu")).expand([pack(allowed), None]).numpy()
    expected = np.pad(allowed, (0, 64))[:width]
    assert values.shape == (2, width)
    assert ((values[0] == 0) == expected).all()
    assert (values[1] == 0).all()
    assert (unpack(pack(allowed), width) == expected).all()
    assert (by_bits(torch.from_numpy(pack(allowed)[None])).numpy()[0] == np.where(allowed, 0, -np.inf)).all()


def test_top_logprobs_of_given_tokens() -> None:
    logits = make_logits(3, 1)
    raw = torch.log_softmax(logits, -1)
    wanted = [[4], [], [6, 2, 6]]
    pairs, tops = top_logprobs(logits, wanted, 2)
    assert [[token for _, token in row] for row in pairs] == wanted
    for row, found in enumerate(pairs):
        assert [value for value, _ in found] == pytest.approx(raw[row, wanted[row]].tolist(), abs=1e-5)
    assert [token for _, token in tops[0]] == raw[0].topk(2).indices.tolist()
    assert top_logprobs(logits, [[0], [0], [0]], 0)[1] == [[], [], []]
    assert len(top_logprobs(logits, [[0], [0], [0]], 10**6)[1][0]) == V


def test_same_seed_same_text_other_seed_other_text() -> None:
    logits = torch.zeros(1, 1000)
    run = [
        Sampler().sample(logits, SamplingBatch([SamplingRow(SamplingParams(), s)]), [p]).ids[0]
        for s in (1, 1, 2)
        for p in range(5)
    ]
    assert run[:5] == run[5:10] != run[10:]
    assert len(set(run[:5])) > 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"top_p": 0.49}, {3}),
        ({"top_p": 0.51}, {2, 3}),
        ({"top_p": 0.74}, {2, 3}),
        ({"top_p": 0.76}, {0, 1, 2, 3}),
        ({"top_k": 2}, {2, 3}),
        ({"top_k": 3}, {0, 1, 2, 3}),
        ({"min_p": 1.0}, {3}),
        ({"min_p": 0.3}, {2, 3}),
        ({"top_p": 0.76, "top_k": 1000, "min_p": 0.26}, {2, 3}),
    ],
    ids=str,
)
def test_edges_of_the_support(options: dict[str, Any], expected: set[int]) -> None:
    """Probabilities 1/8, 1/8, 1/4, 1/2: ties at the edge stay in together."""
    logits = torch.tensor([[0.125, 0.125, 0.25, 0.5]]).log().expand(400, -1)
    batch = SamplingBatch([SamplingRow(SamplingParams(**options), i) for i in range(400)])
    assert set(Sampler().sample(logits, batch, [0] * 400).ids) == expected


def test_end_tokens_wait_for_min_tokens() -> None:
    logits = torch.tensor([[0.0, 9.0, 5.0]])
    for sampler in both():
        output: list[int] = []
        row = SamplingRow(SamplingParams(temperature=0, min_tokens=2), 0, [], output, frozenset({1}))
        batch = SamplingBatch([row])
        for expected in (2, 2, 1):
            output += sampler.sample(logits, batch, [len(output)]).ids
            assert output[-1] == expected


@needs_kernels
@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("seed", range(20))
def test_masks_and_logits_that_are_no_numbers(seed: int, temperature: float) -> None:
    """The kernel's largest logits are torch's: ties, infinities, NaN, masks that
    are too short, and masks that allow nothing.
    """
    draw = np.random.default_rng(seed)
    logits = torch.from_numpy(draw.integers(-3, 3, (8, V)).astype(np.float32))
    for _ in range(seed % 4):
        logits[draw.integers(8), draw.integers(V)] = float(draw.choice([np.nan, np.inf, -np.inf]))
    masks = [
        None if draw.random() < 0.2 else pack(draw.random(V) < draw.choice([0.0, 0.1, 0.9]))[: draw.choice([2, 3])]
        for _ in range(8)
    ]
    batch, sampler = (
        SamplingBatch([SamplingRow(SamplingParams(temperature=temperature), seed=n) for n in range(8)]),
        Sampler(),
    )
    found, peaks = sampler._compiled(logits, batch, range(8), masks)
    wanted, highest = sampler._chosen(logits, batch, range(8), masks)
    finite = np.isfinite(highest)
    assert (np.isfinite(peaks) == finite).all() and np.array(found)[finite].tolist() == wanted[finite].tolist()
    assert [np.isnan(peak) or peak for peak in peaks] == [np.isnan(peak) or peak for peak in highest.tolist()]


@pytest.mark.parametrize("width", [1, 31, 255, 256, 257, 8192, 151_936])
def test_wide_rows_by_the_kernel_are_those_by_torch(width: int) -> None:
    """Rows of all kinds on several threads; chances that lie far apart, and seeds of 64 bits."""
    draw = np.random.default_rng(width)
    logits = torch.from_numpy(draw.normal(0, 8, (40, width + 3)).astype(np.float32))[:, :width]
    kinds = [
        {"temperature": 0},
        {},
        {"temperature": 0.01},
        {"temperature": 100.0},
        {"top_p": 0.9, "temperature": 3.0},
        {"top_k": 40, "min_p": 0.01},
    ]
    rows = [SamplingRow(SamplingParams(**kinds[i % len(kinds)]), int(draw.integers(2**63))) for i in range(40)]
    masks = [None if i % 3 else pack(draw.random(width) < 0.5) for i in range(40)]
    compiled, by_torch = (sampler.sample(logits, SamplingBatch(rows), list(range(40)), masks) for sampler in both())
    assert compiled == by_torch


def test_columns_that_do_not_lie_beside_each_other() -> None:
    rows = SamplingBatch([SamplingRow(SamplingParams(), seed) for seed in range(3)])
    for logits in (make_logits(V, 1, 3).T, make_logits(3, 1, 2 * V)[:, ::2], make_logits(V, 1, 3).bfloat16().T):
        assert [sampler.sample(logits, rows, [0, 1, 2]).ids for sampler in both()] == [
            Sampler().sample(logits.contiguous(), rows, [0, 1, 2]).ids
        ] * 2


@needs_kernels
def test_what_the_kernel_is_given_is_checked() -> None:
    kernels, packed = Sampler().kernels, SamplingBatch([SamplingRow(SamplingParams(), 1)]).words
    logits, columns = torch.zeros(1, V), column_hash(V)
    for wrong in (
        (packed, columns, [0, 1], None, None),
        (packed, columns[:-1], [0], None, None),
        (packed, columns, [0], [], None),
        (packed, columns, [0], None, ()),
        (packed, columns, ["a"], None, None),
        (packed, columns, [0], ["a"], None),
        (packed, columns, [0], None),
    ):
        with pytest.raises((TypeError, ValueError)):
            kernels.sample(logits.data_ptr(), V, V, *wrong)
