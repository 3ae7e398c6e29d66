"""The device's sampler over the whole vocabulary: its kernels' time, and what a launch takes of the host.

"peaked": some tokens far above a broad floor, as a model's logits are; "flat": noise, where top-k and top-p reject
many. Peers are torch operations with the same meaning, without the seeds per row, errors and masks that ours have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gpu_kernel_lab import Lab, Row
from torch import Tensor

from sgl.runtime.sampling import SamplingBatch, SamplingParams, SamplingRow
from sgl.runtime.sampling.device_sampler import DeviceSampler

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 50": {"top_k": 50},
    "min_p 0.05": {"min_p": 0.05},
    "masked": {},
    "penalty": {"frequency_penalty": 0.2},
    "logprobs": {"logprobs": True},
}
HEADS = 40  # likely tokens


def _race(probabilities: Tensor) -> Tensor:
    return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1)


def _top_p(logits: Tensor) -> Tensor:
    values, order = logits.float().softmax(-1).sort(-1, descending=True)
    kept = values.masked_fill(values.cumsum(-1) - values >= 0.9, 0.0)
    return order.gather(1, _race(kept)[:, None])[:, 0]


def _top_k(logits: Tensor) -> Tensor:
    values, order = logits.topk(50, -1)
    return order.gather(1, _race(values.float().softmax(-1))[:, None])[:, 0]


PEERS: dict[str, Callable[[Tensor], Tensor]] = {
    "greedy": lambda logits: logits.argmax(-1),
    "temperature": lambda logits: _race(logits.float().softmax(-1)),
    "top_p 0.9": _top_p,
    "top_k 50": _top_k,
}


@torch.inference_mode()
def measure(lab: Lab) -> None:
    sampler = DeviceSampler(lab.shape.vocab, lab.device)
    sampler.warm(lab.dtype, lab.shape.vocab)
    rows = [_row(lab, sampler, name, count) for count in lab.sizes.sampled for name in CASES]
    lab.show(f"sampler: {lab.shape.vocab} logits a row, read once (the roofline)", rows)


def _row(lab: Lab, sampler: DeviceSampler, name: str, count: int) -> Row:
    peaked, flat = _peaked(lab, count), lab.random(count, lab.shape.vocab, scale=2.0)
    asked = [SamplingRow(SamplingParams(**CASES[name]), seed, [1, 2, 3], [4, 5]) for seed in range(count)]
    batch, masks = SamplingBatch(asked), _masks(lab, count) if name == "masked" else None
    last, places = torch.zeros(count, dtype=torch.int32, device=lab.device), list(range(count))

    def launch(logits: Tensor = peaked, batch: SamplingBatch = batch) -> object:
        return sampler.launch(logits, batch, [77] * count, masks, last, places)

    ours = {
        "peaked": lab.queued(launch),
        "flat": lab.queued(lambda: launch(flat)),
        "host": lab.host(launch),
        "host, new batch": lab.host(lambda: launch(peaked, SamplingBatch(asked))),
    }
    peer = PEERS.get(name)
    peers = {} if peer is None else {"torch": lab.queued(lambda: peer(peaked))}
    return Row(name, f"{count} rows", ours, peers, moved=peaked.nbytes)


def _peaked(lab: Lab, count: int) -> Tensor:
    logits = lab.random(count, lab.shape.vocab, scale=2.0)
    places = torch.randint(0, lab.shape.vocab, (count, HEADS), device=lab.device)
    return logits.scatter_(1, places, 12 + 2.0 * lab.random(count, HEADS))


def _masks(lab: Lab, count: int) -> list[np.ndarray | None]:
    draw = np.random.default_rng(0)
    return [draw.integers(-(2**31), 2**31 - 1, -(-lab.shape.vocab // 32), dtype=np.int32) for _ in range(count)]
