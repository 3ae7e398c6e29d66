"""Engines on models that differ from Llama: several pools, tables of
positions, ALiBi, projections outside the layers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_families_latent
import torch
from checkpoints import write_tokenizer
from family_checks import logits_of, prompt, reference
from test_deterministic import embedded, needs_kernels
from test_deterministic import together as all_at_once
from test_scheduler_random import FOREVER, Mix

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import ConfigError, ContextLengthError

PLAIN: dict[str, Any] = {"intermediate_size": ..., "num_key_value_heads": ...}
WIDE: dict[str, Any] = {"per_layer_config": {index: {"head_dim": 32, "num_key_value_heads": 1} for index in (2, 5)}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma 4": (
        "Gemma4ForCausalLM",
        WIDE
        | {
            "head_dim": 16,
            "num_hidden_layers": 6,
            "sliding_window": 9,
            "vocab_size_per_layer_input": 320,
            "hidden_size_per_layer_input": 13,
            "num_kv_shared_layers": 3,
            "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2,
        },
    ),
    "gemma 3": (
        "Gemma3ForCausalLM",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 9, "num_hidden_layers": 7},
    ),
    "gpt 2": ("GPT2LMHeadModel", PLAIN | {"n_inner": 96}),
    "opt 350m": (
        "OPTForCausalLM",
        PLAIN
        | {
            "initializer_range": ...,
            "init_std": 0.2,
            "ffn_dim": 96,
            "do_layer_norm_before": False,
            "word_embed_proj_dim": 34,
        },
    ),
    "bloom": ("BloomForCausalLM", PLAIN | {"max_position_embeddings": ..., "seq_length": 256}),
    "cohere 2": ("Cohere2ForCausalLM", {"sliding_window": 9}),
    "deepseek v2": test_families_latent.CASES["deepseek v2"],
    "qwen 3 moe": (
        "Qwen3MoeForCausalLM",
        {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "mlp_only_layers": [1]},
    ),
}


def params(count: int = 12) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=0, ignore_eos=True, logprobs=True)


def model_of(case: str) -> Any:
    architecture, keys = CASES[case]
    return reference(architecture, **keys)


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    written: dict[str, Path] = {}

    def path(case: str) -> Path:
        if case not in written:
            written[case] = tmp_path_factory.mktemp("family")
            model_of(case).save_pretrained(written[case])
            write_tokenizer(written[case])
        return written[case]

    return path


@pytest.fixture
def build(write: Callable[[str], Path]) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def opened(case: str, **options: Any) -> Engine:
        chosen = {"dtype": "float32", "device": "cpu", "threads": 1, "kv_tokens": 2048, "poison_freed": True} | options
        engines.append(Engine(write(case), **chosen))
        return engines[-1]

    yield opened
    for engine in engines:
        engine.close()


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES)
def test_everything_at_once_on_a_small_pool(case: str, build: Callable[..., Engine]) -> None:
    engine = build(
        case, kv_tokens=300, page_size=4, step_tokens=24, max_running=5, host_kv="1MB", run_ahead=case == "gemma 4"
    )
    engine._core.after_step = engine._core.check
    mix = Mix(engine, build(case), 3)
    mix.play(60)
    assert mix.settle() > 5
    mix.sequences.clear()
    for pin in mix.pins:
        pin.release()
    until = time.monotonic() + FOREVER
    while engine._core.life.live and time.monotonic() < until:
        engine.check()
    engine.flush_cache()
    stats = engine.stats()
    assert stats.pages_free == stats.pages_total and stats.pages_pinned == 0


@pytest.mark.parametrize("case", ["gemma 4", "gpt 2", "bloom"])
def test_the_last_position_is_that_of_transformers_and_there_is_none_behind(
    case: str, build: Callable[..., Engine]
) -> None:
    engine, tokens = build(case, run_ahead=True), prompt(320, 253)
    sequence = engine.open()
    sequence.extend(tokens)
    done = sequence.generate(params()).result(FOREVER)
    assert len(done.token_ids) == 3
    logits = logits_of(model_of(case), tokens + done.token_ids)
    assert done.token_ids == logits[252:255].argmax(-1).tolist()
    full = engine.open()
    full.extend(tokens + done.token_ids)
    with pytest.raises(ContextLengthError, match="256 tokens and at least 1 more do not fit"):
        full.generate(params()).result(FOREVER)
    assert np.isfinite(full.embed().result(FOREVER)).all()
    full.close()


@needs_kernels
@pytest.mark.parametrize("weights", ["auto", "int8"])
@pytest.mark.parametrize("case", ["gemma 4", "opt 350m", "qwen 3 moe", "deepseek v2"])
def test_bits_do_not_depend_on_the_batch_where_projections_lie_outside_the_layers(
    case: str, weights: str, build: Callable[..., Engine]
) -> None:
    engine = build(case, deterministic=True, weights=weights)
    expected, vectors = all_at_once(engine), embedded(engine)
    cut = build(case, deterministic=True, weights=weights, step_tokens=7, max_running=3)
    assert all_at_once(cut) == expected and embedded(cut) == vectors


@needs_kernels
def test_deterministic_is_refused_where_no_attention_keeps_the_bits(build: Callable[..., Engine]) -> None:
    with pytest.raises(
        ConfigError,
        match=r"deterministic=True\): .* without ALiBi, and no other attention .*; run it without deterministic",
    ):
        build("bloom", deterministic=True)


def test_chosen_experts_are_counted(build: Callable[..., Engine]) -> None:
    engine = build("qwen 3 moe")
    sequence, before = engine.open(), engine.stats()
    sequence.extend(prompt(320, 20))
    sequence.generate(params(5)).result(FOREVER)
    counts = (engine.stats() - before).expert_counts
    assert [len(each) for each in counts] == [6, 0, 6, 6]
    assert {sum(each) for each in counts[:1] + counts[2:3]} == {
        24 * 2
    }  # of the last layer only tokens whose logits are wanted
    assert build("bloom").stats().expert_counts == []


@pytest.mark.parametrize("case", ["gemma 4", "opt 350m", "qwen 3 moe", "deepseek v2"])
def test_weights_are_counted_once_in_every_layout(case: str, build: Callable[..., Engine]) -> None:
    engine = build(case)
    decoder = engine._core.runner.model
    tensors = {tensor.data_ptr(): tensor for tensor in decoder.tensors()}
    assert decoder.weight_bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert {p.data_ptr() for p in projections(decoder)} <= tensors.keys()


def projections(decoder: Any) -> list[torch.Tensor]:
    holders = [decoder.embedding, decoder.embedding.own, decoder.head]
    return [holder.project.weight for holder in holders if getattr(holder, "project", None) is not None]
