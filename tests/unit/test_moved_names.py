"""Public names that have moved resolve, and say where they are now."""

from __future__ import annotations

import importlib

import pytest

PACKAGES = ("sgl.runtime.dialects", "sgl.runtime.models", "sgl.runtime.models.spec")
MOVED = [(package, old, home) for package in PACKAGES for old, home in importlib.import_module(package)._MOVED.items()]


@pytest.mark.parametrize(("package", "old", "home"), MOVED)
def test_an_old_name_resolves_with_a_warning(package: str, old: str, home: str) -> None:
    module, _, new = home.rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"{package}.{old} is now sgl.runtime.{home}"):
        found = getattr(importlib.import_module(package), old)
    assert found is getattr(importlib.import_module(f"sgl.runtime.{module}"), new)


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = importlib.import_module(package).Nothing
