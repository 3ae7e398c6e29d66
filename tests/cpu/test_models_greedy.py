"""Greedy text equals transformers' however the work is cut into steps."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import reference_model, write_checkpoint
from rig import Rig, Row
from test_models import VARIANTS, prompt

STEPS = 20


@torch.no_grad()
def reference_text(family: str, tokens: list[int], hidden: list[int] | None = None, **overrides: Any) -> list[int]:
    """`hidden` ids are never chosen."""
    model: Any = reference_model(family, **overrides)
    out = model.generate(
        torch.tensor([tokens]),
        attention_mask=torch.ones(1, len(tokens)),
        max_new_tokens=STEPS,
        do_sample=False,
        eos_token_id=None,
        suppress_tokens=hidden or None,
    )
    return out[0, len(tokens) :].tolist()


def run(rig: Rig, prompts: list[list[int]], dice: random.Random, chunk: int) -> list[list[int]]:
    """Sequences start one after the other; each step takes some of them, decodes first, prompts in chunks."""
    rows = [Row(tokens) for tokens in prompts]
    ends = [len(tokens) + STEPS for tokens in prompts]
    while unfinished := [i for i, row in enumerate(rows) if len(row.tokens) < ends[i]]:
        chosen = [i for i in unfinished if dice.random() < 0.7] or unfinished[:1]
        work = [(i, min(rows[i].pending, dice.randint(1, chunk))) for i in chosen]
        work.sort(key=lambda item: item[1] > 1)
        logits = rig.step([(rows[i], count) for i, count in work])
        assert not logits.isnan().any()
        for (i, _), best in zip(work, logits.argmax(-1).tolist(), strict=True):
            if rows[i].pending == 0:
                rows[i].tokens.append(best)
                if len(rows[i].tokens) == ends[i]:
                    rig.release(rows[i])
    return [row.tokens[len(tokens) :] for row, tokens in zip(rows, prompts, strict=True)]


@pytest.mark.few(2)
@pytest.mark.parametrize("variant", ["llama", "rope yarn", "mistral sliding", "qwen2 tied, late layers slide", "qwen3"])
def test_mixed_batches_of_chunks_and_decodes(variant: str, tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    prompts = [prompt(length, seed=length) for length in (1, 3, 17, 40, 90, 64)]
    expected = [reference_text(family, tokens, **overrides) for tokens in prompts]
    path = write_checkpoint(tmp_path, family, **overrides)
    for seed, chunk in ((0, 1), (1, 5), (2, 16), (3, 30), (4, 100)):
        assert run(Rig(path, seed=seed), prompts, random.Random(seed), chunk) == expected


def test_forked_rows_share_slots_by_reference(tmp_path: Path) -> None:
    rig, stem = Rig(write_checkpoint(tmp_path)), prompt(30)
    parent = Row(stem)
    rig.step([(parent, 30)])
    children = []
    for token in (5, 6, 7):
        child = Row([*stem, token])
        child.slots = parent.slots
        children.append(child)
    together = rig.step([(child, 1) for child in children])
    for child, logits in zip(children, together, strict=True):
        alone = Row(child.tokens)
        torch.testing.assert_close(rig.step([(alone, 31)])[0], logits, atol=1e-4, rtol=1e-4)
