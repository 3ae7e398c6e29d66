"""What two cards keep beside pages of their own: prefixes in main memory, windows apart, states, draft
models and heads. The texts are those of one process.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
sys.path.insert(0, str(Path(__file__).parent))
from checkpoints import write_checkpoint, write_tokenizer
from draft_heads import Made, eagle3, mtp
from family_cases import FAMILIES
from family_checks import reference
from ranks_rig import alive, drawn, walk, written
from states_rig import write_case
from test_ranks_cuda import ON_CPU, OPTIONS, await_true, texts

from sgl.runtime import Engine
from sgl.runtime.errors import EngineDied

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")]

SPREADS: list[dict[str, int]] = [{"tensor_parallel": 2}, {"pipeline_parallel": 2}]
SMALL: dict[str, Any] = {
    "kv_tokens": 256,
    "page_size": 4,
    "host_kv": "2MB",
}  # what is asked again and again has no room on the cards
DRAFTING: dict[str, Any] = {"speculation": "auto"}


PROMPTS = random.Random(2).choices(drawn(8, 90), k=24)


def same(engine: Engine, ours: list[Any], asked: list[Any], what: str) -> None:
    """Says where they part, and how the engine stands then."""
    wrong = [
        (number, next((at for at, pair in enumerate(zip(*both, strict=False)) if pair[0] != pair[1]), "its length"))
        for number, both in enumerate(zip(ours, asked, strict=True))
        if both[0] != both[1]
    ]
    if wrong:
        stats = engine.stats()
        print(f"{what}: {len(wrong)} of {len(ours)} differ, (number, place): {wrong[:12]}", flush=True)
        print(f"  first: {ours[wrong[0][0]]}\n  asked: {asked[wrong[0][0]]}", flush=True)
        print(
            f"  steps {stats.steps}, cached {stats.cached_tokens}, host hits {stats.host_hits}, host tokens "
            f"{stats.host_tokens}, drafted {stats.drafted_tokens}, accepted {stats.accepted_tokens}",
            flush=True,
        )
        print(f"  {[(row['layers'], row['executor'], row['why']) for row in engine.info()['layers']]}", flush=True)
    assert not wrong, what


def close(ours: list[Any], asked: list[Any]) -> None:
    """Of two walks, in which something is drawn and scored."""
    for number, (mine, theirs) in enumerate(zip(ours, asked, strict=True)):
        assert len(mine) == len(theirs) and np.allclose(np.array(mine), np.array(theirs), atol=1e-3), (
            number,
            mine,
            theirs,
        )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), tokenizer=True)


@pytest.fixture(scope="module")
def one(tiny: Path) -> Iterator[Engine]:
    """What a GPU writes too, see test_engine_cuda.py."""
    with Engine(tiny, **ON_CPU) as engine:
        yield engine


@pytest.fixture(scope="module", params=SPREADS, ids=["ranks", "stages"])
def tiered(tiny: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """With a host tier."""
    with Engine(tiny, **OPTIONS | SMALL | request.param, poison_freed=True) as engine:
        print(
            f"host tier: {engine.info()['host_kv_bytes']} bytes, {engine.info()['kv_tokens']} tokens on the cards",
            flush=True,
        )
        yield engine


def test_prefixes_leave_both_cards_and_come_back(one: Engine, tiered: Engine) -> None:
    expected = written(one, PROMPTS)
    for turn in range(3):  # eager, then as graphs
        same(tiered, written(tiered, PROMPTS), expected, f"turn {turn}")
    stats = tiered.stats()
    print(f"{stats.host_hits} prefixes of {stats.host_tokens} tokens came back", flush=True)
    assert stats.host_hits > 20


def test_prefixes_under_a_crowd(one: Engine, tiered: Engine) -> None:
    """Several at a time, while pages leave and come back between their steps; then at random."""
    before = tiered.stats().host_hits
    for together in (2, 3):
        same(tiered, written(tiered, PROMPTS, 8, together), written(one, PROMPTS, 8, together), f"{together} together")
    close(walk(tiered, 3), walk(one, 3))
    assert tiered.stats().host_hits > before


def test_prefixes_survive_a_sleep_in_main_memory(one: Engine, tiered: Engine) -> None:
    prompts = drawn(2, 60, 9)
    expected = written(one, prompts)
    same(tiered, written(tiered, prompts), expected, "awake")
    for turn in range(2):
        assert tiered.sleep() > 0
        tiered.wake()
        before = tiered.stats().host_hits
        same(tiered, written(tiered, prompts), expected, f"woken {turn}")
        assert tiered.stats().host_hits > before, "nothing came from main memory"


@pytest.mark.parametrize("spread", SPREADS, ids=["ranks", "stages"])
def test_bits_with_a_host_tier_are_those_without(tiny: Path, spread: dict[str, int]) -> None:
    """In bfloat16, with one order of sums."""
    options, found = OPTIONS | spread | {"dtype": "bfloat16", "deterministic": True}, []
    for more in ({"kv_tokens": 4096}, SMALL):
        with Engine(tiny, **options | more) as engine:
            found.append(written(engine, PROMPTS[:12] * 2))
            print(f"{more}: {engine.stats().host_hits} prefixes came back", flush=True)
    assert found[0] == found[1]


def test_a_rank_that_ends_with_pages_in_main_memory(one: Engine, tiny: Path) -> None:
    with Engine(tiny, **OPTIONS | SMALL | SPREADS[0], heartbeat=3.0) as engine:
        expected, pids = written(one, PROMPTS[:8]), engine.info()["rank_pids"]
        same(engine, written(engine, PROMPTS[:8] * 2), expected * 2, "before")
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(EngineDied, match=r"rank 1 .*killed by SIGKILL"):
            for _ in range(100):
                written(engine, PROMPTS)
        await_true(lambda: not any(map(alive, pids)))
        await_true(lambda: engine.info()["rank_pids"] != pids and engine._core.up, 90)
        same(engine, written(engine, PROMPTS[:8] * 2), expected * 2, "behind")


# windows


WINDOWED: list[tuple[str, dict[str, int], dict[str, Any]]] = [
    ("gemma3", SPREADS[0], {"page_size": 4, "step_tokens": 64}),
    ("gemma3", SPREADS[1], {"page_size": 4, "step_tokens": 64}),
    ("gemma3", SPREADS[0], {"graphs": False, "step_tokens": 32}),
    ("mistral", SPREADS[0], {"step_tokens": 32}),
    ("gpt-oss", SPREADS[0], {"attention": "triton", "page_size": 16, "step_tokens": 64}),
    ("gpt-oss", SPREADS[1], {"graphs": False, "step_tokens": 64}),
]


@pytest.mark.parametrize("case, spread, options", WINDOWED, ids=str)
def test_both_cards_keep_the_rows_of_windows_apart(
    case: str, spread: dict[str, int], options: dict[str, Any], tmp_path: Path
) -> None:
    """Layers with a window alone, and beside others; rows are given to others while texts go on."""
    path, again = write_windowed(case, tmp_path), drawn(5, 90) * 2
    with Engine(path, **ON_CPU) as alone:
        expected, asked, at_random = texts(alone), written(alone, again, 16, 2), walk(alone, 5)
    with Engine(
        path, **OPTIONS | {"kv_tokens": 1024, "window_tokens": 512, "max_running": 4} | spread | options
    ) as engine:
        info = engine.info()
        print(
            f"{case}, {options}: {info['windows']}, {info['kv_bytes']} bytes, attention {info['attention']}", flush=True
        )
        assert info["window_tokens"] == 512
        same(engine, texts(engine), expected, "texts")
        for turn in range(2):
            same(engine, written(engine, again, 16, 2), asked, f"again {turn}")
        stats = engine.stats()
        print(
            f"{stats.window_given_back} tokens given back, {stats.window_missed} missed, {stats.cached_tokens} cached",
            flush=True,
        )
        assert stats.window_given_back > 0
        engine.sleep()  # what so small a model has may lie in blocks that stay
        engine.wake()
        same(engine, written(engine, again, 16, 2), asked, "woken")
        close(walk(engine, 5), at_random)


def write_windowed(case: str, path: Path) -> Path:
    architecture, keys = FAMILIES[case]
    reference(architecture, **keys | {"max_position_embeddings": 512}).save_pretrained(path)
    return write_tokenizer(path)


# drafts


@pytest.mark.parametrize("spread", SPREADS, ids=["ranks", "stages"])
def test_a_draft_model_on_the_first_card(tiny: Path, one: Engine, spread: dict[str, int]) -> None:
    """It guesses right, since it is the model itself, and all that it guesses is taken, whatever it costs.

    It has its place in the plan, and sleeps with the others.
    """
    expected = written(one, PROMPTS[:6], 24, 3)
    with Engine(tiny, **OPTIONS | spread, draft=tiny, speculation={"control": False}) as engine:
        info = engine.info()
        memory = info["memory"]
        print(f"draft: {info['draft']}, memory: {memory}", flush=True)
        for turn in range(2):
            same(engine, written(engine, PROMPTS[:6], 24, 3), expected, f"turn {turn}")
        stats = engine.stats()
        print(f"{stats.accepted_tokens} of {stats.drafted_tokens} guesses taken in {stats.steps} steps", flush=True)
        assert stats.accepted_tokens > 20 and info["draft"]["kind"] == "model"
        assert memory["weights"] > info["draft"]["weight_bytes"] and memory["kv"] > info["draft"]["kv_bytes"] > 0
        same(engine, texts(engine), texts(one), "with grammars")
        assert engine.sleep() > 0
        engine.wake()
        same(engine, written(engine, PROMPTS[:6], 24, 3), expected, "woken")
        close(walk(engine, 1), walk(one, 1))


@pytest.mark.parametrize("kind", [eagle3, mtp], ids=["EAGLE-3", "MTP"])
def test_a_head_on_the_states_of_two_ranks(kind: Callable[[Path], Made], tmp_path: Path) -> None:
    made, prompts = kind(tmp_path), drawn(4, 20)
    with Engine(made.target, **ON_CPU) as alone:
        expected = written(alone, prompts, 12, 2)
    with Engine(made.target, **OPTIONS | SPREADS[0], draft=made.draft, **DRAFTING) as engine:
        for turn in range(3):
            same(engine, written(engine, prompts, 12, 2), expected, f"turn {turn}")
        stats = engine.stats()
        print(f"{engine.info()['draft']}: {stats.accepted_tokens} of {stats.drafted_tokens} guesses taken", flush=True)
        assert stats.drafted_tokens > 0 and engine.info()["draft"]["kind"] in ("EAGLE-3", "MTP")
        assert engine.sleep() > 0
        engine.wake()
        same(engine, written(engine, prompts, 12, 2), expected, "woken")


def test_a_head_guesses_over_two_cards_what_it_guesses_on_one(tmp_path: Path) -> None:
    """As often right: states that are not summed, or are another step's, would lead it astray."""
    made, prompts, taken = eagle3(tmp_path), drawn(4, 20), []
    for spread in ({}, SPREADS[0]):
        with Engine(made.target, **OPTIONS | spread, draft=made.draft, speculation={"control": False}) as engine:
            written(engine, prompts, 40)
            taken.append((engine.stats().drafted_tokens, engine.stats().accepted_tokens))
    print(f"(guessed, taken) on one card and on two: {taken}", flush=True)
    assert taken[0][0] > 50 and abs(taken[0][1] - taken[1][1]) <= max(3, taken[0][1] // 10)


# states


def write_hybrid(case: str, path: Path) -> Path:
    attending, convolving = ["full_attention"] * 2, ["conv"] * 2
    apart = {"lfm2, states behind": attending + convolving, "lfm2, states in front": convolving + attending}
    return write_lfm2(path, apart[case]) if case in apart else write_tokenizer(write_case(case, path))


def write_lfm2(path: Path, kinds: list[str], context: int = 512) -> Path:
    reference(
        "Lfm2ForCausalLM", layer_types=kinds, num_hidden_layers=4, block_multiple_of=32, max_position_embeddings=context
    ).save_pretrained(path)
    return write_tokenizer(path)


OVER_RANKS = ["lfm2", "qwen 3.5", "granite 4, dense", "nemotron h, experts"]
OVER_STAGES = ["lfm2", "qwen 3.5", "olmo hybrid", "jamba", "lfm2, states behind", "lfm2, states in front"]


@pytest.mark.parametrize(
    "case, spread",
    [*((case, SPREADS[1]) for case in OVER_STAGES), *((case, SPREADS[0]) for case in OVER_RANKS)],
    ids=str,
)
def test_both_cards_keep_states_of_their_own(case: str, spread: dict[str, int], tmp_path: Path) -> None:
    """Texts with and without grammars, prompts that are asked again and longer, too
    few states for all, a sleep, and at random.
    """
    path, again = write_hybrid(case, tmp_path), drawn(3, 90) * 2 + [drawn(1, 90)[0][:60] + [7, 8, 9]]
    with Engine(path, **ON_CPU) as alone:
        expected, asked, at_random = texts(alone), written(alone, again, 8, 2), walk(alone, 5)
    with Engine(path, **OPTIONS, **spread, states=24, state_every=32) as engine:
        info = engine.info()
        print(
            f"{case}: {info['states']} states of {info['state_bytes']} bytes, stages "
            f"{[stage['layers'] for stage in info.get('stages', [])]}, layers "
            f"{[(row['layers'], row['executor'], row['why']) for row in info['layers']]}",
            flush=True,
        )
        assert info["states"] == 24 and info["state_bytes"] > 0 and len(set(info["rank_pids"])) == 2
        same(engine, texts(engine), expected, "texts")
        for turn in range(2):
            same(engine, written(engine, again, 8, 2), asked, f"again {turn}")
        assert engine.stats().cached_tokens > 0
        freed = engine.sleep()  # none, where what so small a model has lies in blocks that stay
        print(f"{freed} bytes freed", flush=True)
        assert engine.asleep and freed >= 0
        engine.wake()
        same(engine, written(engine, again, 8, 2), asked, "woken")
        close(walk(engine, 5), at_random)


@pytest.mark.parametrize(
    "spread, options",
    [
        (SPREADS[1], {"graphs": False, "step_tokens": 16}),
        (SPREADS[0], {"run_ahead": False, "page_size": 16}),
        *((spread, {"deterministic": True}) for spread in SPREADS),
    ],
    ids=str,
)
def test_states_however_steps_are(options: dict[str, Any], spread: dict[str, int], tmp_path: Path) -> None:
    path, prompts = write_hybrid("lfm2", tmp_path), drawn(6, 70)
    with Engine(path, **ON_CPU) as alone:
        expected = written(alone, prompts, 8, 3)
    with Engine(path, **OPTIONS | options, **spread) as engine:
        same(engine, written(engine, prompts, 8, 3), expected, str(options))
        same(engine, written(engine, prompts, 8, 3), expected, f"{options}, from states that were left")


def test_a_long_prompt_is_cut_between_stages(tmp_path: Path) -> None:
    """Each part of it goes on from the state that the part before has left on the card."""
    path, long = write_lfm2(tmp_path, ["conv", "full_attention", "conv", "conv"], 2048), drawn(2, 1500)
    with Engine(path, **ON_CPU) as alone:
        expected = written(alone, long, 8)
    with Engine(path, **OPTIONS, pipeline_parallel=2) as engine:
        same(engine, written(engine, long, 8), expected, "cut")
        same(engine, written(engine, long, 8), expected, "from states behind cuts")
