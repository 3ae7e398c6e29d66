"""Every family, every key, values that no key should have: a model or a ConfigError of bounded length, nothing else."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from family_checks import SIZES

from sgl.runtime.errors import ConfigError
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.families import FAMILIES, read_model

VALUES: list[Any] = [
    0,
    -1,
    1,
    3,
    2**31 - 1,
    2**31,
    10**12,
    10**400,
    0.0,
    -0.5,
    1e-320,
    1e308,
    math.nan,
    math.inf,
    True,
    False,
    "",
    "x",
    "a" * 10**5,
    [],
    [0],
    ["x"],
    [[]],
    {},
    {"a": 1},
    [None],
    None,
    {"rope_type": "x"},
    {"full_attention": 3},
    {"full_attention": {}},
]
ROTATIONS = ["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional", "su", "mrope"]
ROTATION_KEYS = [
    "factor",
    "rope_theta",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "alpha",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "attention_factor",
    "short_factor",
    "long_factor",
    "truncate",
    "rope_type",
]
EACH = 150  # of an architecture


def usual(architecture: str) -> dict[str, Any]:
    """What transformers writes for an architecture where nothing is said; SIZES for those that it does not know."""
    kind = getattr(transformers, architecture, None)
    values = dict(SIZES) if kind is None else json.loads(kind.config_class().to_json_string())
    return values | {"architectures": [architecture]}


def spoiled(values: dict[str, Any], chance: random.Random) -> Iterator[dict[str, Any]]:
    inner = values.get("text_config") or values
    for _ in range(EACH):
        changed = inner | {chance.choice(list(inner)): chance.choice(VALUES)}
        yield changed if inner is values else values | {"text_config": changed}


@pytest.mark.few(12)
@pytest.mark.parametrize("architecture", sorted(FAMILIES))
def test_values_that_no_key_should_have(architecture: str) -> None:
    for values in spoiled(usual(architecture), random.Random(architecture)):
        bounded(values)


@pytest.mark.parametrize("kind", ROTATIONS)
def test_rotations_that_no_model_should_have(kind: str) -> None:
    chance = random.Random(kind)
    whole = {
        "rope_type": kind,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    whole |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    for _ in range(EACH * 2):
        changed = whole | {chance.choice(ROTATION_KEYS): chance.choice(VALUES)}
        kept = {key: value for key, value in changed.items() if chance.random() < 0.9}
        model = bounded(SIZES | {"architectures": ["LlamaForCausalLM"], "rope_parameters": kept})
        if model is not None:
            tables = [rotary.table for rotary in Decoder(model, torch.float32).rotaries.values()]
            assert all(bool(table.isfinite().all()) for table in tables), changed


def bounded(values: dict[str, Any]) -> Any:
    try:
        return read_model(values)
    except ConfigError as error:
        assert len(str(error)) < 4000 and "config.json" in str(error)
        return None
