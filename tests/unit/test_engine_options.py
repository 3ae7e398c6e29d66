"""The engine's options are shown by name."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
from typing import get_type_hints

import sgl
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
