"""Extremes in every key of a checkpoint's files: it loads, or says in bounded time and memory which file is wrong."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from checkpoints import edit_json, write_checkpoint
from hostile_files import VALUES, cases, check, outcomes

NAMED = [
    ("config.json", ["num_hidden_layers"], 10**9),
    ("config.json", ["hidden_size"], "<digits>"),
    ("config.json", ["vocab_size"], 4_000_000_000),
    ("config.json", ["rope_theta"], "<nan>"),
    ("config.json", ["rope_parameters", "rope_theta"], "<nan>"),
    ("config.json", ["text_config"], "<deep>"),
    ("config.json", ["text_config"], 5),
    ("config.json", ["eos_token_id"], 4_000_000_000),
    ("generation_config.json", [], []),
    ("generation_config.json", ["eos_token_id"], 4_000_000_000),
    ("generation_config.json", ["eos_token_id"], [0.5]),
    ("generation_config.json", ["eos_token_id"], {"a": 1}),
    ("tokenizer_config.json", ["auto_map"], 5),
    ("tokenizer_config.json", ["added_tokens_decoder"], {"9999999999": {"content": "x"}}),
    ("tokenizer_config.json", ["added_tokens_decoder"], [0]),
    ("tokenizer_config.json", ["bos_token"], {"content": 5}),
    ("tokenizer_config.json", ["bos_token"], "<surrogate>"),
    ("tokenizer_config.json", ["x_token"], "<long text>"),
    ("tokenizer_config.json", ["chat_template"], 0),
    ("tokenizer_config.json", ["chat_template"], "<deep>"),
    ("tokenizer_config.json", ["chat_template"], "<long text>"),
    ("tokenizer_config.json", ["chat_template"], "{{ 'a' * 10**9 }}"),
    (
        "tokenizer_config.json",
        ["chat_template"],
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    ),
    ("tokenizer_config.json", ["tokenizer_class"], []),
    ("tokenizer.json", ["model", "vocab", "a"], 4_000_000_000),
    ("tokenizer.json", ["model"], "<deep>"),
    ("special_tokens_map.json", ["bos_token"], [0]),
    ("model.safetensors.index.json", ["weight_map", "model.norm.weight"], "../../etc/passwd"),
    ("model.safetensors.index.json", ["weight_map"], [0]),
    ("model.safetensors.index.json", [], "<numbers>"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("hostile") / "model", tokenizer=True)


@pytest.mark.whole
def test_values_that_are_known_to_hurt_are_refused(whole: Path) -> None:
    asked = [{"file": file, "path": path, "value": value} for file, path, value in NAMED]
    for case, found in zip(asked, outcomes(whole, asked), strict=True):
        check(case, found)
        assert found.kind != "loaded", case


@pytest.mark.whole
def test_some_of_all_values_in_some_of_all_keys(whole: Path) -> None:
    """All of them are in tests/slow."""
    asked = random.Random(7).sample(list(cases(whole)), 30)
    for case, found in zip(asked, outcomes(whole, asked), strict=True):
        check(case, found)


def test_the_walk_reaches_every_key(whole: Path) -> None:
    """And its values are changed as they should be."""
    paths = {(case["file"], tuple(case["path"])) for case in cases(whole)}
    for file in ("config.json", "generation_config.json", "tokenizer_config.json"):
        assert {(file, (key,)) for key in json.loads((whole / file).read_text())} <= paths
    assert len(list(cases(whole))) == len(paths) * len(VALUES) and len(paths) > 140
    before = (whole / "config.json").read_text()
    edit_json(whole / "config.json")
    assert json.loads(before) == json.loads((whole / "config.json").read_text())
