"""Decoders of random parts with random weights: every layer differs from its neighbours."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from loaded_models import GivenWeights
from rig import Rig

from sgl.runtime.attention import attention_backend
from sgl.runtime.layers.rope_parameters import RopeParameters
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.spec.model_spec import (
    AttentionSpec,
    ExpertsSpec,
    Feedforward,
    GatedFFNSpec,
    LayerNorms,
    LayerSpec,
    Mixer,
    ModelSpec,
    NormSpec,
    PlainFFNSpec,
    QkNormSpec,
    RouterSpec,
    ShortConvSpec,
)
from sgl.runtime.models.spec.recurrent_spec import DeltaNetSpec, Mamba1Spec, Mamba2Spec

VOCABULARY = 70
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2")


def random_norm(rng: random.Random) -> NormSpec:
    kind: Any = rng.choice(["rms", "layer"])
    return NormSpec(
        rng.choice([1e-5, 1e-6, 0.1]),
        kind,
        rng.choice([0.0, 1.0]),
        rng.random() < 0.8,
        kind == "layer" and rng.random() < 0.5,
    )


def random_norms(rng: random.Random) -> LayerNorms:
    norm = random_norm(rng)
    kind = rng.choice(
        [
            LayerNorms.pre,
            LayerNorms.post,
            LayerNorms.both,
            LayerNorms.parallel_branches,
            lambda n: LayerNorms.parallel_branches(n, own=True),
            lambda n: LayerNorms(),
        ]
    )
    found: LayerNorms = kind(norm)
    if found.after_ffn and not found.before_ffn and rng.random() < 0.5:
        return replace(found, of_sum=True)
    return replace(found, after_ffn=random_norm(rng)) if rng.random() < 0.2 else found


def random_attention(rng: random.Random) -> AttentionSpec:
    dim, kv_heads = rng.choice([16, 20, 32, 64, 80]), rng.choice([1, 2, 3])
    over: Any = rng.choice(["head", "each", "all"])
    turning = rng.choice(
        [
            None,
            RopeParameters(1e4, dim, dim),
            RopeParameters(5e3, dim // 4 * 2, dim),
            RopeParameters(1e4, dim, dim, interleaved=True),
        ]
    )
    own = QkNormSpec(replace(random_norm(rng), bias=False), over, rng.random() < 0.3)
    found = AttentionSpec(
        kv_heads * rng.choice([1, 2, 5]),
        kv_heads,
        dim,
        rng.choice([dim**-0.5, 0.3]),
        rope=turning,
        bias=rng.random() < 0.5,
        out_bias=rng.random() < 0.5,
        norm=rng.choice([None, own]),
        value_norm_eps=rng.choice([None, 1e-5]),
        clip=rng.choice([None, 1.5]),
        window=rng.choice([None, None, 5, 9]),
        chunk=rng.choice([None, None, 8]),
        softcap=rng.choice([None, 4.0]),
        sinks=rng.random() < 0.3,
        value_is_key=rng.random() < 0.2,
    )
    return replace(found, gate=found.clip is None and not found.value_is_key and rng.random() < 0.5)


def random_state(rng: random.Random) -> Mixer:
    """A mixer with a state, as in the layers that keep one."""
    shared, width = rng.choice([1, 2]), rng.choice([2, 3, 4])
    activation = rng.choice(["silu", "gelu", "relu"])
    kind = rng.choice(["delta", "kda", "mamba 2", "mamba 1", "convolution"])
    if kind in ("delta", "kda"):
        rank, gate = (rng.choice([6, 16]), "sigmoid") if kind == "kda" else (None, rng.choice(["silu", "sigmoid"]))
        heads = shared * rng.choice([1, 2, 3])
        return DeltaNetSpec(
            heads,
            heads // shared,
            rng.choice([8, 15, 33]),
            2 * rng.choice([4, 20, 33]),
            width,
            1e-5,
            activation,
            rank,
            rng.choice([1.0, 2.0]),
            gate,
        )
    if kind == "mamba 2":
        groups, limits = rng.choice([1, 2]), rng.choice([(0.0, math.inf), (0.01, 0.5)])
        return Mamba2Spec(
            groups * shared,
            2 * rng.choice([4, 17]),
            rng.choice([8, 15]),
            groups,
            width,
            rng.choice([None, 1e-5]),
            activation,
            rng.random() < 0.5,
            rng.random() < 0.5,
            rng.random() < 0.5,
            *limits,
            rng.random() < 0.5,
        )
    if kind == "mamba 1":
        return Mamba1Spec(
            2 * rng.choice([8, 25]),
            rng.choice([6, 16]),
            rng.choice([4, 6]),
            width,
            activation,
            rng.random() < 0.5,
            rng.random() < 0.5,
            rng.choice([None, random_norm(rng)]),
        )
    return ShortConvSpec(2 * rng.choice([12, 30]), width, rng.random() < 0.5)


def random_experts(rng: random.Random) -> ExpertsSpec:
    def gated() -> GatedFFNSpec:
        return GatedFFNSpec(
            rng.choice([20, 32, 66]), rng.choice(ACTIVATIONS), rng.random() < 0.4, rng.choice([None, None, 0.6])
        )

    groups, score, rank = (
        rng.choice([1, 1, 2, 3]),
        *rng.choice([("softmax", "two"), ("sigmoid", "two"), ("sigmoid", "largest")]),
    )
    router = RouterSpec(
        score,
        rng.random() < 0.3,
        rng.random() < 0.3,
        rng.random() < 0.5,
        groups,
        rng.randint(1, groups),
        rank,
        rng.choice([-math.inf, 0.0]),
        rng.random() < 0.5,
        rng.choice([0.0, 0.4]),
        rng.choice([1.0, 2.5]),
    )
    size = rng.choice([2, 3, 5])
    most = min(4, size * router.kept_groups)
    shared = gated() if rng.random() < 0.5 else None
    return ExpertsSpec(
        groups * size,
        rng.randint(1, most),
        gated(),
        router,
        shared=shared,
        switched=shared is not None and rng.random() < 0.5,
    )


def random_ffn(rng: random.Random) -> Feedforward:
    if rng.random() < 0.3:
        return random_experts(rng)
    kind, inner = rng.choice([GatedFFNSpec, PlainFFNSpec]), rng.choice([40, 64, 98])
    return kind(inner, rng.choice(ACTIVATIONS), rng.random() < 0.4)


def random_layer(rng: random.Random) -> LayerSpec:
    ffn = random_ffn(rng)
    return LayerSpec(random_norms(rng), random_attention(rng), ffn, rng.choice([1.0, 1.0, 0.4]), rng.random() < 0.3)


def with_state(layer: LayerSpec, rng: random.Random) -> LayerSpec:
    """Maybe another mixer, maybe no feedforward network, or no mixer."""
    if rng.random() < 0.3:
        return layer
    layer = replace(layer, mixer=random_state(rng) if rng.random() < 0.8 else layer.mixer)
    if layer.norms.parallel or rng.random() < 0.6:
        return layer
    norms = layer.norms
    if rng.random() < 0.5:
        return replace(layer, ffn=None, norms=replace(norms, before_ffn=None, after_ffn=None))
    return replace(layer, mixer=None, norms=replace(norms, before_mixer=None, after_mixer=None))


def random_model(seed: int, count: int = 5, states: bool = False) -> ModelSpec:
    """The last layer reads what an earlier one stored, now and then.

    states: most layers keep some, or have one part only.
    """
    rng = random.Random(seed)
    layers = [random_layer(rng) for _ in range(count)]
    if states:
        layers = [with_state(layer, rng) for layer in layers]
    elif rng.random() < 0.5:
        layers[-1] = replace(layers[-1], mixer=replace(layers[1].mixer, source=1, value_is_key=False))
    return ModelSpec(
        "Test",
        VOCABULARY,
        rng.choice([48, 66]),
        512,
        tuple(layers),
        rng.choice([None, random_norm(rng)]),
        rng.random() < 0.5,
        embed_scale=rng.choice([1.0, 7.3]),
        embed_norm=rng.choice([None, None, random_norm(rng)]),
        head_bias=rng.random() < 0.3,
        logit_scale=rng.choice([1.0, 0.3]),
        logit_softcap=rng.choice([None, 5.0]),
    )


@torch.no_grad()
def filled(spec: ModelSpec, dtype: torch.dtype, seed: int = 0) -> Decoder:
    """A sealed decoder with random weights."""
    generator = torch.Generator().manual_seed(seed)

    def fill(name: str, target: torch.Tensor) -> None:
        spread = 0.3 if "norm" in name or target.dim() < 2 else target.shape[-1] ** -0.5
        target.copy_(torch.randn(target.shape, generator=generator) * spread + (0.7 if "norm" in name else 0.0))

    return Decoder(spec, dtype, "cpu").load(GivenWeights(fill))


class RandomRig(Rig):
    """A rig of such a model."""

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, attention: str = "auto", slots: int = 1024) -> None:
        self.model = filled(spec, dtype)
        self.pool = spec.attention.pool(slots, dtype, "cpu")
        self.attention = attention_backend(attention, self.pool, spec.attention)
        self.free = list(np.random.default_rng(0).permutation(np.arange(1, slots)))
        self.keep_states(slots, dtype, "cpu")
        self.pool.fill_nan(self.free)
