"""Heads on the target's states on a GPU: they guess what the slow oracle guesses, and change no text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

ON_GPU: dict[str, Any] = {"device": "cuda", "dtype": "float32", "threads": None, "poison_freed": False}


@pytest.mark.parametrize("kind", ["EAGLE", "EAGLE-3", "MTP"])
def test_guesses_and_texts(kind: str, tmp_path: Path) -> None:
    from draft_heads import eagle, eagle3, mtp
    from test_draft_heads import OPTIONS, drafter, opened_with, prompt, sequence_of

    from sgl.runtime import Engine, SamplingParams

    fixed = kind != "MTP"  # a target with latent attention
    made = {"EAGLE": eagle, "EAGLE-3": eagle3, "MTP": mtp}[kind](tmp_path)
    params = [SamplingParams(max_tokens=12, seed=seed, temperature=seed % 2, ignore_eos=True) for seed in range(4)]
    texts, seen = [], []

    def run(engine: Engine) -> list[list[int]]:
        futures = [sequence_of(engine, prompt(seed, 20 + 30 * seed)).generate(each) for seed, each in enumerate(params)]
        return [future.result(120).token_ids for future in futures]

    with opened_with(made, **ON_GPU, step_tokens=48, deterministic=fixed) as engine:
        model, propose = drafter(engine), drafter(engine).propose

        def watched(work: Any, wanting: Any) -> Any:
            found = propose(work, wanting)
            seen.extend((seq.tokens.array.tolist(), list(draft.tokens)) for seq, draft in found.items())
            return found

        model.propose = watched
        texts.append(run(engine))
        assert engine.info()["draft"]["kind"] == kind
    with Engine(made.target, **OPTIONS | ON_GPU | {"speculation": False, "deterministic": fixed}) as plain:
        texts.append(run(plain))
    assert len(seen) >= 20 and (texts[0] == texts[1] or not fixed)
    for tokens, draft in seen[::3]:
        for place, token in enumerate(draft[:4]):
            logits = made.logits(tokens, draft[:place])[
                : 315 if made.ids is None else None
            ]  # as many as the tokenizer has
            column = token if made.ids is None else made.ids.tolist().index(token)
            assert logits[column] >= logits.max() - 2e-2, (tokens, draft, place)
