"""Fixtures of the language's tests: files that need another backend define their own."""

from __future__ import annotations

import pytest
from lang_rules import RuleBackend


@pytest.fixture
def backend():
    made = RuleBackend()
    yield made
    made.gate.set()


@pytest.fixture
def stuck(backend):
    """A backend that does not answer before its gate is opened."""
    backend.gate.clear()
    return backend
