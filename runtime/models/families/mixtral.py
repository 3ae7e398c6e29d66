"""Mixtral, MiniMax M2: Mistral's layers with experts under w1, w2 and w3."""

from __future__ import annotations

from ..config import Config
from ..names import ExpertNames, Names
from ..spec import Gated, Model, Norms, Router
from .registry import family

BLOCK = "block_sparse_moe."
MIXTRAL = ExpertNames(
    router=f"{BLOCK}gate", correction=f"{BLOCK}e_score_correction_bias", gate=f"{BLOCK}experts.{{}}.w1", up=f"{BLOCK}experts.{{}}.w3",
    down=f"{BLOCK}experts.{{}}.w2", stacks=(),
)  # fmt: skip


@family("MixtralForCausalLM")
def mixtral(c: Config) -> Model:
    """A window, if there is one, holds for all layers."""
    c.raw("router_jitter_noise")  # of training
    rms = c.rms(1e-5)
    mixer = c.attention(kv_heads=8, rope=c.rope(c.width(), theta=1e6), window=c.optional("sliding_window", int))
    experts = c.experts(Gated(c.inner, c.activation()), Router(normalise=True))
    return c.model([c.layer(Norms.pre(rms), mixer, experts)] * c.count, rms, names=Names(experts=MIXTRAL))
