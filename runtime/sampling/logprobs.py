"""Log-probabilities of the raw model distribution, before temperature, penalties and masks."""

from __future__ import annotations

import torch
from torch import Tensor

TokenLogprobs = list[tuple[float, int]]


def top_logprobs(
    logits: Tensor, ids: list[int], top: int, vocab_size: int | None = None
) -> tuple[TokenLogprobs, list[TokenLogprobs]]:
    """Log-probability of one token a row, and the `top` likeliest tokens of each row, likeliest first.

    Args:
        logits: float32 [n, V].
        ids: n token ids.
        top: how many; 0 gives empty lists, more than V gives V.
        vocab_size: columns beyond it belong to no token: they weigh in the norm but are never among the top.

    Returns:
        n pairs (logprob, id), and n lists of such pairs.
    """
    norm = torch.logsumexp(logits, -1, keepdim=True)
    columns = torch.tensor(ids, dtype=torch.int64, device=logits.device).unsqueeze(1)
    chosen = (logits.gather(1, columns) - norm).squeeze(1).tolist()
    pairs = list(zip(chosen, ids, strict=True))
    if top <= 0:
        return pairs, [[] for _ in ids]
    known = logits if vocab_size is None else logits[:, :vocab_size]
    values, found = known.topk(min(top, known.shape[-1]), dim=-1)
    rows = zip((values - norm).tolist(), found.tolist(), strict=True)
    return pairs, [list(zip(row_values, row_ids, strict=True)) for row_values, row_ids in rows]
