"""The engine's options are shown by name."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
from typing import get_type_hints

import pytest

import sgl
from sgl.runtime.errors import ConfigError
from sgl.runtime.loop.config import EngineConfig
from sgl.runtime.loop.options import EngineOptions

FIELDS = dataclasses.fields(EngineConfig)


def test_editors_know_each_option_with_its_type():
    config = get_type_hints(EngineConfig)
    assert get_type_hints(EngineOptions) == {field.name: config[field.name] for field in FIELDS}


def test_help_shows_each_option_with_its_default():
    shown = inspect.signature(sgl.Engine).parameters
    assert list(shown) == ["model", *(field.name for field in FIELDS)]
    assert all(shown[field.name].default == field.default for field in FIELDS)
    assert "kv_memory: 'int | str | None' = None" in pydoc.render_doc(sgl.Engine, renderer=pydoc.plaintext)


@pytest.mark.parametrize(
    ("option", "value"),
    [("page_size", None), ("threads", 100_000), ("attention", 3), ("json_options", "any"), ("json_options", {1: 2})],
)
def test_a_value_that_cannot_be_is_told_with_its_option(option, value):
    with pytest.raises(ConfigError, match=rf"Engine\({option}="):
        EngineConfig.from_options({option: value})
