"""Patterns of an adapter's configuration: matched as PEFT matches them, in steps that are counted."""

from __future__ import annotations

import random
import re

import pytest

from sgl.runtime.adapters.files import module_patterns
from sgl.runtime.adapters.files.module_patterns import MOST_WORK, ModulePatterns
from sgl.runtime.adapters.files.peft_config import PeftConfig
from sgl.runtime.errors import CheckpointError

MODULES = [
    *(
        f"model.layers.{layer}.{part}"
        for layer in (0, 1, 2, 11)
        for part in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj", "mlp.experts.3.up_proj", "q_proj")
    ),
    "lm_head",
    "q_proj",
    "a.b",
    "layersx0.q_proj",
    "x.",
    "",
    "ab",
    "model.layersx1.q_proj",
    "model.embed_tokens",
    "x.model.layers.2.self_attn.q_proj",
]
PATTERNS = [
    "q_proj",
    "layers.0.self_attn.q_proj",
    r"layers\.1\..*",
    "^model.layers.2.self_attn.q_proj",
    "^q_proj",
    "lm_head$",
    r".*\.gate_up_proj",
    r"layers\.(1|2|3)\.mlp\..*",
    r"(q|k)_proj",
    r"layers\.[0-9]+\.self_attn\.[qk]_proj",
    "layers.1.mlp.*",
    "q_proj|k_proj",
    r"\d+\.up_proj",
    ".*",
    "",
    "x",
    "q_proj)|(lm_head",
    "(?i:Q_PROJ)",
    r"experts\.\d{1,2}\.up_proj",
    "model$",
    r"layers\.1",
    "[^.]+",
    "a.b",
    "q.proj",
    r"(?:self_attn\.)?q_proj",
    "layers.1..*_proj",
    "..",
    "^model",
    "mlp|self_attn.*",
    "(a|b)*",
    ".*?q_proj",
    r"\w+_proj",
    "lm_.*",
    "a|",
    "^$",
    r"x\.",
    "layers.1.q.proj",
    r"^model.layers\.1.q_proj$",
    r"model\.layers\.(?P<n>[0-2])\.q_proj",
    "a{1,2}b",
]


def by_peft(keys: list[str], module: str) -> str | None:
    """As `peft.utils.other.get_pattern_key` looks for it, None where it gives the module back."""
    return next((key for key in keys if re.match(rf"(.*\.)?({key})$", module)), None)


def test_peft_matches_so() -> None:
    """The oracle is PEFT's own function."""
    other = pytest.importorskip("peft.utils.other")
    for key in PATTERNS:
        for module in MODULES:
            assert other.get_pattern_key([key], module) == (
                by_peft([key], module) if by_peft([key], module) is not None else module
            )


@pytest.mark.parametrize("key", PATTERNS)
def test_each_pattern_fits_what_it_fits_in_peft(key: str) -> None:
    patterns = ModulePatterns([key], "here")
    assert [patterns.first(module) for module in MODULES] == [by_peft([key], module) for module in MODULES]


def test_of_several_the_first_counts() -> None:
    draw = random.Random(0)
    for _ in range(200):
        keys = draw.sample(PATTERNS, draw.randint(1, 8))
        patterns = ModulePatterns(keys, "here")
        assert [patterns.first(module) for module in MODULES] == [by_peft(keys, module) for module in MODULES], keys


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("(", "no regular expression"),
        (r"(a)\1", "linear time: back-reference"),
        ("(?=a)b", "linear time: look-ahead"),
        ("(?<!x)q_proj", "linear time: look-behind"),
        (r"\bq_proj", "linear time: word boundary"),
        ("a++", "linear time: possessive"),
        ("(a$)*", "linear time: an anchor in a repeat"),
        ("(" * 90 + "a" + ")" * 90 + "{2}", ""),
        ("x+" * 501, "of 1,002 characters"),
        ("(" * 450 + "a" + ")" * 450, "nested too deeply"),
    ],
)
def test_what_is_not_matched_is_refused_by_name(key: str, words: str) -> None:
    if words:
        with pytest.raises(CheckpointError, match=words) as caught:
            ModulePatterns([key], "adapter_config.json: rank_pattern")
        assert "adapter_config.json: rank_pattern" in str(caught.value) and len(str(caught.value)) < 600
    else:
        assert ModulePatterns([key], "here").first("aa") == key


def test_a_pattern_that_could_be_read_in_many_ways_is_read_in_few_steps() -> None:
    """One way more for each character doubles what `re` does; here it is a step more."""
    steps = []
    for length in (100, 200):
        patterns = ModulePatterns([r"(\w|\w\w)+x"], "here")
        patterns.first("a" * length)
        steps.append(patterns._work)
    assert steps[1] <= 2 * steps[0]


def test_each_module_is_matched_once() -> None:
    config = PeftConfig.of(
        {"peft_type": "LORA", "rank_pattern": {r".*q_p\w+": 3}, "alpha_pattern": {"[qk]_proj": 6}}, "here"
    )
    assert (config.rank_of("model.q_proj"), config.scaling("model.q_proj"), config.scaling("model.up_proj")) == (
        3,
        2.0,
        1.0,
    )
    before = config._ranks_of._work
    for _ in range(10):
        config.scaling("model.q_proj")
    assert config._ranks_of._work == before > 0


def test_thousands_of_names_cost_little() -> None:
    keys = [f"model.layers.{layer}.mlp.experts.{expert}.up_proj" for layer in range(20) for expert in range(100)]
    patterns = ModulePatterns(keys, "here")
    assert all(patterns.first(key) == key for key in keys)
    assert patterns._names.work < MOST_WORK / 15  # so thirty thousand are within it


def test_too_many_keys_and_too_much_work_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        CheckpointError, match=r"rank_pattern has 257 keys that are no plain names, such as 'a\+0'; at most 256"
    ):
        ModulePatterns([f"a+{i}" for i in range(257)], "rank_pattern")
    monkeypatch.setattr(module_patterns, "MOST_KEYS", 10)
    with pytest.raises(CheckpointError, match="rank_pattern has 11 keys; at most 10"):
        ModulePatterns([f"a{i}" for i in range(11)], "rank_pattern")
    monkeypatch.setattr(module_patterns, "MOST_WORK", 1000)
    for keys in (["(ab?){0,99}c", "x"], ["a" * cut + "." + "a" * (20 - cut) for cut in range(10)]):
        with pytest.raises(
            CheckpointError, match=r"rank_pattern: its \d+ keys take too long to match, up to (module|key) "
        ):
            patterns = ModulePatterns(keys, "rank_pattern")
            for i in range(100):
                patterns.first(f"{'ab' * 9}{i:03}")


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), True, "8", None])
def test_numbers_that_are_none(value: object) -> None:
    for values in ({"lora_alpha": value}, {"alpha_pattern": {"q_proj": value}}):
        with pytest.raises(CheckpointError, match=r"(lora_alpha|alpha_pattern 'q_proj')=.* must be a finite number"):
            PeftConfig.of({"peft_type": "LORA", **values}, "here")
