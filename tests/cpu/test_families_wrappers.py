"""The text models of multimodal wrappers against transformers' whole wrappers, given text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from checkpoint_edits import rewrite
from checkpoints import edit_json
from family_checks import SIZES, check_checkpoint, logits_of, prompt, randomise
from rig import Rig, Row

from sgl.runtime.errors import CheckpointError
from sgl.runtime.loading import load_config

SEES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN_SEES = {
    "depth": 1,
    "embed_dim": 16,
    "hidden_size": 64,
    "num_heads": 2,
    "out_hidden_size": 64,
    "intermediate_size": 16,
}
MROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2], "rope_theta": 1e4}}
CLIP, SIGLIP, PIXTRAL = ({"model_type": name} for name in ("clip_vision_model", "siglip_vision_model", "pixtral"))
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma3": ("Gemma3ForConditionalGeneration", {"head_dim": 32, "sliding_window": 9}, SEES | SIGLIP),
    "gemma4": (
        "Gemma4ForConditionalGeneration",
        {
            "sliding_window": 9,
            "head_dim": 16,
            "vocab_size_per_layer_input": 320,
            "hidden_size_per_layer_input": 8,
            "global_head_dim": 32,
        },
        {},
    ),
    "ministral3": ("Mistral3ForConditionalGeneration", {"model_type": "ministral3", "head_dim": 16}, SEES | PIXTRAL),
    "mistral3": (
        "Mistral3ForConditionalGeneration",
        {"model_type": "mistral", "head_dim": 32, "sliding_window": 9},
        SEES | PIXTRAL,
    ),
    "llava of llama": ("LlavaForConditionalGeneration", {"model_type": "llama"}, SEES | CLIP),
    "llava of qwen2": ("LlavaForConditionalGeneration", {"model_type": "qwen2", "num_hidden_layers": 2}, SEES | CLIP),
    "llava next": ("LlavaNextForConditionalGeneration", {"model_type": "mistral", "sliding_window": None}, SEES | CLIP),
    "llava onevision": ("LlavaOnevisionForConditionalGeneration", {"model_type": "qwen2"}, SEES | SIGLIP),
    "internvl": (
        "InternVLForConditionalGeneration",
        {"model_type": "qwen3", "head_dim": 16},
        SEES | {"model_type": "internvl_vision", "image_size": [28, 28], "patch_size": [14, 14]},
    ),
    "qwen2 vl": ("Qwen2VLForConditionalGeneration", MROPE, QWEN_SEES),
    "qwen2 vl, windows": (
        "Qwen2VLForConditionalGeneration",
        MROPE | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
        QWEN_SEES,
    ),
    "qwen2.5 vl": ("Qwen2_5_VLForConditionalGeneration", MROPE, QWEN_SEES),
    "qwen3 vl": (
        "Qwen3VLForConditionalGeneration",
        MROPE | {"head_dim": 16, "attention_bias": True},
        QWEN_SEES | {"hidden_size": 16, "deepstack_visual_indexes": [0]},
    ),
    "qwen3 vl moe": (
        "Qwen3VLMoeForConditionalGeneration",
        MROPE | {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
        QWEN_SEES | {"hidden_size": 16, "deepstack_visual_indexes": [0]},
    ),
    "llama 4": (
        "Llama4ForConditionalGeneration",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "head_dim": 16,
            "intermediate_size_mlp": 80,
            "attention_chunk_size": 11,
            "floor_scale": 7,
        },
        {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "vision_output_dim": 16,
            "image_size": 28,
            "patch_size": 14,
            "projector_input_dim": 16,
            "projector_output_dim": 16,
        },
    ),
}


def wrapper(case: str, **outer: Any) -> transformers.PreTrainedModel:
    architecture, text, eyes = CASES[case]
    kind = getattr(transformers, architecture)
    config = kind.config_class(text_config=SIZES | text, vision_config=eyes or None, **outer)
    config._attn_implementation = config.text_config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = kind(config).eval()
    randomise(model, 0)
    return model


def rename(path: Path, begin: str, instead: str) -> None:
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    renamed = {instead + name.removeprefix(begin) if name.startswith(begin) else name: t for name, t in tensors.items()}
    assert renamed != tensors
    safetensors.torch.save_file(renamed, path / "model.safetensors", {"format": "pt"})


@pytest.mark.few(6)
@pytest.mark.parametrize("case", CASES)
def test_the_text_model_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    if case == "llama 4" and transformers.__version__ == "5.24.0":
        pytest.skip(
            "transformers 5.24.0 cannot run Llama 4 without pictures: it reads image_outputs of an output that has none"
        )
    model = wrapper(case)
    model.save_pretrained(tmp_path)
    rig = check_checkpoint(model, tmp_path, 5e-5)
    assert "its text model only" in rig.model.config.notes[0]


@pytest.mark.parametrize(
    "begin, instead", [("language_model.model.", "model.language_model."), ("language_model.lm_head", "lm_head")]
)
def test_names_of_now_and_before(begin: str, instead: str, tmp_path: Path) -> None:
    model = wrapper("llava of qwen2")
    model.save_pretrained(tmp_path)
    rename(tmp_path, begin, instead)
    check_checkpoint(model, tmp_path)


def test_experts_of_qwen3_vl_as_they_were_published(tmp_path: Path) -> None:
    """As [in, out]; transformers writes them as [out, in]."""
    model = wrapper("qwen3 vl moe")
    model.save_pretrained(tmp_path)
    rewrite(
        tmp_path,
        lambda tensors: {
            name: tensor.transpose(1, 2) if ".experts." in name else tensor for name, tensor in tensors.items()
        },
    )
    check_checkpoint(model, tmp_path, 5e-5)


def test_a_flat_configuration_with_a_tower_is_a_wrapper(tmp_path: Path) -> None:
    """As Qwen 2 and 2.5 VL are published."""
    model = wrapper("qwen2.5 vl")
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    values = json.loads(file.read_text())
    text = values.pop("text_config") | {
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]},
        "rope_theta": 1e4,
        "rope_parameters": None,
    }
    file.write_text(json.dumps(text | values))
    assert "text model only" in check_checkpoint(model, tmp_path).model.config.notes[0]


def test_a_tensor_of_nobody_is_an_error(tmp_path: Path) -> None:
    wrapper("qwen2 vl").save_pretrained(tmp_path)
    rename(tmp_path, "visual.merger", "vizual.merger")
    with pytest.raises(CheckpointError, match=r"vizual\.merger.* has no place"):
        Rig(tmp_path)


def test_the_wrapper_says_whether_its_head_is_the_embedding(tmp_path: Path) -> None:
    model = wrapper("llava of qwen2", tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    edit_json(
        tmp_path / "config.json",
        text_config=json.loads((tmp_path / "config.json").read_text())["text_config"] | {"tie_word_embeddings": False},
    )
    assert load_config(tmp_path).tied
    check_checkpoint(model, tmp_path)


def test_a_head_that_differs_from_the_embedding_is_used_whatever_the_configuration_says(tmp_path: Path) -> None:
    """Mistral 3's wrapper says that it is tied where nothing is written."""
    wrapper("mistral3", tie_word_embeddings=False).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", tie_word_embeddings=True)
    model = transformers.Mistral3ForConditionalGeneration.from_pretrained(tmp_path, attn_implementation="eager")
    rig = Rig(tmp_path)
    assert not rig.model.config.tied and "another head" in rig.model.config.notes[-1]
    tokens = prompt(320)
    torch.testing.assert_close(
        rig.step([(Row(tokens), 60)], every_row=True), logits_of(model, tokens), atol=1e-4, rtol=1e-4
    )


def test_a_head_that_is_the_embedding_is_kept_once(tmp_path: Path) -> None:
    wrapper("gemma3").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    tensors["lm_head.weight"] = tensors["language_model.model.embed_tokens.weight"].clone()
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    assert Rig(tmp_path).model.config.tied
