"""Pickled weights load when they are asked for, and never more of a pickle than its tensors."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint
from rig import Rig, Row
from safetensors.torch import load_file

from sgl.runtime import Engine
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.build.memory_estimate import estimate_memory
from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.loading import load_model
from sgl.runtime.loading.tensor_files.pickle_tensors import pickle_source

SECONDS, MEGABYTES = 2.0, 100


def as_pickles(path: Path, zipped: bool = True, shards: int = 1) -> dict[str, torch.Tensor]:
    """A checkpoint's safetensors file in pickled files; returns its tensors."""
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    if shards == 1:
        torch.save(tensors, path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        return tensors
    names = {name: f"pytorch_model-{i % shards:05}.bin" for i, name in enumerate(tensors)}
    for file in set(names.values()):
        torch.save({name: tensor for name, tensor in tensors.items() if names[name] == file}, path / file)
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}))
    return tensors


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model", tokenizer=True)


@pytest.mark.parametrize(("zipped", "shards"), [(True, 1), (False, 1), (True, 3)])
def test_pickled_weights_are_the_same_model(checkpoint: Path, zipped: bool, shards: int) -> None:
    before = Rig(checkpoint).step([(Row([5, 6, 7]), 3)])
    as_pickles(checkpoint, zipped, shards)
    loaded = load_model(checkpoint, load_format="pt")
    assert torch.equal(Rig(checkpoint, model=loaded).step([(Row([5, 6, 7]), 3)]), before)


def test_they_are_read_only_when_asked_for(checkpoint: Path) -> None:
    with Engine(checkpoint, load_format="pt", dtype="float32") as engine:
        text = engine.generate("The quick", max_tokens=8, temperature=0).text
    as_pickles(checkpoint)
    with pytest.raises(CheckpointError, match=r"found: pytorch_model.bin\).*load_format='pt'"):
        Engine(checkpoint)
    with Engine(checkpoint, load_format="pt", dtype="float32") as engine:
        assert engine.generate("The quick", max_tokens=8, temperature=0).text == text
        engine.update_weights(checkpoint)
    assert "load_format='pt'" in str(estimate_memory(checkpoint, EngineConfig()).files.problem)
    assert estimate_memory(checkpoint, EngineConfig(load_format="pt")).files.problem is None
    with pytest.raises(ConfigError, match=r"load_format='bin'\): must be auto, pt or sharded_state"):
        Engine(checkpoint, load_format="bin")


def test_what_makers_of_models_write_is_refused_by_name(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "consolidated.00.pth")
    for load_format in ("auto", "pt"):
        with pytest.raises(CheckpointError, match=r"consolidated.00.pth\); .pth files"):
            load_model(checkpoint, load_format=load_format)


class Runs:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


class Calls:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


def deep(levels: int) -> bytes:
    return b"\x80\x02" + b"]" * levels + b"a" * (levels - 1) + b"."


def saved(value: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


def bomb() -> bytes:
    """An archive whose pickle unpacks to more than is read."""
    stream, zeros = io.BytesIO(), bytes(2**20)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("archive/data.pkl", "w", force_zip64=True) as entry:
            for _ in range(80):
                entry.write(zeros)
        archive.writestr("archive/version", "3\n")
    return stream.getvalue()


def legacy(pickled_object: bytes) -> bytes:
    magic, version, system = (
        0x1950A86A20F9469CFC6C,
        1001,
        {"protocol_version": 1001, "little_endian": True, "type_sizes": {}},
    )
    return b"".join(pickle.dumps(part, 2) for part in (magic, version, system)) + pickled_object


def test_what_a_pickle_would_run_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(saved({"a": Runs(tmp_path / "ran")}))
    with pytest.raises(CheckpointError, match=r"\(it would run (posix|nt)\.system\); convert it to safetensors"):
        pickle_source(tmp_path / "a.bin")
    assert not (tmp_path / "ran").exists()


def hostile(place: Path) -> dict[str, Callable[[], bytes]]:
    return {
        "code": lambda: saved({"a": Runs(place / "ran")}),
        "code of old": lambda: legacy(pickle.dumps(Runs(place / "ran"), 2)),
        "bare code": lambda: pickle.dumps(Runs(place / "ran"), 2),
        "nothing": bytes,
        "zeros": lambda: bytes(4096),
        "cut short": lambda: saved({"a": torch.ones(1000)})[:-300],
        "cut early": lambda: saved({"a": torch.ones(1000)})[:100],
        "a large pickle, packed": bomb,
        "a huge tensor": lambda: saved({"a": Calls(torch.Tensor, 2**36)}),
        "a huge array": lambda: saved({"a": Calls(bytearray, 2**40)}),
        "a wide view": lambda: saved({"a": torch.ones(1).expand(2**40)}),
        "sparse": lambda: saved({"a": torch.eye(4).to_sparse()}),
        "on no device": lambda: saved({"a": torch.empty(4, device="meta")}),
        "complex": lambda: saved({"a": torch.ones(4, dtype=torch.complex64)}),
        "numbers": lambda: saved({"a": 5}),
        "a list": lambda: saved([torch.ones(4)]),
        "a number's name": lambda: saved({10**5000: torch.ones(4)}),
        "a tuple's name": lambda: saved({(1, 2): torch.ones(4)}),
        "deep": lambda: legacy(deep(200_000)),
        "long": lambda: legacy(b"\x80\x02" + b"\x8b" + struct.pack("<i", 2**31 - 1)),
    }


NAMES = list(hostile(Path()))


@pytest.mark.few(10)
@pytest.mark.parametrize("name", NAMES)
def test_hostile_pickles_are_errors(tmp_path: Path, name: str) -> None:
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(hostile(tmp_path)[name]())
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        pickle_source(file)
    assert time.process_time() - started < 2 * SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024
    assert not (tmp_path / "ran").exists()


def test_tensors_that_lie_otherwise_are_read_in_pieces(tmp_path: Path) -> None:
    """Transposed, cut and negated views, by their values."""
    base = torch.randn(33, 17, generator=torch.Generator().manual_seed(0))
    views = {
        "whole": base,
        "turned": base.t(),
        "cut": base[3:20, 2:9],
        "one": base[5, 3],
        "bytes": base.to(torch.float8_e4m3fn).t(),
    }
    torch.save(views, tmp_path / "a.bin")
    source = pickle_source(tmp_path / "a.bin")
    for stored in source.tensors:
        whole = views[stored.name].contiguous().reshape(-1).view(torch.uint8)
        step = 7 * views[stored.name].itemsize
        for offset in range(0, len(whole), step):
            part = torch.empty(min(step, len(whole) - offset), dtype=torch.uint8)
            source.read(stored, offset, part)
            assert torch.equal(part, whole[offset : offset + step])
