"""Delta nets, KDA, Mamba 1 and 2, and what they stand beside, in an engine: the texts are those of cold runs."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import torch
from states_rig import HYBRIDS, Make, abort_some, make, paths, prompt, run, settled, walk, write_case
from test_deterministic import embedded, needs_kernels, together
from test_scheduler_pressure import FOREVER, some

from sgl.grammars import compile_regex
from sgl.runtime import SamplingParams
from sgl.runtime.errors import ConfigError
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.loading import load_config
from sgl.runtime.models.chunk_invariance import require_exact

__all__ = ["make", "paths"]

SOME = ("qwen 3.5", "mamba", "nemotron h, experts", "falcon h1, multipliers")
CLOSE = 2e-3  # of log-probabilities: sums are taken in another order where a prompt is cut at another token


def same(found: Any, expected: Any) -> None:
    assert found.token_ids == expected.token_ids
    assert [value for value, _ in found.logprobs] == pytest.approx([value for value, _ in expected.logprobs], abs=CLOSE)


@pytest.mark.few(4)
@pytest.mark.parametrize("case", HYBRIDS)
def test_a_prefix_may_end_anywhere(case: str, make: Make) -> None:
    """Snapshots behind every page are found at every offset at which one was left."""
    engine, quiet, shared = make(case, state_every=8, page_size=4), make(case), prompt(1, 70)
    run(engine, shared)
    for cut in range(1, 70, 7):
        tokens = shared[:cut] + prompt(cut, 2)
        quiet.flush_cache()
        found = run(engine, tokens, 3, logprobs=True)
        same(found, run(quiet, tokens, 3, logprobs=True))
        assert found.cached_tokens >= cut - cut % 8 - 4


@pytest.mark.few(4)
@pytest.mark.parametrize("case", HYBRIDS)
def test_forks_scores_and_cuts(case: str, make: Make) -> None:
    engine, quiet = make(case, run_ahead=True), make(case)
    tokens, parent = prompt(8, 61), engine.open()
    parent.extend(tokens)
    children = parent.fork(3)
    tails = [prompt(index, 2 * index) for index in range(3)]
    for child, tail in zip(children, tails, strict=True):
        child.extend(tail)
    futures = [each.generate(some(8)) for each in (parent, *children)]
    choices = [prompt(100 + n, 1 + n) for n in range(3)]
    scores = children[2].score(choices)
    texts = [future.result(FOREVER).token_ids for future in futures]
    assert texts == [run(quiet, tokens + tail, 8).token_ids for tail in ([], *tails)]
    other = quiet.open()
    other.extend(tokens + tails[2] + texts[3])
    for ours, theirs in zip(scores.result(FOREVER), other.score(choices).result(FOREVER), strict=True):
        assert ours[0] == pytest.approx(theirs[0], abs=CLOSE)
    children[0].extend([7], drop=5)
    rest = children[0].generate(some(4)).result(FOREVER).token_ids
    assert rest == run(quiet, (tokens + tails[0] + texts[1])[:-5] + [7], 4).token_ids
    for each in (parent, *children):
        each.close()
    settled(engine)


@pytest.mark.parametrize("case", SOME)
def test_forced_text_takes_tokens_back(case: str, make: Make) -> None:
    engine, quiet, pattern = (
        make(case, run_ahead=True),
        make(case),
        r"[ab]{3} the end of it all [cd]{4}, and then (one|another) thing",
    )
    sequence, tokens = engine.open(), prompt(20, 50)
    sequence.extend(tokens)
    made = sequence.generate(
        SamplingParams(max_tokens=80, temperature=0), compile_regex(pattern, engine.vocabulary)
    ).result(FOREVER)
    rest = sequence.generate(some(6)).result(FOREVER).token_ids
    assert made.forced_tokens and re.fullmatch(pattern, made.text)
    assert rest == run(quiet, tokens + made.token_ids, 6).token_ids


@pytest.mark.parametrize("case", SOME)
def test_sleeping_other_weights_and_aborts(case: str, make: Make, tmp_path: Any) -> None:
    engine, tokens = make(case, run_ahead=True), prompt(13, 60)
    expected = run(engine, tokens, 6).token_ids
    assert engine.sleep() >= engine.info()["state_bytes"] and engine._core.runner.memory.bytes == 0
    engine.wake()
    assert run(engine, tokens, 6).token_ids == expected
    before = str(engine.info()["model_path"])
    engine.update_weights(write_case(case, tmp_path, seed=1))
    assert run(engine, tokens, 6).token_ids != expected
    engine.update_weights(before)
    assert run(engine, tokens, 6).token_ids == expected
    abort_some(engine, 3)


@pytest.mark.few(4)
@pytest.mark.parametrize("case", HYBRIDS)
def test_everything_at_once(case: str, make: Make) -> None:
    """More of it in tests/slow."""
    assert walk(make, case, random.Random(case).randrange(60), 40) > 3


@pytest.mark.few(2)
@needs_kernels
@pytest.mark.parametrize("case", ["qwen 3.5", "kimi linear", "mamba", "falcon h1, multipliers"])
def test_bits_do_not_depend_on_the_batch(case: str, make: Make) -> None:
    engine, cut = make(case, deterministic=True), make(case, deterministic=True, step_tokens=7, max_running=3)
    expected = together(engine)
    assert together(engine) == expected and engine.stats().cached_tokens > 100
    assert together(cut) == expected and embedded(cut) == embedded(engine)


def test_deterministic_is_refused_where_prompts_run_in_chunks(paths: Any) -> None:
    pytest.importorskip("triton")
    model = load_config(paths("falcon h1, multipliers"))
    with pytest.raises(
        ConfigError,
        match=r"deterministic=True\): layer 0 \(Mamba2\) computes prompts by chunks of tokens on cuda \(attention "
        r"in parallel with Mamba is none of its parts\)",
    ):
        require_exact(model, torch.device("cuda"), torch.bfloat16)
    for other in (model, load_config(paths("mamba"))):
        if cpu_kernels.kernels is not None:
            require_exact(other, torch.device("cpu"), torch.float32)
    for case in ("mamba", "qwen 3.5"):
        require_exact(load_config(paths(case)), torch.device("cuda"), torch.bfloat16)
