"""A family of layers with KDA: those of Kimi Linear that do not attend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sgl.runtime.models import Model
from sgl.runtime.models.config import Config
from sgl.runtime.models.families.registry import FAMILIES, Family
from sgl.runtime.models.fields import Fields
from sgl.runtime.models.names import DeltaNames, Names
from sgl.runtime.models.recurrent_spec import Delta
from sgl.runtime.models.spec import Gated, Layer, Norms

KDA = "KimiLinearForCausalLM"
KDA_KEYS: dict[str, Any] = {
    "layer_types": ["linear_attention"] * 2, "mlp_layer_types": ["dense"] * 2, "num_hidden_layers": 2,
    "linear_head_dim": 12, "linear_num_heads": 3, "linear_conv_kernel_dim": 3,
}  # fmt: skip
FFN = "block_sparse_moe."  # which transformers writes before a dense one too
KIMI = Names(
    gate=f"{FFN}gate_proj", up=f"{FFN}up_proj", down=f"{FFN}down_proj",
    delta=DeltaNames(
        "self_attn.", (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("g_a_proj", "z")), (("b_proj", "b"), ("f_a_proj", "a")),
        convolution=("q_conv1d", "k_conv1d", "v_conv1d"), norm="o_norm", output="o_proj",
    ),
)  # fmt: skip


def kimi(c: Config) -> Model:
    rms, own = c.rms(1e-5), Fields(c.values, c.where)
    for key in list(c.values):
        c.raw(key)
    heads, dim = own.positive("linear_num_heads"), own.positive("linear_head_dim")
    mixer = Delta(heads, heads, dim, dim, own.positive("linear_conv_kernel_dim"), rms.eps, rank=dim, gate="sigmoid")
    return c.model([Layer(Norms.pre(rms), mixer, Gated(c.inner))] * c.count, rms, names=KIMI, max_position=512)


@contextmanager
def with_kda() -> Iterator[None]:
    """The family can be loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FAMILIES, KDA, Family("kimi", (KDA,), kimi))
        yield
