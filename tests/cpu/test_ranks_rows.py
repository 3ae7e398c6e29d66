"""Latent attention that ranks share out by rows: each stores the latents of all tokens and attends for its own part of a step."""

from __future__ import annotations

from pathlib import Path

import pytest
from family_cases import write_family
from family_checks import close, prompt
from ranks_rig import steps_of_ranks
from rig import Rig, Row

from sgl.runtime.layers.float8 import FP8
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.models import latent

CASES = [
    ("deepseek v2", 2, {}),
    ("deepseek v3, plain", 3, {"moe_intermediate_size": 24, "intermediate_size": 96}),
    ("kimi linear", 2, {"linear_num_heads": 4}),
    ("glm 4.7 flash, by layer", 2, {}),
    ("mistral 4", 4, {}),
    ("minicpm 3", 3, {"intermediate_size": 96}),
]


def walk(tokens: list[int]) -> list[list[tuple[Row, int]]]:
    """Sequences that are cut between ranks, and a step of fewer rows than ranks."""
    one, other = Row(tokens[:20]), Row(tokens[20:33])
    return [[(one, 7), (other, 12)], [(other, 1), (one, 12)], [(one, 1)]]


@pytest.mark.parametrize("case, ranks, more", CASES)
def test_ranks_attend_for_rows_as_one_attends_for_all(case: str, ranks: int, more: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latent, "FRESH", 6 if ranks == 2 else 1000)
    path = write_family(case, tmp_path, **more)
    tokens = prompt(open_checkpoint(path).model.vocab_size)
    rig = Rig(path, attention="torch_native")
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    for attention in ("auto", "torch_native"):
        for found, asked in zip(steps_of_ranks(path, ranks, walk(tokens), by_rows=True, attention=attention), expected, strict=True):
            close(found, asked, 5e-5, f"{case} {attention}")


def test_rows_in_eight_bits(tmp_path: Path) -> None:
    """Whose numbers may be rounded otherwise where sums over ranks round otherwise."""
    path = write_family("deepseek v3", tmp_path)
    tokens = prompt(open_checkpoint(path).model.vocab_size)
    rig = Rig(path, attention="torch_native", kept=FP8)
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    for found, asked in zip(steps_of_ranks(path, 2, walk(tokens), by_rows=True, kept=FP8), expected, strict=True):
        assert (found - asked).norm() < 0.02 * asked.norm()
