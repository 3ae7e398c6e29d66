"""Latent attention in an engine: rows are shared, forked, moved, stored in eight
bits and counted as keys and values are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_tokenizer
from family_cases import write_family
from states_rig import Walk, settled
from test_scheduler_pressure import FOREVER, some
from test_scheduler_random import Mix
from test_states_programs import soak, unlogged

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.calibration.quantize_checkpoint import quantize
from sgl.runtime.errors import ConfigError
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.loading import describe

__all__ = ["unlogged"]

Make = Callable[..., Engine]
ROW = 32 + 8  # numbers of a token and layer
BACKEND = "cpu" if cpu_kernels.kernels else "torch_native"


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    found: dict[str, Path] = {}

    def path(case: str) -> Path:
        if case not in found:
            found[case] = write_tokenizer(
                write_family(case, tmp_path_factory.mktemp("latent"), max_position_embeddings=512)
            )
        return found[case]

    return path


@pytest.fixture
def make(paths: Callable[[str], Path]) -> Iterator[Make]:
    made: list[Engine] = []

    def open_one(case: str = "deepseek v3", **options: Any) -> Engine:
        chosen = {"dtype": "float32", "threads": 1, "kv_tokens": 2048, "poison_freed": True, "device": "cpu"} | options
        made.append(Engine(paths(case), **chosen))
        made[-1]._core.after_step = made[-1]._core.check
        return made[-1]

    yield open_one
    for engine in made:
        engine.close()


def walk(make: Make, case: str, seed: int, moves: int) -> int:
    """How many texts of random requests on too small a pool were compared with those of an engine with room."""
    engine = make(
        case, kv_tokens=300, page_size=(1, 3)[seed % 2], step_tokens=24, max_running=5, run_ahead=seed % 4 > 1
    )
    mix = Walk(engine, make(case, kv_tokens=4096), seed)
    mix.play(moves)
    compared = mix.settle()
    mix.sequences.clear()
    for pin in mix.pins:
        pin.release()
    settled(engine)
    assert not engine._core.life.scheduler.counters.present
    return compared


def programs(make: Make, case: str, seed: int, count: int) -> int:
    """The same of programs in the language."""
    return soak(lambda case, states=0, **options: make(case, **{"kv_tokens": 4096} | options), case, seed, count)


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(4, 320), k=length)


def run(engine: Engine, tokens: list[int], count: int = 12) -> Any:
    sequence = engine.open()
    sequence.extend(tokens)
    return sequence.generate(SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)).result(FOREVER)


@pytest.mark.few(3)
@pytest.mark.parametrize("case", ["deepseek v3", "minicpm 3", "deepseek v3.2", "glm 5, shared"])
@pytest.mark.parametrize("seed", range(3))
def test_everything_at_once(case: str, seed: int, make: Make) -> None:
    """Forks, choices, pins and aborts, too few pages, main memory behind them."""
    engine = make(
        case,
        kv_tokens=300,
        page_size=(1, 4)[seed % 2],
        step_tokens=24,
        max_running=5,
        host_kv="1MB",
        run_ahead=seed == 2,
    )
    mix = Mix(engine, make(case), seed)
    mix.play(60)
    assert mix.settle() > 5


@pytest.mark.parametrize("seed", range(2))
def test_random_requests_with_stops_leave_nothing(seed: int, make: Make) -> None:
    """More of it in tests/slow."""
    assert walk(make, "deepseek v3", seed, 40) > 3


def test_programs_side_by_side_are_those_alone(make: Make) -> None:
    for seed in range(2):
        assert programs(make, "deepseek v3", seed, 8) > 5


def test_a_prompt_that_is_there_is_not_computed_again(make: Make) -> None:
    engine, tokens = make(page_size=4), prompt(1, 61)
    first, again = run(engine, tokens), run(engine, tokens)
    assert first.token_ids == again.token_ids and (first.cached_tokens, again.cached_tokens) == (0, 60)
    parent = engine.open()
    parent.extend(tokens)
    children = parent.fork(3)
    before = engine.stats().computed_tokens
    for index, child in enumerate(children):
        child.extend(prompt(index, index))
    found = [future.result(FOREVER).token_ids for future in [child.generate(some(8)) for child in children]]
    assert engine.stats().computed_tokens - before < 3 * 16
    quiet = make()
    assert found == [run(quiet, tokens + prompt(index, index), 8).token_ids for index in range(3)]


def test_a_token_takes_one_row_a_layer(make: Make, paths: Callable[[str], Path]) -> None:
    engine = make(kv_tokens=64, page_size=1)
    assert engine._core.runner.attention.pool.bytes == engine.info()["kv_bytes"] == 65 * 4 * ROW * 4
    assert describe(paths("deepseek v3")).attention.bytes_per_slot(torch.bfloat16) == 4 * ROW * 2
    rows = engine.info()["layers"]
    assert {row["attention"] for row in rows} == {BACKEND} and {row["executor"] for row in rows} == {"torch"}
    assert all(row["parts"].startswith("latent attention 4 heads, rows of 32 + 8, queries of 24") for row in rows)
    assert {row["why"] for row in rows} <= {"latent attention is none of its parts", None}


def test_keys_of_an_indexer_take_memory_too(make: Make) -> None:
    """Where keys have eight bits they have sixteen; the layers that share a choice store none."""
    for options, row, own in (({}, 4 * ROW, 4 * 12), ({"kv_dtype": "fp8"}, ROW, 2 * 12)):
        for case, full in (("deepseek v3.2", 4), ("glm 5, shared", 2)):
            assert make(case, kv_tokens=64, **options).info()["kv_bytes"] == 65 * (4 * row + full * own)
    engine = make("glm 5, shared", kv_dtype="fp8")
    why = (
        "in steps with more than 5 tokens of a sequence torch chooses "
        f"tokens{'' if cpu_kernels.kernels else ' and attends to them'}"
    )
    assert engine.info()["slower"][-1] == f"4 of 4 layers use {BACKEND} attention: {why}"
    rows = engine.info()["layers"]
    assert [row["parts"].partition(", 5 tokens chosen by ")[2].partition(";")[0] for row in rows][:2] == [
        "16 heads of 12",
        "the layer before",
    ]


def test_eight_bits_under_an_indexer(make: Make) -> None:
    engine, tokens = make("deepseek v3.2", kv_dtype="fp8"), prompt(3, 40)
    first, again = run(engine, tokens), run(engine, tokens)
    assert first.token_ids == again.token_ids and again.cached_tokens == 39


@pytest.mark.skipif(not cpu_kernels.kernels, reason="needs the compiled kernels")
@pytest.mark.parametrize("case", ["deepseek v3.2", "glm 5, shared"])
def test_bits_of_what_is_chosen(case: str, make: Make) -> None:
    """Whole, in chunks, and from the cache beside others; torch's sums would depend on these."""
    found = []
    for options in ({}, {"step_tokens": 7}, {"page_size": 4}):
        engine = make(case, deterministic=True, **options)
        found.append(scores(engine))
        others = [engine.open() for _ in range(3)]
        for index, sequence in enumerate(others):
            sequence.extend(prompt(5, 40 - index))
        again = [sequence.logprobs(1) for sequence in others]
        found.append(torch.tensor([value for value, _ in again[0].result(FOREVER)[0]]))
    assert all(torch.equal(found[0], other) for other in found)
    assert not any("attention" in line.partition(":")[0] for line in engine.info()["slower"])
    with pytest.raises(
        ConfigError,
        match=r"deterministic=True\): in steps with more than .* torch chooses tokens by sums whose bits depend",
    ):
        make(case, deterministic=True, kv_dtype="fp8")


@pytest.mark.parametrize("attention", ["torch_native", BACKEND])
def test_rows_in_eight_bits(attention: str, make: Make) -> None:
    engine, plain, tokens = make("minicpm 3", kv_dtype="fp8", attention=attention), make("minicpm 3"), prompt(3, 40)
    first, again = run(engine, tokens), run(engine, tokens)
    assert first.token_ids == again.token_ids and again.cached_tokens == 39
    assert engine.info()["kv_bytes"] * 4 == plain.info()["kv_bytes"]
    scores = [each.open() for each in (engine, plain)]
    for sequence in scores:
        sequence.extend(tokens)
    ours, theirs = (
        torch.tensor([value for value, _ in sequence.logprobs(1).result(FOREVER)[0]]) for sequence in scores
    )
    assert (ours - theirs).abs().mean() < 0.3


@pytest.mark.parametrize("case", ["deepseek v3", "deepseek v3.2"])
def test_sleep_and_wake(case: str, make: Make) -> None:
    engine, tokens = make(case, host_kv="1MB"), prompt(4, 50)
    expected = run(engine, tokens).token_ids
    engine.sleep()
    engine.wake()
    again = run(engine, tokens)
    assert again.token_ids == expected and again.cached_tokens


def scores(engine: Engine) -> torch.Tensor:
    sequence = engine.open()
    sequence.extend(prompt(5, 40))
    return torch.tensor([value for value, _ in sequence.logprobs(1).result(FOREVER)[0]])


def test_quantised_projections_around_a_plain_latent(make: Make, paths: Callable[[str], Path], tmp_path: Path) -> None:
    """While loading, and by the tool, whose file is read back; what makes keys
    and values of a latent stays as it was.
    """
    quantize(paths("deepseek v3"), tmp_path / "eight", "int8")
    expected, options = scores(make()), {"dtype": "float32", "threads": 1, "kv_tokens": 512, "device": "cpu"}
    assert (scores(make(weights="int8")) - expected).abs().mean() < 0.2
    with Engine(tmp_path / "eight", **options) as engine:
        assert (scores(engine) - expected).abs().mean() < 0.2
