"""Log-probabilities of the raw model distribution, before temperature and penalties, and before masks or after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sgl.runtime.step.device_upload import fetch, upload

TokenLogprobs = list[tuple[float, int]]
_ALIGNED = 4  # floats
_FLOATS_AT_ONCE = 1 << 25  # rows are widened to float32 in parts of at most this many numbers


def top_logprobs(
    logits: Tensor, ids: list[list[int]], top: int, vocab_size: int | None = None
) -> tuple[list[TokenLogprobs], list[TokenLogprobs]]:
    """Log-probabilities of given tokens of each row, and of the `top` likeliest ones there, likeliest first.

    Args:
        logits: any float dtype [n, V].
        ids: for each of the n rows, any number of token ids.
        top: how many; 0: empty lists, more than V: V.
        vocab_size: columns beyond it belong to no token: they weigh in the norm but are never among the top.

    Returns: n lists of pairs (logprob, id) in the order of `ids`, and n lists of such pairs.
    """
    return launch_top_logprobs(logits, ids, top, vocab_size)()


def launch_top_logprobs(
    logits: Tensor, ids: list[list[int]], top: int, vocab_size: int | None = None
) -> Callable[[], tuple[list[TokenLogprobs], list[TokenLogprobs]]]:
    """`top_logprobs`, queued: on a GPU only the returned function waits, and for these numbers alone."""
    rows = np.array([row for row, wanted in enumerate(ids) for _ in wanted], np.int64)
    flat = [token for wanted in ids for token in wanted]
    places = upload(np.stack([rows, np.array(flat, np.int64)]), logits.device)
    ready = fetch(*raw_logprobs(logits, places[0], places[1], top, vocab_size))

    def results() -> tuple[list[TokenLogprobs], list[TokenLogprobs]]:
        values, top_values, top_ids = ready()
        found = iter(zip(values.tolist(), flat, strict=True))
        return [[next(found) for _ in wanted] for wanted in ids], paired(top_values, top_ids)

    return results


def paired(values: np.ndarray, ids: np.ndarray) -> list[TokenLogprobs]:
    """Rows of (logprob, id) pairs of two [n, top] arrays."""
    rows = zip(values.tolist(), ids.tolist(), strict=True)
    return [list(zip(row_values, row_ids, strict=True)) for row_values, row_ids in rows]


def raw_logprobs(
    logits: Tensor, rows: Tensor, columns: Tensor, top: int, vocab_size: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Of logits [n, V] (any float dtype), with nothing read back.

    Returns: float32 [k] at int64 (rows [k], columns [k]); float32 [n, top] and int64 [n, top] of the likeliest.
    """
    norm = _norms(logits)
    values = logits[rows, columns].float() - norm[rows]
    known = logits if vocab_size is None else logits[:, :vocab_size]
    if top <= 0:
        return values, values.new_empty((len(logits), 0)), rows.new_empty((len(logits), 0))
    best, found = known.topk(min(top, known.shape[-1]), dim=-1)
    return values, best.float() - norm.unsqueeze(1), found


def within_masks(
    logits: Tensor, masks: Mapping[int, np.ndarray], expand: Callable[[Sequence[np.ndarray]], Tensor]
) -> Tensor:
    """A float32 copy of logits [n, V] whose rows with a packed mask have only what that allows.

    expand: of m packed masks float32 [m, columns], 0 where a token is allowed and -inf where it is not. Columns after
        those are not allowed.
    """
    copy = logits.to(torch.float32, copy=True)
    rows, added = upload(np.array([*masks], np.int64), logits.device), expand([*masks.values()])
    allowed = copy[rows, : added.shape[1]] + added
    copy[rows] = F.pad(allowed, (0, copy.shape[1] - allowed.shape[1]), value=-torch.inf)
    return copy


def _norms(logits: Tensor) -> Tensor:
    """float32 [n], the logarithm of each row's sum of exponentials; its bits do not depend on n.

    `logsumexp` sums otherwise for small batches than for large ones; `log_softmax` takes rows one by one, on a GPU in
    an order that follows the alignment of each.
    """
    part = max(1, _FLOATS_AT_ONCE // logits.shape[1])
    return torch.cat([_norms_of_some(rows.float()) for rows in logits.split(part)])


def _norms_of_some(logits: Tensor) -> Tensor:
    aligned = F.pad(logits, (0, -logits.shape[1] % _ALIGNED), value=-torch.inf) if logits.is_cuda else logits
    return logits.amax(-1) - aligned.log_softmax(-1).amax(-1)
