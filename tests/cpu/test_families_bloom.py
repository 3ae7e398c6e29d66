"""Bloom, MPT and Falcon against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_edits import refused, rewrite
from family_checks import check_checkpoint, check_family, reference
from family_cover import covered

from sgl.runtime.models.spec.alibi_slopes import alibi_slopes

BLOOM = {"intermediate_size": ..., "num_key_value_heads": ..., "max_position_embeddings": ...}
MPT = BLOOM | {"max_seq_len": 256}
FALCON = {"intermediate_size": ..., "num_key_value_heads": ...}
RW = FALCON | {"alibi": True, "parallel_attn": False, "multi_query": False, "bias": True}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom": ("BloomForCausalLM", BLOOM),
    "bloom-six-heads": (
        "BloomForCausalLM",
        BLOOM | {"num_attention_heads": 6, "hidden_size": 96, "tie_word_embeddings": False},
    ),
    "mpt": ("MptForCausalLM", MPT),
    "mpt-six-heads": (
        "MptForCausalLM",
        MPT | {"num_attention_heads": 6, "hidden_size": 96, "attn_config": {"clip_qkv": 0.8, "softmax_scale": 0.4}},
    ),
    "falcon-7b": ("FalconForCausalLM", FALCON),
    "falcon-40b": ("FalconForCausalLM", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon-11b": (
        "FalconForCausalLM",
        FALCON
        | {
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "ffn_hidden_size": 96,
            "activation": "relu",
        },
    ),
    "falcon-rw-turning": ("FalconForCausalLM", RW | {"alibi": False, "multi_query": True}),
}


@pytest.mark.parametrize("case", covered(CASES, names=True))
def test_a_family_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    architecture, keys = CASES[case]
    check_family(architecture, tmp_path, **keys)


def test_falcon_with_alibi_is_that_of_transformers(tmp_path: Path) -> None:
    """The eager attention of transformers adds ALiBi twice, so this one is compared with its other one.

    Four heads: their slopes and the first 256 multiples of them are bfloat16 numbers, which transformers rounds to.
    """
    model = reference("FalconForCausalLM", **RW)
    model.config._attn_implementation = "sdpa"
    model.save_pretrained(tmp_path)
    check_checkpoint(model, tmp_path)


def test_the_first_files_of_bloom_have_no_prefix(tmp_path: Path) -> None:
    model = reference("BloomForCausalLM", **BLOOM)
    model.save_pretrained(tmp_path)
    keys = {"n_embed": 64, "hidden_size": ..., "offset_alibi": 100, "masked_softmax_fusion": True, "seq_length": 256}
    rewrite(
        tmp_path,
        lambda tensors: {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()},
        **keys,
    )
    assert check_checkpoint(model, tmp_path).model.config.max_position == 256


@pytest.mark.parametrize("heads", [1, 4, 6, 12, 71, 128])
def test_slopes_are_those_of_the_families(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import _get_alibi_slopes
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    found = torch.tensor(alibi_slopes(heads))
    torch.testing.assert_close(found, _get_alibi_slopes(heads, torch.device("cpu")), rtol=1e-5, atol=0)
    torch.testing.assert_close(found, -build_mpt_alibi_tensor(heads, 2)[:, 0, 0], rtol=1e-5, atol=0)
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads, 0.25)), found / 4)


REFUSED: list[tuple[str, dict[str, Any], str, object]] = [
    ("BloomForCausalLM", BLOOM, "apply_residual_connection_post_layernorm", True),
    ("BloomForCausalLM", BLOOM, "slow_but_exact", True),
    ("BloomForCausalLM", BLOOM, "n_inner", 96),
    ("MptForCausalLM", MPT, "expansion_ratio", 2),
    ("MptForCausalLM", MPT, "no_bias", False),
    ("MptForCausalLM", MPT, "norm_type", "rmsnorm"),
    ("MptForCausalLM", MPT, "logit_scale", "inv_sqrt_d_model"),
    ("MptForCausalLM", MPT, "attn_config", {"alibi": False}),
    ("MptForCausalLM", MPT, "attn_config", {"alibi_bias_max": 16}),
    ("MptForCausalLM", MPT, "attn_config", {"qk_ln": True}),
    ("MptForCausalLM", MPT, "attn_config", {"prefix_lm": True}),
    ("MptForCausalLM", MPT, "attn_config", {"attn_uses_sequence_id": True}),
    ("MptForCausalLM", MPT, "attn_config", {"attn_type": "multiquery_attention"}),
    ("MptForCausalLM", MPT, "attn_config", {"rope": True}),
    ("MptForCausalLM", MPT, "attn_config", 3),
    ("FalconForCausalLM", FALCON, "num_ln_in_parallel_attn", 2),
    ("FalconForCausalLM", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}, "parallel_attn", False),
    ("FalconForCausalLM", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}, "num_kv_heads", 3),
    ("FalconForCausalLM", FALCON | {"multi_query": False}, "num_kv_heads", 2),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]}-{case[2]}")
def test_what_is_not_computed_is_refused(case: tuple[str, dict[str, Any], str, object], tmp_path: Path) -> None:
    architecture, keys, key, value = case
    reference(architecture, **keys).config.save_pretrained(tmp_path)
    rewrite(tmp_path, architectures=[architecture])
    refused(tmp_path, key, value)
