"""Which tokens of a step belong to which sequence, as tensors on its device; the host never waits for them."""

from __future__ import annotations

import numpy as np
import torch

from ..layers.conv import RaggedRows
from ..step.batch import Batch


def ragged_rows(batch: Batch) -> RaggedRows:
    tokens, sequences, device = len(batch.positions), len(batch.query_lens), batch.positions.device
    if tokens == sequences:  # one each, as in every decode step
        every = torch.arange(tokens, device=device)
        return RaggedRows(every, torch.zeros_like(every), every, torch.ones_like(every))
    if batch.device is None:
        counts = torch.from_numpy(np.array(batch.query_lens, np.int64)).to(device)
        starts = counts.cumsum(0) - counts
    else:
        bounds = batch.device.starts.long()
        starts, counts = bounds[:-1], bounds.diff()
    owners = torch.repeat_interleave(torch.arange(sequences, device=device), counts, output_size=tokens)
    return RaggedRows(owners, torch.arange(tokens, device=device) - starts[owners], starts, counts)
