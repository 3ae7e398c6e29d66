"""Ranks, stages and replicas under random faults: SGL_SOAK=300 says for how many seconds each, without it none.

The short form is in tests/cpu/test_ranks_soak.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

from checkpoints import write_checkpoint, write_tokenizer
from family_cases import write_family
from faults_rig import EXPERTS, KINDS, soak

SECONDS = float(os.environ.get("SGL_SOAK", "0"))
SEED = int(os.environ.get("SGL_FIRST_DRAW", "1000"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * SECONDS + 200),
    pytest.mark.skipif(not SECONDS, reason="minutes of faults: SGL_SOAK=300 takes five of each kind"),
]


@pytest.mark.parametrize("kind", [*KINDS, *EXPERTS])
def test_nothing_is_lost_but_what_ran_on_the_dead(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    if kind in EXPERTS:
        model = write_tokenizer(write_family("qwen3 moe", tmp_path / "mixture", max_position_embeddings=512))
    else:
        model = write_checkpoint(tmp_path / "tiny", tokenizer=True)
    found = soak(model, kind, SECONDS, SEED, folder, monkeypatch)
    print(kind, found)
    assert found["restarts"] >= 2
