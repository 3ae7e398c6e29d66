"""The tables of docs/models.md are what the code says."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import pytest
import torch

from sgl.runtime.layers import cpu_kernels
from sgl.runtime.models.families import FAMILIES

SCRIPT = Path(__file__).parents[2] / "docs/site/models.py"
TOLD_BY = (
    not cpu_kernels.can_multiply(torch.bfloat16, torch.device("cpu")) or importlib.util.find_spec("triton") is None
)


@pytest.mark.skipif(TOLD_BY, reason="the table of parts is made where compiled kernels for bfloat16 and Triton are")
def test_the_tables_are_up_to_date() -> None:
    script = runpy.run_path(str(SCRIPT))
    written = script["PAGE"].read_text(encoding="utf-8")
    assert written == script["page"](written), "docs/models.md is behind the code; run: python docs/site/models.py"


def test_every_architecture_is_in_the_page() -> None:
    text = (SCRIPT.parents[1] / "models.md").read_text(encoding="utf-8")
    missing = [name for name in FAMILIES if f"`{name}`" not in text]
    assert not missing, f"docs/models.md lacks {missing}; run: python docs/site/models.py"
