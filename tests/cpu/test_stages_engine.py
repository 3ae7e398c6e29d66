"""An engine of several stages: the texts of one, whatever its sequences do and the model keeps;
a stage that ends, or is silent, ends it aloud.
"""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
import torch
import transformers
from checkpoints import write_tokenizer
from peft_adapters import make_adapter
from ranks_adapters import refuses_bad_adapters, texts, with_adapters, with_kinds, with_other_weights
from ranks_rig import alive, same, two_tiers, updated, walk
from server_rig import await_true
from states_rig import write_case

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import ConfigError, EngineDied

OPTIONS = {"dtype": "float32", "threads": 1, "kv_tokens": 2048, "max_running": 8}
STAGES = OPTIONS | {"pipeline_parallel": 2}
DRAFTS = {"speculation": "auto"}  # by a model, which rank 0 has whole
OF_MIXERS = {
    "mamba 2": {"target_modules": ["in_proj"]},
    "deepseek v3": {
        "target_modules": ["q_b_proj", "kv_a_proj_with_mqa", "down_proj"],
        "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    },
}
KINDS = [
    {"pipeline_parallel": 2},
    {"pipeline_parallel": 3} | DRAFTS,
    {"pipeline_parallel": 2, "tensor_parallel": 2} | DRAFTS,
]


@pytest.fixture(scope="module")
def one(tiny):
    with Engine(tiny, **OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module", params=KINDS, ids=["2", "3", "2x2"])
def several(tiny, request):
    with Engine(
        tiny, **OPTIONS | request.param, draft=tiny if DRAFTS.items() <= request.param.items() else None
    ) as engine:
        yield engine


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(3))
def test_sequences_write_what_they_write_on_one(one, several, seed):
    same(walk(several, seed), walk(one, seed))


def test_long_prompts_log_probabilities_and_embeddings(one, several):
    prompts = ["one two three " * 25, "x " * 150, "short"]

    def told(engine):
        made = [engine.generate(prompt, max_tokens=6, temperature=0, logprobs=2) for prompt in prompts]
        return [each.token_ids for each in made], np.round(np.asarray(engine.embed(prompts)), 3).tolist()

    assert told(several) == told(one)
    assert (several.stats().drafted_tokens > 0) == (several.info()["draft"] is not None)


def test_what_it_says_of_itself(one, several):
    info, alone = several.info(), one.info()
    stages, width = info["pipeline_parallel"], info["tensor_parallel"]
    assert (
        len(set(info["rank_pids"])) == stages * width
        and [pid for stage in info["stages"] for pid in stage["pids"]] == info["rank_pids"]
    )
    assert (
        info["parameters"] == alone["parameters"]
        and info["kv_bytes"] == alone["kv_bytes"]
        and info["kv_tokens"] == alone["kv_tokens"]
    )
    own = 0 if info["draft"] is None else info["draft"]["weight_bytes"]
    assert (
        info["memory"]["weights"] - own >= 4 * info["parameters"]
        and info["memory"]["kv"] == alone["memory"]["kv"] + (info["draft"] or {"kv_bytes": 0})["kv_bytes"]
    ), "of all"
    assert sum(row["count"] for row in info["layers"]) == 3 and ", ".join(
        stage["layers"] for stage in info["stages"]
    ).startswith("0")
    if width == 1:
        assert {row["executor"] for row in info["layers"]} == {row["executor"] for row in alone["layers"]}


@pytest.mark.whole
def test_prefixes_leave_and_come_back(one, tiny):
    two_tiers(one, tiny, {"pipeline_parallel": 2})


@pytest.mark.few(1)
def test_what_stages_wait_is_told(several):
    before = several.stats()
    several.generate("b a " * 90, max_tokens=4, ignore_eos=True)
    await_true(
        lambda: all(now > then for now, then in zip(several.stats().stage_seconds, before.stage_seconds, strict=True)),
        5,
    )
    spent = several.stats() - before
    assert (
        len(spent.stage_seconds) == several.info()["pipeline_parallel"]
        and spent.micro_batches > spent.steps
        and 0 <= spent.bubble < 1
    )
    assert several.stats().as_dict()["bubble"] == pytest.approx(several.stats().bubble, abs=0.05)


def test_it_sleeps_and_wakes(several):
    before = several.generate("words", max_tokens=5, temperature=0).token_ids
    info = several.info()
    assert several.sleep() == info["kv_bytes"] + (info.get("draft") or {"kv_bytes": 0})["kv_bytes"], "of all stages"
    several.wake()
    assert several.generate("words", max_tokens=5, temperature=0).token_ids == before


@pytest.mark.few(1)
def test_adapters_one_by_one_and_12_in_a_batch(one, several, adapters, tmp_path):
    with_adapters(one, several, adapters[:12])
    refuses_bad_adapters(several, adapters[0], tmp_path)


@pytest.mark.few(1)
def test_adapters_that_have_more_than_pairs(one, several, kinds_of_adapters):
    with_kinds(one, several, kinds_of_adapters)


@pytest.mark.few(1)
def test_adapters_beside_other_weights(one, several, tiny, other_weights, kinds_of_adapters):
    with_other_weights(one, several, tiny, other_weights[0], kinds_of_adapters)


@pytest.mark.few(1)
def test_other_weights_and_back(one, several, tiny, other_weights):
    updated(one, several, tiny, other_weights)


def adapted(path, place, case):
    """An adapter of such mixers, or none."""
    if case not in OF_MIXERS:
        return {}
    make_adapter(transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), place, **OF_MIXERS[case])
    return {"a": place}


@pytest.mark.whole
@pytest.mark.parametrize("case", ["jamba", "mamba 2", "deepseek v3"])
def test_models_with_states_latents_and_experts(case, tmp_path):
    path = write_tokenizer(write_case(case, tmp_path))
    adapters = adapted(path, tmp_path / "adapter", case)
    with Engine(path, **OPTIONS, adapters=adapters, poison_freed=True) as one:
        expected, alone = (walk(one, 5), sum(map(sum, one.stats().expert_counts))), one.info()
        written = texts(one, [*adapters, None], True)
    with Engine(path, **STAGES, adapters=adapters, poison_freed=True) as two:
        same(walk(two, 5), expected[0])
        assert texts(two, [*adapters, None], True) == written and (not adapters or written[0] != written[1])
        assert (two.info()["states"], two.info()["state_bytes"]) == (alone["states"], alone["state_bytes"])
        assert (
            two.info()["memory"]["states"] == alone["memory"]["states"]
            and two.info()["memory"]["weights"] >= 4 * two.info()["parameters"]
        )
        await_true(lambda: sum(map(sum, two.stats().expert_counts)) >= expected[1], 5)


@pytest.mark.whole
def test_the_same_bits_with_drafts_and_pages(tiny):
    """However a step is cut into micro-batches."""
    asked = OPTIONS | {"deterministic": True, "speculation": "exact", "page_size": 4}
    prompts = ["one two three one two three " * 6, "x y z " * 20, "a"]

    def told(engine):
        return [
            (each.token_ids, each.logprobs)
            for each in engine.generate(prompts, max_tokens=16, temperature=0, logprobs=1, ignore_eos=True)
        ]

    with Engine(tiny, **asked) as one, Engine(tiny, **asked, pipeline_parallel=2) as two:
        assert told(two) == told(one) and two.stats().drafted_tokens and two.stats().micro_batches > two.stats().steps


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options, why",
    [
        ({"pipeline_parallel": 0}, "positive whole number"),
        ({"pipeline_parallel": 4}, r"pipeline_parallel=4\).*3 layers can be cut into 3 stages at most"),
        ({"weights": "int4_gptq", "calibration": ["x"]}, "int4_gptq"),
        ({"load_format": "sharded_state"}, "it is no sharded state"),
        ({"tensor_parallel": 3}, "query heads cannot be shared out among 3 ranks"),
    ],
)
def test_what_it_does_not_do_is_told_before_anything_starts(tiny, options, why):
    with pytest.raises(ConfigError, match=why):
        Engine(tiny, **STAGES | options)


@pytest.mark.whole
def test_a_stage_that_ends_ends_all_and_they_come_back(tiny):
    with Engine(tiny, **STAGES, heartbeat=1.5) as engine:
        expected, pids = engine.generate("abc", max_tokens=4, temperature=0).token_ids, engine.info()["rank_pids"]
        running = engine.open()
        running.extend([5, 6, 7])
        endless = running.generate(SamplingParams(max_tokens=400, ignore_eos=True))
        began = time.monotonic()
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(EngineDied, match=r"rank 1 .*killed by SIGKILL"):
            endless.result(30)
            running.generate(SamplingParams(max_tokens=400, ignore_eos=True)).result(30)
        assert time.monotonic() - began < 4
        await_true(lambda: not any(map(alive, pids)))
        await_true(lambda: engine.info()["rank_pids"] != pids and engine._core.up, 60)
        assert engine.generate("abc", max_tokens=4, temperature=0).token_ids == expected
        last = engine.info()["rank_pids"]
    await_true(lambda: not any(map(alive, last)))
