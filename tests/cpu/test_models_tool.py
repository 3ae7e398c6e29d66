"""`sgl models` lists what loads, and says of a checkpoint what an engine would find, before one is opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import edit_json, write_checkpoint, write_tokenizer
from family_checks import SIZES, reference

import sgl
from sgl.cli import main
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.build.memory_estimate import estimate_memory, weights_by_kind
from sgl.runtime.loading import dummy_model
from sgl.runtime.models.describe.family_listing import PARTS, lineages, runs_of_parts
from sgl.runtime.models.families import FAMILIES, read_model
from sgl.runtime.quantization import transform_for

LARGER = SIZES | {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["models", *words, "--json"]) in (0, 1)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_family_is_listed_with_what_runs_the_parts(capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "dtype=float32", "device=cpu")
    assert sorted(name for family in found["families"] for name in family["architectures"]) == sorted(FAMILIES)
    assert all(family["about"].endswith(".") for family in found["families"])
    assert set(found["parts"]) == set(PARTS) and found["parts"]["ALiBi"]["by"] == "torch"
    assert main(["models", "device=cpu"]) == 0
    text = capsys.readouterr().out
    assert all(family.file.removesuffix(".py") in text for family in lineages()) and "ALiBi" in text


@pytest.mark.parametrize("name", PARTS)
def test_a_part_runs_by_what_the_list_says(name: str) -> None:
    """Its model is loaded with random weights and asked itself."""
    made = dummy_model(PARTS[name](), torch.float32)
    runs = made.executors()
    slowest = next((ran for ran in runs if ran.why is not None), runs[0])
    assert runs_of_parts("cpu", "float32")[name].by == slowest.by


@pytest.mark.few(2)
@pytest.mark.parametrize("options", [{}, {"dtype": "float16"}, {"attention": "torch_native"}, {"context": 100}])
def test_a_survey_says_what_the_engine_then_says(tiny: Path, options: dict[str, Any]) -> None:
    options = {"dtype": "float32"} | options
    found = estimate_memory(tiny, EngineConfig.from_options(options))
    with sgl.Engine(tiny, kv_tokens=512, **options) as engine:
        info = engine.info()
    assert found.sizes is not None and found.loads and found.text.chat
    assert [row.layers for row in found.layers] == [row["layers"] for row in info["layers"]]
    assert list(found.slower) == info["slower"]
    assert (found.sizes.parameters, found.context, found.device, found.dtype) == (
        info["parameters"],
        info["context"],
        info["device"],
        info["dtype"],
    )
    assert found.sizes.kv_token * (info["kv_tokens"] + 1) == info["kv_bytes"]
    assert found.files.bytes == sum(file.stat().st_size for file in tiny.glob("*.safetensors"))
    assert found.files.dtypes == {"F32": found.sizes.parameters}


@pytest.mark.few(1)
@pytest.mark.parametrize("tied", [False, True])
def test_sizes_of_weights_are_those_of_the_loaded(tied: bool) -> None:
    config = read_model(LARGER | {"tie_word_embeddings": tied})
    sizes = weights_by_kind(config)
    assert sizes["float32"] == 2 * sizes["bfloat16"]
    for weights in ("int8", "int4", "nvfp4", "mxfp4"):
        quantized = dummy_model(config, torch.bfloat16, transform=transform_for(weights, False, torch.device("cpu")))
        assert sizes[weights] == pytest.approx(quantized.weight_bytes, rel=0.03)
    fp8 = dummy_model(config, torch.bfloat16, transform=transform_for("fp8", False, torch.device("cpu")))
    plain = dummy_model(config, torch.bfloat16, transform=lambda name, layer: layer)
    saved = plain.weight_bytes - fp8.weight_bytes
    assert sizes["bfloat16"] - sizes["fp8"] == pytest.approx(saved, rel=0.1)


def test_the_answer_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_checkpoint(tmp_path, tokenizer=True, rope_parameters=LLAMA3)
    assert main(["models", str(path), "max_running=3", "dtype=float32", "device=cpu"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (
        "LlamaForCausalLM, read by llama in families/llama.py",
        "all tensors are there",
        "tokens; with a chat template",
        "512 tokens by config.json; RoPE llama3, factor 8, trained on 64",
        "for 3 (max_running)",
        "layers 0-2: attention 4 heads, 2 kv, dim 16, RoPE llama3; gated silu 96; norms before",
    ):
        assert part in text


def test_what_does_not_load_is_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_checkpoint(tmp_path)
    edit_json(path / "config.json", intermediate_size=97)
    assert main(["models", str(path)]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "PROBLEM" in text
        and "[64, 96], config.json asks for [64, 97]" in text
        and "no tokenizer that can be read" in text
    )
    (path / "model.safetensors").unlink()
    assert "lacks the weights" in said(capsys, str(path))["files"]["problem"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["dtyp=float32"], "did you mean 'dtype'"),
        (["context=100000"], "beyond the 512 positions"),
        (["weights=int7"], "int7"),
        (["another"], "give one model, not"),
    ],
)
def test_words_that_are_wrong(words: list[str], message: str, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", str(tiny), *words]) == 1
    assert message in capsys.readouterr().err


def test_an_architecture_that_nobody_computes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_checkpoint(tmp_path)
    edit_json(path / "config.json", architectures=["LlammaForCausalLM"], model_type="llamma")
    assert main(["models", str(path)]) == 1
    error = capsys.readouterr().err
    assert "did you mean 'LlamaForCausalLM'" in error and "Nor by transformers" in error


def test_a_model_that_transformers_computes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference("FlexOlmoForCausalLM", num_experts=4, num_experts_per_tok=2).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    assert main(["models", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "FlexOlmoForCausalLM, which no family reads" in text and "all layers use the transformers executor" in text


def test_a_hub_id_needs_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = tmp_path / "models--acme--tiny" / "snapshots" / ("0" * 40)
    (snapshot.parents[1] / "refs").mkdir(parents=True)
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    write_checkpoint(snapshot, tokenizer=True)
    (snapshot / "model.safetensors").unlink()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    found = said(capsys, "acme/tiny")
    assert found["sizes"]["layers"] == 3 and "lacks the weights" in found["files"]["problem"]
