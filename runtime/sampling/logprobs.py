"""Log-probabilities of the raw model distribution, before temperature, penalties and masks."""

from __future__ import annotations

import torch
from torch import Tensor

TokenLogprobs = list[tuple[float, int]]


def top_logprobs(
    logits: Tensor, ids: list[list[int]], top: int, vocab_size: int | None = None
) -> tuple[list[TokenLogprobs], list[TokenLogprobs]]:
    """Log-probabilities of given tokens of each row, and of the `top` likeliest ones there, likeliest first.

    Args:
        logits: float32 [n, V].
        ids: for each of the n rows, any number of token ids.
        top: how many; 0 gives empty lists, more than V gives V.
        vocab_size: columns beyond it belong to no token: they weigh in the norm but are never among the top.

    Returns:
        n lists of pairs (logprob, id) in the order of `ids`, and n lists of such pairs.
    """
    norm = torch.logsumexp(logits, -1, keepdim=True)
    pairs = _gathered(logits, norm, ids)
    if top <= 0:
        return pairs, [[] for _ in ids]
    known = logits if vocab_size is None else logits[:, :vocab_size]
    values, found = known.topk(min(top, known.shape[-1]), dim=-1)
    rows = zip((values - norm).tolist(), found.tolist(), strict=True)
    return pairs, [list(zip(row_values, row_ids, strict=True)) for row_values, row_ids in rows]


def _gathered(logits: Tensor, norm: Tensor, ids: list[list[int]]) -> list[TokenLogprobs]:
    rows = torch.tensor([row for row, wanted in enumerate(ids) for _ in wanted], dtype=torch.int64, device=logits.device)
    flat = [token for wanted in ids for token in wanted]
    columns = torch.tensor(flat, dtype=torch.int64, device=logits.device)
    values = iter((logits[rows, columns] - norm.squeeze(1)[rows]).tolist())
    return [[(next(values), token) for token in wanted] for wanted in ids]
