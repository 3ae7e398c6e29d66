"""The sampler on a GPU chooses what it chooses on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sgl.runtime.sampling import Sampler, SamplingBatch, SamplingParams, SamplingRow

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"top_p": 0.9, "temperature": 0.7},
    {"top_k": 20},
    {"min_p": 0.05, "top_p": 0.5},
    {"frequency_penalty": 0.5, "repetition_penalty": 1.2, "top_logprobs": 3},
    {"logit_bias": {5: 9.0}, "min_tokens": 9, "temperature": 0.3},
]


@pytest.mark.parametrize("masked", [False, True])
def test_same_tokens_as_on_the_cpu(masked: bool) -> None:
    width, n = 5000, 64
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(0, 3, (n, width)).astype(np.float32))
    logits[9, 5] = float("nan")
    masks = [
        rng.integers(-(2**31), 2**31 - 1, (width + 31) // 32, dtype=np.int32) if masked and i % 3 else None
        for i in range(n)
    ]
    found = []
    for device in ("cpu", "cuda"):
        rows = [
            SamplingRow(SamplingParams(**OPTIONS[i % 7]), i, [1, 2], [2, 3], frozenset({1})) for i in range(n)
        ]
        samples = Sampler(width - 3).sample(logits.to(device), SamplingBatch(rows), list(range(n)), masks)
        found.append((samples.ids, samples.errors))
    assert found[0] == found[1]
    assert list(found[0][1]) == [9]
