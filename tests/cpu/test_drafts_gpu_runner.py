"""Guesses on the GPU's runner, on the CPU: its kernels interpreted, its graphs
functions; the engine's texts stay the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU, tests/gpu does the same", allow_module_level=True)

from checkpoints import write_checkpoint
from draft_rig import Told, opened, speculation
from gpu_runner import pretend

from sgl.grammars import compile_regex
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.executor.cuda_runner import DRAFTED, DRAFTED_TOGETHER, SEEN_AGAIN, split_draft_rows, split_drafts
from sgl.runtime.sequences.sequence_state import ScheduledWork, SequenceState

OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "threads": 1,
    "kv_tokens": 2048,
    "max_running": 20,
    "run_ahead": True,
    "poison_freed": True,
}
TEXTS = ("The quick", "a b c a b c a", "one two")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), tokenizer=True, num_hidden_layers=2)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)


def texts(engine: Engine) -> list[list[int]]:
    params = [SamplingParams(max_tokens=14, seed=seed, temperature=seed % 2, ignore_eos=True) for seed in range(3)]
    grammar = compile_regex("(yes|no)( (yes|no)){2,4}", engine.vocabulary)
    engine._core.after_step = engine._core.check
    alone = [opened(engine, text).generate(each).result(60).token_ids for text, each in zip(TEXTS, params, strict=True)]
    together = [
        opened(engine, text).generate(each, kind)
        for text, each, kind in zip(TEXTS, params, (None, grammar, None), strict=True)
    ]
    return alone + [future.result(60).token_ids for future in together]


def test_texts(path: Path, request: pytest.FixtureRequest) -> None:
    with Engine(path, **OPTIONS) as engine:
        wanted = texts(engine)
        prompts = [tuple(engine.tokenizer.encode(text).tolist()) for text in TEXTS]
    request.getfixturevalue("as_on_a_gpu")
    for how in ("mixed", "right"):
        with Engine(path, speculation={"control": False}, page_size=4, **OPTIONS) as engine:
            speculation(engine, Told(how, dict(zip(prompts, wanted, strict=False))))
            assert texts(engine) == wanted, how
            assert engine.stats().accepted_tokens > 20
            assert {1, 16} <= {size for size, _ in engine._core.runner._static}, (
                "these were steps of three sequences at most"
            )


def sequence(length: int) -> SequenceState:
    seq = SequenceState(0)
    seq.tokens.extend(np.arange(length, dtype=np.int32))
    return seq


def test_a_step_is_taken_apart_where_that_is_little() -> None:
    one, two = sequence(9), sequence(40)
    work = [ScheduledWork(one, 8, 9), ScheduledWork(two, 37, 40)]
    assert split_drafts(work, 64) == [
        ScheduledWork(one, 8, 9),
        ScheduledWork(two, 37, 38),
        ScheduledWork(two, 38, 39),
        ScheduledWork(two, 39, 40),
    ]
    assert split_draft_rows(work, [5, 2]) == [5, 2, 2, 2]
    assert split_drafts(work, 3) is None, "more rows than the page table has"
    assert split_drafts([ScheduledWork(two, 0, DRAFTED + 1)], 64) is None, "a prompt"
    assert split_drafts([ScheduledWork(two, 20, 30)] * (DRAFTED_TOGETHER // 10 + 1), 1000) is None, (
        "no graph of so many was captured ahead"
    )
    long = sequence(SEEN_AGAIN // 4)
    assert (
        split_drafts([ScheduledWork(long, len(long) - 5, len(long))], 64)
        and split_drafts([ScheduledWork(long, len(long) - 6, len(long))], 64) is None
    ), "long texts are read once"
