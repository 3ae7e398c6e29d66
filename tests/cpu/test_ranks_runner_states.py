"""What ranks on GPUs keep beside pages on their cards, on the CPU, kernels interpreted: pages in main memory,
states of stages, heads and draft models. The texts are those of one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with GPUs, tests/gpu does the same", allow_module_level=True)

from checkpoints import write_checkpoint, write_tokenizer
from draft_heads import mtp
from ranks_rig import drawn, written
from states_rig import write_case
from test_draft_heads import drafter, opened_with
from two_gpu_rig import cards
from windows_rig import Make, make, paths, quiet

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.executor.draft_head_steps import ObservedSteps
from sgl.runtime.parallel.workers.worker_channel import TELL

__all__ = ["make", "paths"]

OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "threads": 1,
    "kv_tokens": 128,
    "page_size": 4,
    "max_running": 4,
    "run_ahead": True,
    "poison_freed": True,
}


def texts(engine: Engine, prompts: list[list[int]], together: int = 2, count: int = 4) -> list[list[int]]:
    return written(engine, prompts, count, together)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), tokenizer=True, num_hidden_layers=2)


@pytest.mark.whole
@pytest.mark.parametrize("stages", [1, 2], ids=["ranks", "stages"])
def test_prefixes_leave_both_cards_and_come_back(stages: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind a sleep, in which pages in main memory stay."""
    prompts, options = drawn(5, 41) * 2, OPTIONS | {"host_kv": "500KB"}
    with Engine(path, **options | {"kv_tokens": 2048, "host_kv": 0}) as roomy:
        expected = texts(roomy, prompts)
    made = cards(path, monkeypatch, stages)
    with Engine(path, **options) as engine:
        engine._core.after_step = engine._core.check
        assert texts(engine, prompts) == expected
        before = engine.stats()
        assert before.host_hits > 3 and engine.sleep() > 0
        engine.wake()
        assert texts(engine, prompts[:5]) == expected[:5] and engine.stats().host_hits > before.host_hits
    card, _ = made
    card.idle()
    assert card.told.count(TELL) > 10


@pytest.mark.few(1)
@pytest.mark.parametrize("case, stages", [("lfm2", 2), ("jamba", 2), ("lfm2", 1)])
def test_both_cards_keep_states_of_their_own(
    case: str, stages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forks, prefixes that are asked again, prompts that are cut in steps and
    between stages; too few states for all of it.
    """
    path = write_tokenizer(write_case(case, tmp_path))
    prompts = [*drawn(2, 30), *drawn(1, 3), *drawn(2, 30), drawn(1, 30)[0][:19] + [7, 8, 9]]
    options = OPTIONS | {"kv_tokens": 512, "step_tokens": 20, "states": 8, "state_every": 12}
    with Engine(path, **options | {"states": 80}) as roomy:
        expected = texts(roomy, prompts) + forks(roomy)
    made = cards(path, monkeypatch, stages)
    with Engine(path, **options) as engine:
        engine._core.after_step = engine._core.check
        assert texts(engine, prompts) + forks(engine) == expected
        card, leader = made
        assert engine.sleep() > 0
        engine.wake()
        assert texts(engine, prompts[:2]) == expected[:2]
        assert leader.memory.tensors and card.follower._memory.tensors and (stages == 1 or max(leader.links.parts) > 1)


def forks(engine: Engine) -> list[list[int]]:
    sequence = engine.open()
    sequence.extend(drawn(1, 30, 5)[0])
    children = sequence.fork(3)
    for index, child in enumerate(children):
        child.extend([40 + index] * (1 + index))
    futures = [child.generate(SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)) for child in children]
    found = [future.result(60).token_ids for future in futures]
    for each in (sequence, *children):
        each.close()
    return found


def test_a_head_on_the_states_of_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_head = mtp(tmp_path)
    prompts, options = drawn(2, 12), OPTIONS | {"kv_tokens": 512, "run_ahead": None}
    with Engine(made_head.target, **options) as alone:
        expected = texts(alone, prompts, 3, 8)
    made = cards(made_head.target, monkeypatch)
    with opened_with(made_head, **options) as engine:
        seen = watched(engine)
        assert texts(engine, prompts, 3, 8) == expected
        assert (
            isinstance(made[1].steps, ObservedSteps)
            and made[0].follower.model.capture.layers == made[1].model.capture.layers
        )
    assert len(seen) > 5
    for tokens, draft in seen[::4]:
        for place, token in enumerate(draft[:2]):
            logits = made_head.logits(tokens, draft[:place])[: 315 if made_head.ids is None else None]
            column = token if made_head.ids is None else made_head.ids.tolist().index(token)
            assert logits[column] >= logits.max() - 1e-3, (tokens, draft, place)


def watched(engine: Engine) -> list[tuple[list[int], list[int]]]:
    """What is guessed from here on, behind which tokens."""
    model, propose, seen = drafter(engine), drafter(engine).propose, []

    def kept(work: Any, wanting: Any) -> Any:
        found = propose(work, wanting)
        seen.extend((seq.tokens.array.tolist(), list(draft.tokens)) for seq, draft in found.items())
        return found

    model.propose = kept
    return seen


@pytest.mark.few(1)
@pytest.mark.parametrize("stages", [1, 2], ids=["ranks", "stages"])
def test_a_draft_model_on_the_first_card(stages: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, options = drawn(3, 12), OPTIONS | {"kv_tokens": 512, "run_ahead": None}
    with Engine(path, **options) as alone:
        expected = texts(alone, prompts, 3, 10)
    cards(path, monkeypatch, stages)
    with Engine(path, **options, draft=path, speculation="auto") as engine:
        assert texts(engine, prompts, 3, 10) == expected
        assert engine.stats().accepted_tokens > 3 and engine.info()["draft"]["kind"] == "model"


@pytest.mark.whole
@pytest.mark.parametrize("case, page_size, stages", [("gpt-oss", 4, 1), ("gemma2", 1, 2), ("gpt-oss", 1, 2)])
def test_both_cards_keep_the_rows_of_windows_apart(
    case: str, page_size: int, stages: int, make: Make, paths: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are given to others while texts go on; what is asked again is there up to a window."""
    prompts = [*drawn(2, 50), drawn(1, 50)[0][:40] + [5, 6]]
    cold = quiet(make, case)
    expected = texts(cold, prompts, 2, 5) + forks(cold)
    made = cards(paths(case), monkeypatch, stages)
    engine = make(
        case, kv_tokens=400, window_tokens=160, page_size=page_size, step_tokens=24, max_running=4, run_ahead=True
    )
    assert engine.info()["window_tokens"] == 160
    assert texts(engine, prompts, 2, 5) + forks(engine) == expected
    assert engine.stats().window_given_back and engine.stats().cached_tokens
    card, leader = made
    card.idle()
    theirs = card.follower.runner.windows
    pages, _ = leader.windows.moved()
    assert (
        theirs is not leader.windows
        and np.delete(theirs.where, pages).tolist() == np.delete(leader.windows.where, pages).tolist()
        and theirs.where.any()
    )
