"""Every extreme in every key of a checkpoint's files, as `sgl models` and as `Engine`: SGL_WALK=1 asks for this half
hour.

The short form, the values that are known to hurt and thirty others, is tests/cpu/test_hostile_files.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
from checkpoints import write_checkpoint
from hostile_files import MORE_KEYS, cases, check, outcomes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("SGL_WALK"), reason="half an hour of walking: SGL_WALK=1"),
]

FILES = ["tokenizer.json", *MORE_KEYS]


@pytest.mark.parametrize("file", FILES)
def test_every_value_in_every_key(file: str, tmp_path: Path) -> None:
    whole = write_checkpoint(tmp_path / "model", tokenizer=True)
    asked = [case for case in cases(whole) if case["file"] == file]
    for case, found in zip(asked, outcomes(whole, asked), strict=True):
        check(case, found)
