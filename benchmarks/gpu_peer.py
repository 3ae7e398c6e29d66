"""Case 8: transformers' generate on the same shape in the same run, after our engine has given its memory back."""

from __future__ import annotations

import time

import numpy as np
import torch
from gpu_cases import Bench
from gpu_report import Figure
from gpu_shapes import Shape
from gpu_work import Run, generate, middle, prompts, repeated

Sizes = tuple[tuple[int, int, int], ...]  # (sequences, in, out)
SIZES: Sizes = ((1, 128, 64), (32, 512, 32), (128, 128, 32))
TINY_SIZES: Sizes = ((1, 16, 8), (4, 16, 8))


def ours(bench: Bench, sizes: Sizes) -> dict[tuple[int, int, int], Run]:
    return {
        size: middle(
            repeated(3, lambda seed, s=size: generate(bench.engine, prompts(s[0], s[1], bench.shape.vocab, seed), s[2]))
        )
        for size in sizes
    }


def theirs(shape: Shape, device: torch.device, sizes: Sizes) -> dict[tuple[int, int, int], Run]:
    """Greedy, exactly `out` tokens; the attention is what transformers chooses (sdpa)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**{k: v for k, v in shape.config().items() if k not in ("architectures", "dtype")})
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32
        ).eval()
    found = {}
    for size in sizes:
        count, length, new = size
        _generate(model, prompts(count, length, shape.vocab, 1), 4, device)
        found[size] = _generate(model, prompts(count, length, shape.vocab, 0), new, device)
    return found


def _generate(model: torch.nn.Module, rows: list[np.ndarray], new: int, device: torch.device) -> Run:
    ids = torch.from_numpy(np.stack(rows)).long().to(device)
    started = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )  # type: ignore[operator]
    made = (out.shape[1] - ids.shape[1]) * len(rows)
    assert out.cpu().numel()  # waits for the device
    return Run(time.perf_counter() - started, made)


def compared(mine: dict[tuple[int, int, int], Run], peer: dict[tuple[int, int, int], Run]) -> list[Figure]:
    figures = []
    for size, run in peer.items():
        note = f"ours {mine[size].rate:,.0f} tok/s, transformers {run.rate:,.0f} tok/s in the same run"
        what = f"{size[0]} x ({size[1]} in, {size[2]} out): times transformers' generate"
        figures.append(Figure("8", what, mine[size].rate / run.rate, "x", note=note))
    return figures
