"""Each family on configurations that nobody chose: equal to transformers, or
refused with words. More of them in tests/slow.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import transformers
from family_walk import Outcome, walk
from family_walk_draws import Draw, draw
from family_walk_keys import changed, variants, whole

from sgl.runtime.models import FAMILIES

KNOWN = [
    name
    for name in FAMILIES
    if hasattr(transformers, name) and (name.startswith("Gemma3") or not name.endswith("ConditionalGeneration"))
]
SEEDS = (0,)
EACH = 2  # keys of a family


@pytest.mark.few(4)
@pytest.mark.parametrize("architecture", KNOWN)
def test_a_random_configuration_is_that_of_transformers(architecture: str, tmp_path: Path) -> None:
    outcomes = [walk(draw(architecture, seed), tmp_path / str(seed), seed) for seed in SEEDS]
    seed = SEEDS[-1]
    while all(outcome.what != "equal" for outcome in outcomes):  # at least one of each that is computed
        seed += 1
        outcomes.append(walk(draw(architecture, seed), tmp_path / str(seed), seed))
        assert seed < 30, outcomes


@pytest.mark.few(4)
@pytest.mark.parametrize("architecture", KNOWN)
def test_a_key_that_is_absent_null_or_of_another_family(architecture: str, tmp_path: Path) -> None:
    chosen = random.Random(architecture).sample(list(variants(architecture)), EACH)
    for index, (what, values) in enumerate(chosen):
        outcome(Draw(architecture, values), tmp_path / str(index), what)


def outcome(drawn: Draw, path: Path, what: str) -> Outcome:
    try:
        return walk(drawn, path, 1)
    except AssertionError as error:
        raise AssertionError(f"{drawn.architecture} with {what}: {error}") from error


YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 1e4,
    "truncate": False,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [2.0] * 8,
    "long_factor": [4.0] * 8,
    "rope_theta": 1e4,
    "original_max_position_embeddings": 200,
    "partial_rotary_factor": 1.0,
}
BY_KIND = {
    "full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
ONCE: list[tuple[str, dict[str, Any]]] = [  # that were computed otherwise than by transformers
    ("GemmaForCausalLM", {"hidden_act": "gelu_python"}),
    ("GemmaForCausalLM", {"hidden_activation": "relu"}),
    ("GemmaForCausalLM", {"final_logit_softcapping": 2.0}),
    ("Gemma3ForConditionalGeneration", {"final_logit_softcapping": 2.0}),
    ("GPTNeoXForCausalLM", {"rope_parameters": ..., "rope_theta": 100.0}),
    ("GPTNeoXForCausalLM", {"rope_parameters": ..., "partial_rotary_factor": 0.5}),
    ("GPTJForCausalLM", {"rope_theta": 50.0}),
    ("CodeGenForCausalLM", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    ("LlamaForCausalLM", {"rms_norm_eps": ..., "norm_eps": 0.2}),
    ("LlamaForCausalLM", {"hidden_act": ..., "hidden_activation": "relu"}),
    ("LlamaForCausalLM", {"rope_parameters": ..., "rotary_emb_base": 50.0}),
    ("GlmForCausalLM", {"rope_parameters": ..., "rotary_pct": 0.25}),
    ("GPT2LMHeadModel", {"layer_norm_eps": 0.2}),
    ("Olmo3ForCausalLM", {"rope_parameters": {"full_attention": YARN, "sliding_attention": YARN}}),
    ("Olmo3ForCausalLM", {"rope_parameters": ..., "rope_theta": 100.0}),
    (
        "Gemma3ForCausalLM",
        {"layer_types": ["full_attention"] * 2, "rope_parameters": BY_KIND, "original_max_position_embeddings": 12},
    ),
    ("Gemma4ForCausalLM", {"layer_types": ["sliding_attention"] * 2, "sliding_window": 5}),
    ("Phi3ForCausalLM", {"rope_parameters": LONG, "original_max_position_embeddings": ...}),
    ("Ministral3ForCausalLM", {"original_max_position_embeddings": 8}),
]


@pytest.mark.few(10)
@pytest.mark.parametrize(("architecture", "keys"), ONCE)
def test_what_transformers_does_not_read_is_not_read(architecture: str, keys: dict[str, Any], tmp_path: Path) -> None:
    outcome(Draw(architecture, changed(whole(architecture), **keys)), tmp_path, str(keys))


def test_whether_the_head_is_the_embedding_is_said_by_the_wrapper(tmp_path: Path) -> None:
    values = changed(whole("Gemma3ForConditionalGeneration"), tie_word_embeddings=False)
    for what in (True, ...):
        drawn = Draw("Gemma3ForConditionalGeneration", values | {"tie_word_embeddings": what})
        if what is ...:
            del drawn.values["tie_word_embeddings"]
        assert walk(drawn, tmp_path / str(what), 1).what == "equal"
