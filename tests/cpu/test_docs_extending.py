"""The Python of docs/extending.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/extending.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.strip().splitlines()[-1][:40])
def test_block(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sgl.runtime.models.families import family_registry

    monkeypatch.setattr(family_registry, "FAMILIES", dict(family_registry.FAMILIES))
    exec(compile(block, str(PAGE), "exec"), {"__name__": "extending"})


def test_there_are_blocks() -> None:
    assert len(BLOCKS) == 3
