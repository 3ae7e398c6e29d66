"""What a model's weights are by arithmetic is what a decoder has places for."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from family_checks import SIZES
from family_walk_draws import draw
from test_families_walk import KNOWN

from sgl.runtime.errors import ConfigError
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.describe.family_listing import PARTS
from sgl.runtime.models.families import FAMILIES, read_model
from sgl.runtime.models.spec.model_spec import ModelSpec, PipelineShare
from sgl.runtime.models.spec.tensor_names import MergedProjections
from sgl.runtime.models.spec.weight_shapes import weight_shapes


def check(model: ModelSpec) -> None:
    decoder, found = Decoder(model, torch.float32, "meta"), weight_shapes(model)
    assert [(each.name, each.shape, each.sizes) for each in found.tensors] == [
        (place.name, tuple(place.target.shape), place.sizes) for place in decoder.places()
    ]
    assert found.parameters == decoder.parameter_count
    products = [tuple(getattr(*place).weight.shape) for layer in decoder.layers for place in layer.products()]
    assert sorted(found.products) == sorted(products)


@pytest.mark.parametrize("name", PARTS)
def test_of_each_part(name: str) -> None:
    check(PARTS[name]())


@pytest.mark.parametrize("name", PARTS)
def test_of_each_part_with_biases_and_other_names(name: str) -> None:
    """Names that families change, and what a stage of a pipeline holds."""
    model = PARTS[name]()
    check(replace(model, tied=True, head_bias=True))
    merged = MergedProjections("merged")
    check(replace(model, names=replace(model.names, qkv=merged, gate_up=merged, transposed=True)))
    check(replace(model, stage=PipelineShare(3, begins=False)))
    check(replace(model, stage=PipelineShare(0, ends=False), head_rows=(5, 20)))


@pytest.mark.few(12)
@pytest.mark.parametrize("architecture", KNOWN)
def test_of_families_with_random_configurations(architecture: str) -> None:
    read = 0
    for seed in range(30):
        with suppress(ConfigError):
            check(read_model(draw(architecture, seed).values))
            read += 1
        if read == 2:
            return
    assert read, architecture


@pytest.mark.parametrize("architecture", [name for name in FAMILIES if name not in KNOWN])
def test_of_families_with_code_of_the_checkpoint(architecture: str) -> None:
    """No library has a class with defaults: where the sizes of Llama are no configuration, its own tests check it."""
    with suppress(ConfigError):
        check(read_model(SIZES | {"architectures": [architecture]}))
