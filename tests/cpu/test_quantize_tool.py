"""`sgl quantize`: what it writes is read as it was made, by us and by the format's own package, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from sgl.cli import main
from sgl.runtime.calibration import CalibrationTextPiece, shard_writer
from sgl.runtime.calibration.calibration_transform import LayerwiseForward
from sgl.runtime.calibration.quantize_checkpoint import _inverse, quantize
from sgl.runtime.engine import NANO, Engine
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.float8_reference import quantize_weight
from sgl.runtime.loading import load_model
from sgl.runtime.quantization.fp4_fp8_rounding import float8_blocks, mxfp4, nvfp4
from sgl.runtime.quantization.quantized_weight import QuantizedWeight
from sgl.runtime.quantization.readers import TensorHeader, WeightReaders
from sgl.runtime.quantization.weight_rounding import nearest, round_to_int8

MODULE = "model.layers.1.self_attn.k_proj"
NAMES = {
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float16: "F16",
}
FORMATS = {
    "int4": "pack",
    "int8": "pack",
    "fp8": "float",
    "fp8_block": "float",
    "nvfp4": "nvfp4-pack",
    "mxfp4": "mxfp4-pack",
}


def texts(count: int) -> list[np.ndarray]:
    return [np.random.default_rng(i).integers(300, 4000, 60).astype(np.int32) for i in range(count)]


def dense(names: str = "k") -> torch.Tensor:
    tensors = {name: tensor for file in NANO.glob("*.safetensors") for name, tensor in load_file(file).items()}
    return torch.cat([tensors[f"{MODULE.replace('k_proj', f'{name}_proj')}.weight"] for name in names])


def written(out: Path, module: str = MODULE) -> tuple[dict[str, torch.Tensor], QuantizedWeight]:
    tensors = {name: tensor for file in out.glob("*.safetensors") for name, tensor in load_file(file).items()}
    own = {
        name.removeprefix(module + "."): tensor
        for name, tensor in tensors.items()
        if name.startswith(module) and not name.endswith("bias")
    }
    said = json.loads((out / "config.json").read_text())["quantization_config"]
    siblings = {name: TensorHeader(NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in own.items()}
    claim = WeightReaders.of(said, "config.json").claim(module, siblings)
    assert claim is not None
    return own, claim.read(own)


def rounded(weights: str, weight: torch.Tensor) -> QuantizedWeight:
    """weight: k of a layer, whose global scale in NVFP4 is that of q, k and v."""
    if weights in ("int4", "int8"):
        return (
            nearest(weight.float(), 64, weight.dtype)
            if weights == "int4"
            else round_to_int8(weight.float(), weight.dtype)
        )
    if weights == "fp8":
        codes, scale = quantize_weight(weight.float())
        return QuantizedWeight.float8(codes, scale[:, None], weight.shape[1])
    if weights == "fp8_block":
        return float8_blocks(weight.float())
    return mxfp4(weight.float()) if weights == "mxfp4" else nvfp4(dense("qkv").float()).take(slice(384, 512))


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The bundled model in weights of a kind."""
    folder = tmp_path_factory.mktemp("quantised")

    def made(weights: str) -> Path:
        if not (folder / weights).exists():
            quantize(NANO, folder / weights, weights)
        return folder / weights

    return made


@pytest.mark.few(2)
@pytest.mark.parametrize("weights", FORMATS)
def test_the_reader_finds_what_was_rounded(weights: str, quantised: Callable[[str], Path]) -> None:
    expected, (own, found) = rounded(weights, dense()), written(quantised(weights))
    assert (
        torch.equal(found.codes, expected.codes)
        and torch.equal(found.scale, expected.scale)
        and found.group == expected.group
    )
    assert torch.equal(torch.as_tensor(found.zero).float(), torch.as_tensor(expected.zero).float())
    assert torch.equal(found.dense(), expected.dense()) and all(tensor.is_contiguous() for tensor in own.values())


@pytest.mark.parametrize("weights", FORMATS)
def test_the_package_of_the_format_restores_the_same(weights: str, quantised: Callable[[str], Path]) -> None:
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    own, found = written(quantised(weights))
    said = json.loads((quantised(weights) / "config.json").read_text())["quantization_config"]
    scheme = QuantizationConfig.model_validate(said).config_groups["group_0"]
    assert said["format"] == f"{FORMATS[weights]}-quantized"
    restored = BaseCompressor.load_from_registry(said["format"]).decompress(dict(own), scheme)["weight"]
    assert restored.shape == found.shape
    torch.testing.assert_close(restored.float(), found.dense(restored.dtype).float(), rtol=0, atol=0)


def test_blocks_begin_with_each_tensor_of_a_merged_projection(tiny: Path, tmp_path: Path) -> None:
    quantize(tiny, tmp_path / "out", "fp8_block")
    (before,) = (load_file(file) for file in tiny.glob("*.safetensors"))
    for name in "qkv":
        module = MODULE.replace("k_proj", f"{name}_proj")
        assert torch.equal(
            written(tmp_path / "out", module)[1].dense(), float8_blocks(before[f"{module}.weight"].float()).dense()
        )


@pytest.mark.parametrize("weights", ["fp8_block", "nvfp4", "int4"])
def test_rows_that_a_model_computes_in_another_order_are_written_in_the_files(weights: str, tmp_path: Path) -> None:
    config = transformers.GPTNeoXConfig(
        vocab_size=300,
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=128,
    )
    transformers.GPTNeoXForCausalLM(config).save_pretrained(tmp_path / "model")
    quantize(tmp_path / "model", tmp_path / "out", weights, group=32)
    module = "gpt_neox.layers.1.attention.query_key_value"
    weight, found = (
        load_file(tmp_path / "model" / "model.safetensors")[f"{module}.weight"],
        written(tmp_path / "out", module)[1].dense(),
    )
    assert (found - weight).norm() < 0.15 * weight.norm()
    if weights == "fp8_block":
        assert torch.equal(found, float8_blocks(weight).dense())


@pytest.mark.parametrize("weights", ["fp8_block", "nvfp4", "mxfp4"])
def test_an_engine_runs_what_was_written(weights: str, quantised: Callable[[str], Path]) -> None:
    with Engine(quantised(weights), dtype="float32", threads=1, kv_tokens=256) as engine:
        (told,) = engine.info()["few_bits"]
        assert told.startswith("32 projections of ") and ("Int4BlockedLinear" in told) == (
            weights != "fp8_block" and cpu_kernels.kernels.INT4 > 0
        )
        assert engine.generate("1 + 1 =", max_tokens=2, temperature=0).token_ids


@pytest.mark.whole
def test_calibrated_in_shards_it_loads_and_loses_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_writer, "SHARD", 4 * 10**6)
    calibration, held_out = texts(12), [CalibrationTextPiece(ids, np.zeros(len(ids), bool)) for ids in texts(14)[12:]]
    plain = quantize(NANO, tmp_path / "plain", "int4", held_out=held_out)
    found = quantize(NANO, tmp_path / "gptq", "int4_gptq", calibration=calibration, held_out=held_out)
    assert plain.losses and found.losses and found.losses.divergence < plain.losses.divergence
    assert (tmp_path / "gptq" / "model.safetensors.index.json").exists() and found.bits < 4.5
    decoder = load_model(tmp_path / "gptq")
    assert found.answers is None
    flow = LayerwiseForward([piece.ids for piece in held_out])
    flow.enter(decoder)
    for block in decoder.layers:
        flow.run(block)
    assert all(bool(logits.isfinite().all()) for logits in flow.logits())


def test_rows_go_back_to_where_the_file_has_them() -> None:
    weight = nearest(torch.randn(6, 64))
    order = torch.tensor([4, 0, 5, 1, 3, 2])
    assert torch.equal(weight.take(order).take(_inverse(order)).codes, weight.codes)


@pytest.mark.parametrize(
    "options, says",
    [
        (["--weights", "int3"], "cannot be written"),
        (["--weights", "int4_hqq"], "no whole numbers"),
        (["--weights", "int4_gptq"], "texts to calibrate"),
        (["--group", "12"], "whole words"),
        (["--group", "96"], "whole groups"),
        (["--group", "32", "--weights", "int8"], "--group is for --weights int4 and int4_gptq, here: int8"),
        (["--heldout", "missing.txt"], "missing.txt"),
        (["--calibration", "missing.txt"], "nothing uses it with --weights int4"),
    ],
)
def test_what_cannot_be_is_refused(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(NANO), str(tmp_path / "out"), *options]) == 1
    assert says in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_what_is_there_or_quantised_already_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, again = str(tmp_path / "out"), str(tmp_path / "again")
    assert main(["quantize", str(NANO), out]) == 0
    assert main(["quantize", str(NANO), out]) == 1 and "is there already" in capsys.readouterr().err
    assert main(["quantize", out, again]) == 1 and "quantised already" in capsys.readouterr().err


PROGRAMS = """
import sgl

@sgl.function
def ask(s, question):
    s += "Q: " + question + " A:" + sgl.gen("a", max_tokens=5, ignore_eos=True) + " sure?" + sgl.select("b", choices=[" yes", " no"])

def asked(engine):
    return [ask.run(f"{n} + {n} =", backend=engine, temperature=0) for n in range(3)]
"""  # noqa: E501


@pytest.mark.whole
def test_a_function_runs_programs_to_calibrate_and_measure_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "asks.py").write_text(PROGRAMS)
    asked = f"{tmp_path / 'asks.py'}:asked"
    assert (
        main(
            [
                "quantize",
                str(NANO),
                str(tmp_path / "out"),
                "--weights",
                "int4_gptq",
                "--calibration",
                asked,
                "--heldout",
                asked,
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "answers     15 of them: KL" in said
    tokens = re.search(r"calibrated  by (\d+) tokens\nheld out    (\d+) tokens", said)
    assert tokens and int(tokens[1]) == int(tokens[2]) + 3  # the first of each text is not predicted
    for name, says in (("asket", "did you mean asked"), ("PROGRAMS", "has no function"), ("ask", "is a program")):
        assert main(["quantize", str(NANO), str(tmp_path / "no"), "--heldout", f"{tmp_path / 'asks.py'}:{name}"]) == 1
        assert says in capsys.readouterr().err
    assert main(["quantize", str(NANO), str(tmp_path / "no"), "--heldout", "nowhere.py:asked"]) == 1
    assert "nowhere.py" in capsys.readouterr().err
