"""Engines whose ranks share latent attention out by rows: the texts of one, whatever its sequences do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from checkpoints import edit_json, write_tokenizer
from draft_heads import mtp
from family_cases import write_family
from family_checks import reference
from ranks_rig import drawn, same, walk, written
from safetensors.torch import load_file, save_file
from test_families_latent import V3

from sgl.runtime import Engine
from sgl.runtime.calibration.shard_checkpoint import shard
from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.loading.sharded_state import ParallelSizes
from sgl.runtime.parallel.pp.pipeline_stages import require_state
from sgl.runtime.parallel.tp.sharded_source import require
from sgl.runtime.parallel.tp.tensor_parallel_split import refusal

OPTIONS = {"dtype": "float32", "threads": 1, "kv_tokens": 2048, "max_running": 8}
ROWS = {"tensor_parallel": 2, "latent_attention": "rows"}
KEYS = V3 | {"moe_intermediate_size": 24, "intermediate_size": 96}


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return mtp(tmp_path_factory.mktemp("rows"), keys=KEYS).target


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> list[Path]:
    """Two models like `path` of other weights; the second lacks a tensor of its last layer."""
    found = [tmp_path_factory.mktemp("others") / name for name in ("whole", "damaged")]
    for each in found:
        reference(
            "DeepseekV3ForCausalLM",
            7,
            **KEYS | {"num_nextn_predict_layers": 0, "num_hidden_layers": 3, "max_position_embeddings": 512},
        ).save_pretrained(each)
        write_tokenizer(each)
        edit_json(each / "config.json", num_nextn_predict_layers=1)
    file = found[1] / "model.safetensors"
    save_file(
        {name: tensor for name, tensor in load_file(file).items() if "layers.2.self_attn.o_proj" not in name},
        file,
        {"format": "pt"},
    )
    return found


@pytest.fixture(scope="module")
def one(path):
    with Engine(path, **OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module")
def three(path):
    """Of four heads; prompts are cut, and sequences give way to others."""
    with Engine(
        path,
        **OPTIONS
        | ROWS
        | {"tensor_parallel": 3, "kv_tokens": 400, "host_kv": "2MB", "step_tokens": 24, "poison_freed": True},
    ) as engine:
        yield engine


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(2))
def test_sequences_write_what_they_write_on_one(one, three, seed):
    same(walk(three, seed), walk(one, seed))


def test_what_it_says_of_itself(one, three):
    info = three.info()
    assert (info["tensor_parallel"], info["latent_attention"], info["parameters"]) == (
        3,
        "rows",
        one.info()["parameters"],
    )
    assert all("of one part in 3 of a step's rows" in row["parts"] for row in info["layers"])


def test_adapters_are_refused(three, tmp_path):
    with pytest.raises(ConfigError, match="latent_attention='heads'"):
        three.adapters.load("a", tmp_path)


def test_other_weights_and_back(one, three, path, others):
    expected = written(one, drawn(2, 30))
    with pytest.raises(CheckpointError, match=r"layers\.2\.self_attn\.o_proj"):
        three.update_weights(others[1])
    assert written(three, drawn(2, 30)) == expected
    for each in (others[0], path):
        for engine in (one, three):
            engine.update_weights(each)
        assert (written(three, drawn(2, 30)) == expected) == (each == path) and written(three, drawn(2, 30)) == written(
            one, drawn(2, 30)
        )


def test_it_sleeps_and_wakes(three):
    before = written(three, drawn(3, 30), together=3)
    assert three.sleep() == three.info()["kv_bytes"]
    three.wake()
    assert written(three, drawn(3, 30), together=3) == before


@pytest.mark.whole
def test_prefixes_leave_and_come_back(one, three):
    prompts = drawn(6, 90)
    for _ in range(2):
        assert written(three, prompts) == written(one, prompts)
    assert three.stats().host_hits > 0


@pytest.fixture(scope="module")
def two(path):
    with Engine(
        path,
        **OPTIONS | ROWS,
        expert_parallel=True,
        deterministic=True,
        speculation="auto",
        draft="mtp",
        step_tokens=40,
    ) as engine:
        yield engine


def test_guesses_and_whole_experts_beside_it(one, two):
    same(walk(two, 4), walk(one, 4))
    assert two.stats().drafted_tokens > 0


def test_bits_do_not_depend_on_the_batch(two):
    def told(together: int) -> list:
        made = [two.open() for _ in range(together)]
        for sequence, prompt in zip(made, drawn(together, 30), strict=True):
            sequence.extend(prompt)
        found = [score.result(60) for score in [sequence.score([[5, 6, 7], [8]]) for sequence in made]]
        for sequence in made:
            sequence.close()
        two.flush_cache()
        return found

    crowd = told(5)
    assert told(1)[0] == crowd[0]


@pytest.mark.parametrize(
    "options, why",
    [
        ({"latent_attention": "tokens"}, "must be heads or rows"),
        ({"latent_attention": "rows"}, "take tensor_parallel=2 or more"),
        (ROWS | {"adapter_slots": 2}, "no adapters are added to rows"),
    ],
)
def test_what_cannot_be_is_told(tiny, options, why):
    with pytest.raises(ConfigError, match=why):
        Engine(tiny, **OPTIONS | options)


def test_other_attention_beside_latents_is_told(path, tiny):
    model, other = (open_checkpoint(each).model for each in (path, tiny))
    assert "layer 3: its attention has no latents" in refusal(
        replace(model, layers=(*model.layers, other.layers[0])), 2, rows=True
    )


@pytest.mark.parametrize(
    "case, why", [("llama", "no layer has latent attention"), ("deepseek v3.2", "layer 0: an indexer chooses")]
)
def test_models_that_are_not_shared_out_by_rows_are_told(case, why, tmp_path):
    model = open_checkpoint(write_family(case, tmp_path)).model
    with pytest.raises(
        ConfigError, match=rf"tensor_parallel=2, latent_attention='rows'\): .*{why}.* take latent_attention='heads'"
    ):
        require(model, 2, rows=True)


def test_states_by_heads_are_not_opened_by_rows(path, tmp_path):
    shard(path, tmp_path / "state", device="cpu", parts=ParallelSizes(2))
    with pytest.raises(ConfigError, match=r"latent_attention='rows'\): a sharded state has latent attention by heads"):
        require_state(tmp_path / "state", ParallelSizes(2), rows=True)
