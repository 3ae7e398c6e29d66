"""Random programs with a draft model, with heads, and with steps that run ahead:
SGL_DRAWS=20 says how many walks of each, without it none.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

from draft_heads import KINDS
from draft_walk import walk
from test_draft_heads import OPTIONS as OF_HEADS
from test_draft_heads import opened_with as opened_with_head
from test_draft_model import OPTIONS, drafts, opened_with

from sgl.runtime import Engine

__all__ = ["drafts"]

DRAWS = int(os.environ.get("SGL_DRAWS", "0"))
FIRST = int(os.environ.get("SGL_FIRST_DRAW", "1000"))
SEEDS = range(FIRST, FIRST + DRAWS)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DRAWS, reason="minutes of walking: SGL_DRAWS=20 takes 20 walks of each"),
]


@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("alone", [True, False], ids=["every draft", "under control"])
def test_a_draft_model(drafts: dict[str, Path], alone: bool, size: int) -> None:
    with (
        Engine(**OPTIONS | {"speculation": False, "kv_tokens": 2048, "page_size": size}) as plain,
        opened_with(drafts["noisy"], alone, kv_tokens=2048, page_size=size) as engine,
    ):
        for seed in SEEDS:
            assert walk(engine, seed, 20) == walk(plain, seed, 20), seed


@pytest.mark.parametrize(
    "options",
    [{"speculation": {"control": False}, "page_size": 4}, {"speculation": "auto"}],
    ids=["every draft", "under control"],
)
def test_running_ahead(options: dict[str, Any]) -> None:
    alike: dict[str, Any] = {
        "dtype": "float32",
        "threads": 1,
        "kv_tokens": 2048,
        "deterministic": True,
        "poison_freed": True,
    }
    with Engine(**alike) as plain, Engine(run_ahead=True, **options, **alike) as engine:
        engine._core.after_step = engine._core.check
        for seed in SEEDS:
            assert walk(engine, seed, 14) == walk(plain, seed, 14), seed


@pytest.mark.parametrize("kind", KINDS)
def test_heads(kind: str, tmp_path: Path) -> None:
    made = KINDS[kind](tmp_path)
    with (
        Engine(made.target, **OF_HEADS | {"speculation": False, "deterministic": True, "kv_tokens": 2048}) as plain,
        opened_with_head(made, deterministic=True, kv_tokens=2048) as engine,
    ):
        for seed in SEEDS:
            assert walk(engine, seed, 20) == walk(plain, seed, 20), seed
