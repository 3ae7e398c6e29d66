"""A first look at a model: greedy answers to held-back probes, in torch, without any constraint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from sgl.runtime.nano.nano_prompts import END, START, render
from training.compare import fields_right, same
from training.probes import PROBES, Probe, sample
from training.tokenizer import token_id

LONGEST_ANSWER = 180
BATCH = 300


@torch.inference_mode()
def greedy(model: PreTrainedModel, tokenizer: Tokenizer, probes: list[Probe]) -> list[str]:
    """The model's greedy answer to each probe, up to the end token."""
    pad = token_id(tokenizer, START)
    prompts = [
        [pad, *tokenizer.encode(render(p.prompt) + "<|assistant|>", add_special_tokens=False).ids] for p in probes
    ]
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out: Any = model.generate(  # type: ignore[operator]
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=LONGEST_ANSWER,
        do_sample=False,
        eos_token_id=token_id(tokenizer, END),
        pad_token_id=pad,
    )
    return tokenizer.decode_batch(out[:, width:].tolist(), skip_special_tokens=True)


def greedy_scores(
    model: PreTrainedModel,
    device: torch.device,
    tokenizer: Tokenizer,
    data: Path,
    count: int,
    log: Callable[[str], None],
) -> dict[str, Any]:
    """Exact answers and right fields, as shares, of `count` probes of each task; with some mistakes."""
    torch.nn.Module.to(model, device=device)
    scores: dict[str, Any] = {}
    for task in PROBES:
        probes = sorted(sample(data, task, count), key=lambda probe: len(render(probe.prompt)))
        answers = [a for i in range(0, len(probes), BATCH) for a in greedy(model, tokenizer, probes[i : i + BATCH])]
        pairs = [(probe.answer, answer) for probe, answer in zip(probes, answers, strict=True)]
        right, total = map(sum, zip(*(fields_right(*pair) for pair in pairs), strict=True))
        wrong = [pair for pair in pairs if not same(*pair)]
        scores[task] = {
            "count": len(pairs),
            "exact": round(1 - len(wrong) / len(pairs), 4),
            "fields": round(right / max(1, total), 4),
            "mistakes": [{"expected": expected, "given": given} for expected, given in wrong[:40:4]],
        }
        log(f"{task}: exact {scores[task]['exact']:.1%}, fields {scores[task]['fields']:.1%} of {len(pairs)}")
    return scores
