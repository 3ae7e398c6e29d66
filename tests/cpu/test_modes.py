"""Files that are written for others have the mode that the umask gives new files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from checkpoints import write_checkpoint

from sgl.runtime.calibration.quantize_checkpoint import quantize
from sgl.runtime.calibration.shard_checkpoint import shard
from sgl.runtime.loading.tensor_files.save_safetensors import save_tensors


@pytest.fixture(params=[0o022, 0o027, 0o077], ids=oct)
def mode(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield 0o666 & ~request.param
    os.umask(before)


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


def test_quantised_and_sharded_checkpoints(mode: int, tmp_path: Path) -> None:
    origin = write_checkpoint(tmp_path / "origin", tokenizer=True)
    quantize(origin, tmp_path / "quantised", "int8")
    shard(origin, tmp_path / "sharded")
    assert modes(tmp_path / "quantised") == modes(tmp_path / "sharded") == {mode}


def test_a_file_that_is_written_again_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_tensors({"a": torch.zeros(2)}, file, {"format": "pt"})
    assert modes(tmp_path) == {mode}
    file.chmod(0o640)
    save_tensors({"a": torch.ones(2)}, file)
    assert modes(tmp_path) == {0o640}
