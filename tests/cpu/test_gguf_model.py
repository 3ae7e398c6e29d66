"""Models out of GGUF files beside their safetensors twins: the same configuration, weights and logits."""

from __future__ import annotations

import math
import re
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from family_checks import prompt, reference
from gguf_convert import Packed, Value, gguf_name, packed, random_blocks, write_gguf, write_twin
from loaded_models import GivenWeights
from rig import Rig, Row

from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.layers.rotary_embedding import frequencies
from sgl.runtime.loading import load_config, load_model
from sgl.runtime.loading.gguf_files.gguf_model import GGUFModel, open_gguf
from sgl.runtime.loading.tensor_files.stacked_expert_source import split_stacked_experts
from sgl.runtime.loading.tensor_files.tensor_source import FileWeightSource
from sgl.runtime.loading.tensor_files.torch_dtypes import DTYPES
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.reference.reference_attention import rows_in_file
from sgl.runtime.models.reference.reference_block import ReferenceBlock
from sgl.runtime.models.spec.model_spec import AttentionSpec, ModelSpec
from sgl.runtime.quantization.fused_quantized_weight import FusedQuantizedWeight
from sgl.runtime.quantization.quantized_weight import QuantizedWeight
from sgl.runtime.quantization.readers.gguf_block_kinds import BLOCKS
from sgl.runtime.quantization.readers.gguf_blocks import decode

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [2.0 + i / 4 for i in range(8)],
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "num_hidden_layers": 7, "sliding_window": 9}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
GPT2 = dict.fromkeys(
    (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
    ),
    ...,
)
GPT2 |= {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GLM = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_mtp_layers": 0}
LFM2 = ["conv", "full_attention", "conv", "conv"]
OSS_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1.5e5,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "truncate": False,
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "LlamaForCausalLM", {}),
    "llama, biases, tied": (
        "llama",
        "LlamaForCausalLM",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama 3.1": ("llama", "LlamaForCausalLM", {"rope_parameters": LLAMA3, "head_dim": 64}),
    "llama, linear": (
        "llama",
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}},
    ),
    "mistral": ("llama", "MistralForCausalLM", {"sliding_window": 9, "head_dim": 32}),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", {"rms_norm_eps": 1e-6, "rope_theta": 1e6}),
    "qwen2, yarn": ("qwen2", "Qwen2ForCausalLM", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma": ("gemma", "GemmaForCausalLM", {"head_dim": 32}),
    "gemma2": ("gemma2", "Gemma2ForCausalLM", GEMMA | {"attn_logit_softcapping": 3.0}),
    "gemma3": ("gemma3", "Gemma3ForCausalLM", GEMMA | {"rope_parameters": GEMMA3_ROPE}),
    "phi2": ("phi2", "PhiForCausalLM", {"num_key_value_heads": 4}),
    "phi3": ("phi3", "Phi3ForCausalLM", {"sliding_window": 9}),
    "phi3, long": ("phi3", "Phi3ForCausalLM", {"original_max_position_embeddings": 64, "rope_parameters": LONG}),
    "phi3, three quarters turn": ("phi3", "Phi3ForCausalLM", {"partial_rotary_factor": 0.75}),
    "command-r": ("command-r", "CohereForCausalLM", {"use_qk_norm": True, "logit_scale": 0.3}),
    "cohere2": ("cohere2", "Cohere2ForCausalLM", {"sliding_window": 9, "logit_scale": 0.3}),
    "starcoder2": ("starcoder2", "Starcoder2ForCausalLM", {}),
    "stablelm": ("stablelm", "StableLmForCausalLM", {"use_qkv_bias": True}),
    "gpt2": ("gpt2", "GPT2LMHeadModel", GPT2),
    "olmo2": ("olmo2", "Olmo2ForCausalLM", {}),
    "mixtral": ("llama", "MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3 moe": ("qwen3moe", "Qwen3MoeForCausalLM", EXPERTS | {"moe_intermediate_size": 32, "norm_topk_prob": True}),
    "gpt-oss": (
        "gpt-oss",
        "GptOssForCausalLM",
        EXPERTS | {"head_dim": 16, "sliding_window": 9, "rope_parameters": OSS_YARN},
    ),
    "qwen2 moe": (
        "qwen2moe",
        "Qwen2MoeForCausalLM",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
        },
    ),
    "glm 4.5": ("glm4moe", "Glm4MoeForCausalLM", GLM | {"use_qk_norm": True, "attention_bias": True, "head_dim": 32}),
    "glm 4.5, groups": (
        "glm4moe",
        "Glm4MoeForCausalLM",
        GLM
        | {
            "n_group": 2,
            "topk_group": 1,
            "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 2,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
        },
    ),
    "lfm2": ("lfm2", "Lfm2ForCausalLM", {"layer_types": LFM2, "block_multiple_of": 32}),
    "lfm2, wider": (
        "lfm2",
        "Lfm2ForCausalLM",
        {"layer_types": LFM2[::-1], "conv_L_cache": 5, "block_auto_adjust_ff_dim": False, "norm_eps": 0.1},
    ),
    "lfm2 moe": (
        "lfm2moe",
        "Lfm2MoeForCausalLM",
        {
            "layer_types": LFM2,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "num_dense_layers": 1,
        },
    ),
    "seed oss": ("seed_oss", "SeedOssForCausalLM", {"head_dim": 32}),
    "seed oss, other biases": (
        "seed_oss",
        "SeedOssForCausalLM",
        {"head_dim": 16, "attention_bias": False, "attention_out_bias": True},
    ),
    "smollm3": ("smollm3", "SmolLM3ForCausalLM", {"num_hidden_layers": 5}),
    "granite": (
        "granite",
        "GraniteForCausalLM",
        {"attention_multiplier": 0.2, "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0},
    ),
}


REORDERED = {
    "smollm3"
}  # heads that turn nothing have their numbers in another order, which their products do not tell but for rounding


def pair(case: str, folder: Path, kind: Any = "F32", **more: Any) -> tuple[Path, GGUFModel]:
    arch, architecture, keys = CASES[case]
    reference(architecture, **keys).save_pretrained(folder)
    return folder, open_gguf(write_twin(folder, folder / "model.gguf", arch, kind, **more))


def dense(file: Path, stored: Any) -> torch.Tensor:
    with open(file, "rb") as stream:
        stream.seek(stored.start)
        raw = torch.frombuffer(bytearray(stream.read(stored.stop - stored.start)), dtype=torch.uint8)
    if stored.dtype in BLOCKS:
        rows = math.prod(stored.shape[:-1])
        return decode(stored.dtype, raw.view(rows, -1), (rows, stored.shape[-1])).dense().view(stored.shape)
    return raw.view(DTYPES[stored.dtype]).view(stored.shape).float()


def loaded(opened: GGUFModel) -> Decoder:
    model = Decoder(opened.model(), torch.float32)
    found = {}
    for file, whole in opened.tensors:
        if whole.name not in opened.names:
            continue
        source = FileWeightSource(file, [whole._replace(name=opened.names[whole.name])])
        for stored in split_stacked_experts(source, model.config).tensors:
            found[stored.name] = dense(file, stored)
    model.load(GivenWeights(lambda name, target: target.copy_(found.pop(name))))
    assert not found
    return model


def plain(model: ModelSpec) -> ModelSpec:
    """Without how its weights lie."""
    layers = []
    for layer in model.layers:
        part, norms = layer.mixer, layer.norms
        if not isinstance(part, AttentionSpec):
            layers.append(layer)
            continue
        rope = None if part.rope is None else replace(part.rope, interleaved=False)
        heads = None if part.norm is None else replace(part.norm, norm=replace(part.norm.norm, offset=0.0))
        named = {name: getattr(norms, name) for name in ("before_mixer", "after_mixer", "before_ffn", "after_ffn")}
        level: Any = {name: replace(norm, offset=0.0) for name, norm in named.items() if norm is not None}
        layers.append(replace(layer, mixer=replace(part, rope=rope, norm=heads), norms=replace(norms, **level)))
    last = None if model.norm is None else replace(model.norm, offset=0.0)
    return replace(model, layers=tuple(layers), norm=last, names=type(model.names)(), dtype=None)


def logits(model: Decoder, folder: Path) -> torch.Tensor:
    tokens = prompt(model.config.vocab_size, 40)
    return Rig(folder, model=model).step([(Row(tokens), len(tokens))], every_row=True)


@pytest.mark.few(8)
@pytest.mark.parametrize("case", CASES)
def test_a_model_equals_its_twin_to_the_last_bit(case: str, tmp_path: Path) -> None:
    folder, opened = pair(case, tmp_path)
    config = load_config(folder)
    assert plain(opened.model()) == plain(config)
    assert [frequencies(rope).tolist() for rope in opened.model().ropes] == [
        frequencies(rope).tolist() for rope in config.ropes
    ]
    assert opened.config["dtype"] == "float32"
    ours, twin = (logits(model, folder) for model in (loaded(opened), load_model(folder)))
    if case in REORDERED:
        torch.testing.assert_close(ours, twin, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(ours, twin)


@pytest.mark.few(2)
@pytest.mark.parametrize("case", ["mixtral", "qwen3 moe", "gpt-oss", "qwen2 moe", "glm 4.5", "lfm2 moe"])
def test_stacked_experts_are_loaded_one_by_one(case: str, tmp_path: Path) -> None:
    folder, _ = pair(case, tmp_path)
    assert torch.equal(logits(load_model(folder / "model.gguf"), folder), logits(load_model(folder), folder))
    _, architecture, keys = CASES[case]
    experts = (reference(architecture, **keys).config.num_hidden_layers - 1) * 4  # a first layer may have none
    pair(case, folder, "Q8_0")
    few = load_model(folder / "model.gguf")
    assert sum(kept.count for kept in few.few_bits) >= 2 * experts and logits(few, folder).isfinite().all()


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("case", ["llama", "gemma2", "gpt2", "gpt-oss"])
def test_weights_of_any_kind_are_those_of_the_file(case: str, kind: str, tmp_path: Path) -> None:
    """Beside a twin of the same numbers in float32: rows that are brought back are whole, whatever their kind."""
    _, opened = pair(case, tmp_path, kind)
    assert opened.config["dtype"] == {"F16": "float16", "BF16": "bfloat16", "Q8_0": "bfloat16"}[kind]
    whole = open_gguf(_restored(opened, tmp_path / "whole.gguf"))
    assert torch.equal(logits(loaded(opened), tmp_path), logits(loaded(whole), tmp_path))
    twin = logits(load_model(tmp_path), tmp_path)
    assert (logits(loaded(opened), tmp_path) - twin).abs().max() < 0.2 * twin.abs().max()


def test_the_codes_of_a_tied_table_are_gone_before_layers_are_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Table, codes and the head's blocks are there together only while nothing else is."""
    folder, _ = pair("llama, biases, tied", tmp_path, "Q8_0")
    held: list[weakref.ref[FusedQuantizedWeight]] = []
    restore, seal = FusedQuantizedWeight.restore, ReferenceBlock.seal

    def noted(codes: FusedQuantizedWeight, to: torch.Tensor) -> None:
        held.append(weakref.ref(codes))
        restore(codes, to)

    def checked(block: ReferenceBlock, *given: Any) -> None:
        assert held[0]() is None
        seal(block, *given)

    monkeypatch.setattr(FusedQuantizedWeight, "restore", noted)
    monkeypatch.setattr(ReferenceBlock, "seal", checked)
    model = load_model(folder / "model.gguf")
    assert sum(count.count for count in model.few_bits) == 4 * len(model.layers) + 1
    assert model.head.product.weight.data_ptr() != model.embedding.table.data_ptr()


def test_few_bit_rows_that_are_brought_back_are_whole(tmp_path: Path) -> None:
    """Queries, keys and values of different K kinds, as most published files have them."""
    reference("LlamaForCausalLM", hidden_size=256, num_hidden_layers=2).save_pretrained(tmp_path)
    opened = open_gguf(write_twin(tmp_path, tmp_path / "model.gguf", "llama"))
    kinds = {
        "attn_q": "Q4_K",
        "attn_k": "Q5_K",
        "attn_v": "Q6_K",
        "attn_output": "Q3_K",
        "ffn_gate": "Q2_K",
        "ffn_up": "IQ4_XS",
    }
    tensors = {stored.name: packed(dense(file, stored)) for file, stored in opened.tensors}
    for number, name in enumerate(tensors):
        if kind := kinds.get(name.split(".")[-2]):
            rows, inputs = tensors[name].shape
            tensors[name] = Packed(
                kind, (rows, inputs), random_blocks(kind, rows, inputs // 256, number).numpy().tobytes()
            )
    few = open_gguf(write_gguf(tmp_path / "few.gguf", opened.metadata, tensors))
    whole = open_gguf(_restored(few, tmp_path / "whole.gguf"))
    assert {stored.dtype for _, stored in few.tensors} == {"F32", *kinds.values()} and few.config["dtype"] == "bfloat16"
    assert torch.equal(logits(loaded(few), tmp_path), logits(loaded(whole), tmp_path))
    head = few.model().layers[0].mixer
    brought = decode_of(few, "blk.0.attn_k.weight").take(torch.tensor(_rows(head))).dense()
    assert torch.equal(brought, dense_of(few, "blk.0.attn_k.weight")[_rows(head)])
    assert (rows_in_file(head, "rows")[256:384] - 256).tolist() == _rows(head)


def _rows(part: Any) -> list[int]:
    """Of keys in the file, half a head apart."""
    heads = torch.arange(part.kv_heads * part.dim).view(part.kv_heads, part.dim // 2, 2)
    rows: list[int] = heads.transpose(1, 2).flatten().tolist()
    return rows


def dense_of(opened: GGUFModel, name: str) -> torch.Tensor:
    return next(dense(file, stored) for file, stored in opened.tensors if stored.name == name)


def decode_of(opened: GGUFModel, name: str) -> QuantizedWeight:
    file, stored = next(found for found in opened.tensors if found[1].name == name)
    raw = torch.frombuffer(bytearray(file.read_bytes()[stored.start : stored.stop]), dtype=torch.uint8)
    return decode(stored.dtype, raw.view(stored.shape[0], -1), (stored.shape[0], stored.shape[1]))


def _restored(opened: GGUFModel, file: Path) -> Path:
    return write_gguf(file, opened.metadata, {stored.name: packed(dense(at, stored)) for at, stored in opened.tensors})


def test_a_merged_projection_and_a_window_of_another_kind_are_read(tmp_path: Path) -> None:
    """Newer converters merge queries, keys and values; each part keeps its own order of rows."""
    folder, opened = pair("llama", tmp_path)
    tensors = {stored.name: dense(at, stored) for at, stored in opened.tensors}
    for layer in range(4):
        parts = [tensors.pop(f"blk.{layer}.attn_{which}.weight") for which in "qkv"]
        tensors[f"blk.{layer}.attn_qkv.weight"] = torch.cat(parts)
    merged = open_gguf(
        write_gguf(
            tmp_path / "merged.gguf", opened.metadata, {name: packed(tensor) for name, tensor in tensors.items()}
        )
    )
    assert torch.equal(logits(loaded(merged), folder), logits(load_model(folder), folder))


def test_llama_3_has_the_parameters_of_its_twin(tmp_path: Path) -> None:
    _, opened = pair("llama 3.1", tmp_path)
    assert opened.config["rope_scaling"] == {key: value for key, value in LLAMA3.items() if key != "rope_theta"}


def test_other_factors_are_taken_as_they_are(tmp_path: Path) -> None:
    _, opened = pair("llama", tmp_path)
    factors = [1.0, 1.5, 2.25, 3.0, 4.0, 5.5, 7.0, 9.0]
    tensors = {stored.name: packed(dense(at, stored)) for at, stored in opened.tensors} | {
        "rope_freqs.weight": packed(torch.tensor(factors))
    }
    own = open_gguf(write_gguf(tmp_path / "own.gguf", opened.metadata, tensors))
    expected = frequencies(load_config(tmp_path).ropes[0]) / torch.tensor(factors)
    assert torch.allclose(frequencies(own.model().ropes[0]), expected, rtol=3e-7, atol=0)
    assert own.model().ropes[0].attention_factor == 1 and "rope_freqs.weight" not in own.names


def test_a_model_in_parts_is_one_model(tmp_path: Path) -> None:
    folder, opened = pair("qwen2", tmp_path)
    names = list(opened.names)
    for number in range(2):
        own = {
            stored.name: packed(dense(at, stored)) for at, stored in opened.tensors if stored.name in names[number::2]
        }
        split = {"split.no": Value(2, number), "split.count": Value(2, 2), "split.tensors.count": Value(5, len(names))}
        write_gguf(
            tmp_path / f"s-0000{number + 1}-of-00002.gguf", (opened.metadata if number == 0 else {}) | split, own
        )
    found = open_gguf(tmp_path / "s-00002-of-00002.gguf")
    assert torch.equal(logits(loaded(found), folder), logits(load_model(folder), folder))


@pytest.mark.parametrize("case", CASES)
def test_names_are_those_of_the_formats_own_package(case: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    arch, architecture, keys = CASES[case]
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    table = gguf.get_tensor_name_map(number, 8)
    for name in reference(architecture, **keys).state_dict():
        if ".experts." in name or name.endswith("sinks"):
            continue  # by layer
        theirs = table.get_name(
            re.sub(
                "(correction|expert)_bias$",
                lambda found: {"correction": "correction.bias", "expert": "expert_bias.bias"}[found[1]],
                name,
            ),
            try_suffixes=(".weight", ".bias"),
        )
        assert theirs == gguf_name(name, arch) or name == "lm_head.weight"


def test_layers_that_predict_further_tokens_are_left_aside(tmp_path: Path) -> None:
    folder, opened = pair("glm 4.5", tmp_path)
    tensors = {stored.name: packed(dense(at, stored)) for at, stored in opened.tensors}
    for name in ("blk.4.attn_q.weight", "blk.4.nextn.eh_proj.weight"):
        tensors[name] = packed(torch.ones(4, 64))
    keys = opened.metadata | {"glm4moe.block_count": 5}
    with pytest.raises(CheckpointError, match=r"blk\.4\.nextn\.eh_proj\.weight' has no place"):
        open_gguf(write_gguf(tmp_path / "more.gguf", keys, tensors))
    longer = open_gguf(write_gguf(tmp_path / "more.gguf", keys | {"glm4moe.nextn_predict_layers": 1}, tensors))
    assert set(longer.names) == set(opened.names)
    assert torch.equal(logits(loaded(longer), folder), logits(load_model(folder), folder))


def test_the_switch_of_shared_experts_may_be_a_vector(tmp_path: Path) -> None:
    folder, opened = pair("qwen2 moe", tmp_path)
    tensors = {stored.name: dense(at, stored) for at, stored in opened.tensors}
    flat = {
        name: packed(tensor.squeeze(0) if name.endswith("inp_shexp.weight") else tensor)
        for name, tensor in tensors.items()
    }
    found = load_model(write_gguf(tmp_path / "flat.gguf", opened.metadata, flat))
    assert torch.equal(logits(found, folder), logits(load_model(folder), folder))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"general.architecture": "rwkv6"}, "general.architecture='rwkv6' is not supported; supported: llama, qwen2"),
        ({"general.architecture": 5}, "general.architecture=5"),
        ({"general.type": "adapter"}, "general.type='adapter'"),
        ({"llama.expert_count": 8}, "num_experts_per_tok.* is missing"),
        (
            {"llama.expert_count": 4, "llama.expert_used_count": 2, "llama.expert_gating_func": 2},
            "expert_gating_func=2 is not supported",
        ),
        ({"llama.attention.q_lora_rank": 64}, r"llama.attention.q_lora_rank=64 is not understood"),
        ({"llama.vocab_size": 999}, "vocab_size=999, but token_embd.weight has 320 rows"),
        ({"llama.attention.head_count_kv": [2, 2, 4, 2]}, r"head_count_kv=\[2, 2, 4, 2\]: layers of different sizes"),
        ({"llama.attention.key_length": 16, "llama.attention.value_length": 32}, "attention.value_length=32"),
        ({"llama.attention.causal": False}, "attention.causal=False"),
        ({"llama.rope.dimension_count": 8}, "partial_rotary_factor"),
        ({"llama.rope.freq_base": 0.0}, "rope.freq_base"),
        ({"llama.rope.scaling.type": "spiral"}, "rope.scaling.type='spiral'"),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.yarn_ext_factor": 0.5,
            },
            "yarn_ext_factor=0.5",
        ),
        ({"llama.block_count": -1}, "num_hidden_layers"),
        ({"llama.block_count": "many"}, "num_hidden_layers"),
        ({"llama.embedding_length": 2**40}, "must be"),
        (
            {"llama.attention.head_count": 0},
            r"\(keys as config.json has them\): key 'num_attention_heads' must be at least 1, not 0",
        ),
        ({"llama.attention.head_count": [0]}, "'num_attention_heads' must be at least 1, not 0"),
    ],
)
def test_keys_that_cannot_be_are_refused_by_name(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    written = {
        key: Value(10 if value > 2**31 else 5, value) if type(value) is int else value for key, value in changes.items()
    }
    with pytest.raises((ConfigError, CheckpointError), match=said):
        pair("llama", tmp_path, more=written)


def test_keys_without_effect_are_left_aside(tmp_path: Path) -> None:
    more = {
        "llama.rope.scaling.finetuned": True,
        "llama.expert_count": 0,
        "llama.attention.head_count_kv": [2, 2, 2, 2],
        "llama.unheard_of": 0,
    }
    _, opened = pair("llama", tmp_path, more=more | {"general.name": "x", "quantize.imatrix.file": "y"})
    assert opened.model().layers[0].mixer.kv_heads == 2


def test_tensors_without_a_place_are_refused(tmp_path: Path) -> None:
    _, opened = pair("llama", tmp_path)
    tensors = {stored.name: packed(dense(at, stored)) for at, stored in opened.tensors}
    for name in ("blk.0.ffn_gate_inp.weight", "v.patch_embd.weight", "blk.0.ssm_a"):
        write_gguf(tmp_path / "odd.gguf", opened.metadata, tensors | {name: packed(torch.ones(4, 64))})
        with pytest.raises(CheckpointError, match=f"{name}' has no place in LlamaForCausalLM"):
            open_gguf(tmp_path / "odd.gguf")
    for odd in (packed(torch.ones(3)), packed(torch.zeros(8)), packed(torch.ones(2, 4)), packed(torch.ones(8), "F16")):
        write_gguf(tmp_path / "odd.gguf", opened.metadata, tensors | {"rope_freqs.weight": odd})
        with pytest.raises((ConfigError, CheckpointError), match="rope_freqs"):
            open_gguf(tmp_path / "odd.gguf")
    del tensors["token_embd.weight"]
    write_gguf(tmp_path / "odd.gguf", opened.metadata, tensors)
    with pytest.raises(ConfigError, match=r"no tensor token_embd\.weight"):
        open_gguf(tmp_path / "odd.gguf")
