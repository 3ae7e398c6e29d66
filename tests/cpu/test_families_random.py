"""Families with drawn configurations against transformers: what is not refused is equal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from family_checks import close, logits_of, prompt, reference
from family_draws import draw
from rig import Rig, Row
from test_families_configs import MODERN

DRAWS, ATTEMPTS = 2, 10
NOT_TAKEN = (ValueError, TypeError, RuntimeError, KeyError, ArithmeticError)  # by transformers, for sizes that do not go together


def taken(architecture: str, first: int) -> tuple[transformers.PreTrainedModel, list[int], torch.Tensor]:
    """The first drawn model that transformers computes, a prompt and its logits."""
    for seed in range(first, first + ATTEMPTS):
        try:
            model, tokens = reference(architecture, seed, **draw(architecture, seed)), prompt(320, 40, seed)
            return model, tokens, logits_of(model, tokens)
        except NOT_TAKEN as error:
            last = error
    raise last


@pytest.mark.parametrize("seed", range(DRAWS))
@pytest.mark.parametrize("architecture", MODERN)
def test_a_drawn_configuration_is_that_of_transformers(architecture: str, seed: int, tmp_path: Path) -> None:
    model, tokens, expected = taken(architecture, seed * ATTEMPTS)
    model.save_pretrained(tmp_path)
    found = Rig(tmp_path, attention="torch_native").step([(Row(tokens), len(tokens))], every_row=True)
    close(found, expected, 2e-4, "one prefill")
