"""Sparse attention of three branches against the paper's sums (arXiv 2502.11089),
written out for one query and one head at a time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from layer_checks import loaded_weight
from part_models import RMS, SPARSE, LawRig, model
from rig import Row

from sgl.runtime.errors import ConfigError
from sgl.runtime.layers.rope_parameters import RopeParameters
from sgl.runtime.models.describe.describe_layers import describe_layer
from sgl.runtime.models.reference.reference_sparse_attention import KVBlockCompressor, ReferenceSparseAttention
from sgl.runtime.models.spec.model_spec import GatedFFNSpec, LayerNorms, LayerSpec
from sgl.runtime.models.spec.sparse_attention_spec import SparseAttentionSpec

SPECS: dict[str, SparseAttentionSpec] = {
    "as it is": SPARSE,
    "no rotation, one KV head": replace(SPARSE, rope=None, kv_heads=1),
    "blocks as they are compressed": replace(
        SPARSE, length=8, stride=4, block=4, most=5, first=0, latest=2, window=1, kv_heads=4
    ),
    "blocks of several strides": replace(SPARSE, length=4, stride=2, block=8, most=2, window=50),
    "strides without overlap": replace(SPARSE, length=3, stride=3, block=6, most=3, first=2),
}


class Watched(LawRig):
    """What goes into a layer's mixer and what comes out, token by token of each sequence."""

    def __init__(self, part: SparseAttentionSpec, attention: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(model(LayerSpec(LayerNorms.pre(RMS), part, GatedFFNSpec(16))), dtype, attention=attention)
        mixer: Any = self.model.layers[0].mixer
        self.mixer: ReferenceSparseAttention = mixer
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        attend = mixer.attend
        mixer.attend = lambda x, step: self._watched(x, attend(x, step))

    def _watched(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.seen.append((x.clone(), y.clone()))
        return y


def of_the_paper(part: SparseAttentionSpec, mixer: ReferenceSparseAttention, x: torch.Tensor) -> np.ndarray:
    """Of all tokens of a sequence, float64 [T, heads * dim]."""

    def product(layer: Any, rows: np.ndarray) -> np.ndarray:
        bias = 0 if layer.bias is None else layer.bias.double().numpy()
        return rows @ loaded_weight(layer).double().numpy().T + bias

    def compressed(network: KVBlockCompressor, rows: np.ndarray) -> np.ndarray:
        found = []
        for begin in range(0, len(rows) - part.length + 1, part.stride):
            block = rows[begin : begin + part.length] + network.places.double().numpy()
            inner = torch.nn.functional.gelu(torch.from_numpy(product(network.up, block.ravel()))).numpy()
            found.append(product(network.down, inner))
        return np.array(found).reshape(-1, part.dim)

    hidden = x.double().numpy()
    q, k, v = (
        product(layer, hidden).reshape(len(x), -1, part.dim) for layer in (mixer.queries, mixer.keys, mixer.values)
    )
    gates = 1 / (1 + np.exp(-product(mixer.gates, hidden).reshape(len(x), 3, part.heads)))
    group, kv = part.heads // part.kv_heads, part.kv_heads
    out = np.zeros((len(x), part.heads, part.dim))
    for own in range(kv):
        keys, values = (
            compressed(mixer.key_compressor, k[:, 2 * kv + own]),
            compressed(mixer.value_compressor, v[:, 2 * kv + own]),
        )
        for t in range(len(x)):
            heads, rates = range(own * group, (own + 1) * group), np.zeros(len(keys))
            there = [i for i in range(len(keys)) if i * part.stride + part.length - 1 <= t]
            for head in heads if there else []:
                weights = softmax(keys[there] @ q[t, head] * part.scale)
                rates[there] += weights
                out[t, head] += gates[t, 0, head] * (weights @ values[there])
            chosen = blocks_of(part, rates, t)
            turned = (
                [turn(part.rope, k[p, own], p) for p in range(t + 1)],
                [turn(part.rope, k[p, kv + own], p) for p in range(t + 1)],
            )
            sees = (
                [p for p in range(t + 1) if p // part.block in chosen],
                [p for p in range(t + 1) if t - p < part.window],
            )
            for branch, (rows, places) in enumerate(zip(turned, sees, strict=True)):
                for head in heads:
                    weights = softmax(np.array([rows[p] for p in places]) @ turn(part.rope, q[t, head], t) * part.scale)
                    out[t, head] += gates[t, 1 + branch, head] * (weights @ v[places, branch * kv + own])
    return out.reshape(len(x), -1)


def blocks_of(part: SparseAttentionSpec, rates: np.ndarray, t: int) -> set[int]:
    """Equation 9: strides m of the block and n of a compressed one. Then the
    first ones, the latest, and the best others.
    """
    own = t // part.block
    scores = np.zeros(own + 1)
    for block in range(own + 1):
        for m in range(part.block // part.stride):
            for n in range(part.length // part.stride):
                at = part.block // part.stride * block + m - n
                scores[block] += rates[at] if 0 <= at < len(rates) else 0
    always = {block for block in range(own + 1) if block < part.first or block > own - part.latest}
    others = sorted(set(range(own + 1)) - always, key=lambda block: (-scores[block], block))
    return always | set(others[: part.most - len(always)])


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def turn(rope: RopeParameters | None, x: np.ndarray, position: int) -> np.ndarray:
    if rope is None:
        return x
    half = len(x) // 2
    angles = position * rope.theta ** (-np.arange(half) / half)
    return np.concatenate(
        [x[:half] * np.cos(angles) - x[half:] * np.sin(angles), x[half:] * np.cos(angles) + x[:half] * np.sin(angles)]
    )


@pytest.mark.parametrize("attention", ["torch_native", "auto"])
@pytest.mark.parametrize("case", SPECS)
def test_steps_are_those_of_the_paper(case: str, attention: str) -> None:
    """Prompts cold and in chunks, decodes, and two that go on from one."""
    part = SPECS[case]
    rig, random = Watched(part, attention), np.random.default_rng(3)
    rows = [Row(random.integers(4, 60, size).tolist()) for size in (41, 3, 30)]
    inputs: list[list[torch.Tensor]] = [[], [], [], []]
    outputs: list[list[torch.Tensor]] = [[], [], [], []]

    def step(*counts: int) -> None:
        rig.step([(row, count) for row, count in zip(rows, counts, strict=True) if count])
        x, y = (iter(each.split([count for count in counts if count])) for each in rig.seen.pop())
        for index, count in enumerate(counts):
            if count:
                inputs[index].append(next(x))
                outputs[index].append(next(y))

    for counts in ((0, 1, 30), (1, 1, 0), (1, 1, 0), (37, 0, 0), (1, 0, 0)):
        step(*counts)
    rows.append(rows[0].behind(rows[0].tokens + [7, 9, 11]))
    inputs[3], outputs[3] = list(inputs[0]), list(outputs[0])
    step(1, 0, 0, 1)
    step(0, 0, 0, 3)
    for x, y in zip(inputs, outputs, strict=True):
        expected = of_the_paper(part, rig.mixer, torch.cat(x))
        assert np.isfinite(expected).all()
        np.testing.assert_allclose(torch.cat(y).numpy(), expected, atol=2e-4)


def test_many_queries_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from sgl.runtime.models.reference import reference_sparse_attention

    rig, tokens = LawRig(model(LayerSpec(LayerNorms.pre(RMS), SPARSE, GatedFFNSpec(16)))), list(range(5, 50))
    whole = rig.step([(Row(tokens), 45), (Row(tokens[3:]), 42)], True)
    monkeypatch.setattr(reference_sparse_attention, "ROWS", 7)
    torch.testing.assert_close(rig.step([(Row(tokens), 45), (Row(tokens[3:]), 42)], True), whole, atol=1e-5, rtol=1e-5)


def test_in_bfloat16() -> None:
    spec, tokens = model(LayerSpec(LayerNorms.pre(RMS), SPARSE, GatedFFNSpec(16))), list(range(5, 50))
    exact = LawRig(spec).step([(Row(tokens), 45)], True)
    rounded = LawRig(spec, torch.bfloat16).step([(Row(tokens), 45)], True)
    assert (rounded - exact).norm() < 0.1 * exact.norm()


REFUSED = [
    ({"most": 2, "first": 2, "latest": 1}, "of 2 chosen blocks the 2 first and the 1 latest cannot always be some"),
    ({"latest": 0}, "the 0 latest cannot always be some; the query's own must be"),
    ({"stride": 5}, "compressed blocks of 4 tokens every 5, .* none may leave tokens out"),
    ({"rope": RopeParameters(1e4, 8, 16)}, "turns the halves of whole heads of 16"),
]


@pytest.mark.parametrize(("keys", "message"), REFUSED)
def test_what_cannot_be_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(SPARSE, **keys)


def test_it_is_described() -> None:
    text = describe_layer(LayerSpec(LayerNorms.pre(RMS), SPARSE, GatedFFNSpec(16)))
    assert text.startswith(
        "sparse attention 4 heads, 2 kv, dim 16, 4 tokens compressed every 2, 3 blocks of 4 tokens chosen, window "
        "5; gated"
    )
