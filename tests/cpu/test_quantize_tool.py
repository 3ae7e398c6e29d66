"""`sgl quantize`: what it writes is read as it was made, by us and by the format's own package, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sgl.cli import main
from sgl.runtime.calibration import shards
from sgl.runtime.calibration.flow import Flow
from sgl.runtime.calibration.quantize import _unordered, quantize
from sgl.runtime.engine import NANO
from sgl.runtime.loading import load_model
from sgl.runtime.quantization.grouped import Grouped
from sgl.runtime.quantization.readers import Readers, Sibling
from sgl.runtime.quantization.rounding import eight_bits, nearest

MODULE = "model.layers.1.self_attn.k_proj"
NAMES = {torch.int32: "I32", torch.int64: "I64", torch.bfloat16: "BF16", torch.float32: "F32", torch.float16: "F16"}


def texts(count: int) -> list[np.ndarray]:
    return [np.random.default_rng(i).integers(300, 4000, 60).astype(np.int32) for i in range(count)]


def dense() -> torch.Tensor:
    tensors = {name: tensor for file in NANO.glob("*.safetensors") for name, tensor in load_file(file).items()}
    return tensors[f"{MODULE}.weight"]


def written(out: Path) -> tuple[dict[str, torch.Tensor], Grouped]:
    tensors = {name: tensor for file in out.glob("*.safetensors") for name, tensor in load_file(file).items()}
    own = {name.removeprefix(MODULE + "."): tensor for name, tensor in tensors.items() if name.startswith(MODULE)}
    said = json.loads((out / "config.json").read_text())["quantization_config"]
    siblings = {name: Sibling(NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in own.items()}
    claim = Readers.of(said, "config.json").claim(MODULE, siblings)
    assert claim is not None
    return own, claim.read(own)


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_the_reader_finds_what_was_rounded(weights: str, tmp_path: Path) -> None:
    quantize(NANO, tmp_path / "out", weights)
    weight = dense()
    expected = nearest(weight.float(), 64, weight.dtype) if weights == "int4" else eight_bits(weight.float(), weight.dtype)
    found = written(tmp_path / "out")[1]
    assert torch.equal(found.codes, expected.codes) and torch.equal(found.scale, expected.scale) and found.group == expected.group
    assert torch.equal(torch.as_tensor(found.zero).float(), torch.as_tensor(expected.zero).float())


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_the_package_of_the_format_restores_the_same(weights: str, tmp_path: Path) -> None:
    package = pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from compressed_tensors.compressors import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationConfig

    assert package
    quantize(NANO, tmp_path / "out", weights)
    own, found = written(tmp_path / "out")
    said = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    scheme = QuantizationConfig.model_validate(said).config_groups["group_0"]
    restored = PackedQuantizationCompressor.decompress(own, scheme)["weight"]
    assert restored.shape == found.shape
    torch.testing.assert_close(restored.float(), found.dense(restored.dtype).float(), rtol=0, atol=0)


def test_calibrated_in_shards_it_loads_and_loses_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD", 4 * 10**6)
    calibration, held_out = texts(12), texts(14)[12:]
    plain = quantize(NANO, tmp_path / "plain", "int4", held_out=held_out)
    found = quantize(NANO, tmp_path / "gptq", "int4_gptq", calibration=calibration, held_out=held_out)
    assert plain.losses and found.losses and found.losses.divergence < plain.losses.divergence
    assert (tmp_path / "gptq" / "model.safetensors.index.json").exists() and found.bits < 4.5
    decoder = load_model(tmp_path / "gptq")
    flow = Flow(held_out)
    flow.enter(decoder)
    for block in decoder.layers:
        flow.run(block)
    assert all(bool(logits.isfinite().all()) for logits in flow.logits())


def test_rows_go_back_to_where_the_file_has_them() -> None:
    weight = nearest(torch.randn(6, 64))
    order = np.array([4, 0, 5, 1, 3, 2])
    moved = weight.take(torch.from_numpy(order))
    assert torch.equal(_unordered(moved, order).codes, weight.codes)


@pytest.mark.parametrize(
    "options, says",
    [
        (["--weights", "int3"], "cannot be written"),
        (["--weights", "int4_hqq"], "no whole numbers"),
        (["--weights", "int4_gptq"], "texts to calibrate"),
        (["--group", "12"], "whole words"),
        (["--group", "96"], "whole groups"),
        (["--heldout", "missing.txt"], "missing.txt"),
    ],
)
def test_what_cannot_be_is_refused(options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", str(NANO), str(tmp_path / "out"), *options]) == 1
    assert says in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_what_is_there_or_quantised_already_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, again = str(tmp_path / "out"), str(tmp_path / "again")
    assert main(["quantize", str(NANO), out]) == 0
    assert main(["quantize", str(NANO), out]) == 1 and "is there already" in capsys.readouterr().err
    assert main(["quantize", out, again]) == 1 and "quantised already" in capsys.readouterr().err
