"""The readers put every byte where it belongs, whatever the chunks, the threads and the dtypes."""

from __future__ import annotations

import json
import struct
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from checkpoints import write_checkpoint
from loaded_models import GivenWeights
from part_models import MODELS
from safetensors import safe_open
from safetensors.torch import save_file

from sgl.runtime.errors import CheckpointError
from sgl.runtime.loading import load_model, load_weights
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.loading.load_plan import LoadPlan, plan_for
from sgl.runtime.loading.tensor_files import tensor_transfer
from sgl.runtime.loading.tensor_files.safetensors_header import read_header
from sgl.runtime.models.decoder import Decoder

CPU = torch.device("cpu")


def slow_read(path: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """By safetensors' own reader."""
    found = {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            found |= {name: tensors.get_tensor(name).to(dtype) for name in tensors.keys()}  # noqa: SIM118
    return found


def planned(path: Path, dtype: torch.dtype) -> tuple[Decoder, LoadPlan]:
    checkpoint = open_checkpoint(path)
    model = Decoder(checkpoint.model, dtype)
    return model, plan_for(model, checkpoint.sources, checkpoint.readers, checkpoint.where)


def load_parts(model: Decoder, plan: LoadPlan, ahead: bool = True) -> list[int]:
    with load_weights.weights_of(plan, model.device) as weights:
        return list(model.loaded_parts(weights, ahead))


def filled(path: Path, dtype: torch.dtype, ahead: bool = True) -> dict[str, torch.Tensor]:
    """The tensors of a directory's model, loaded and not sealed."""
    model, plan = planned(path, dtype)
    assert load_parts(model, plan, ahead) == list(range(len(model.parts)))
    return {place.name: place.target for place in model.places()}


@pytest.mark.parametrize("chunk", [1024, 1000 * 8, 2**24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ahead", [False, True])
def test_every_tensor_arrives(tmp_path, monkeypatch, chunk, dtype, ahead):
    monkeypatch.setattr(tensor_transfer, "CHUNK", chunk)
    path = write_checkpoint(tmp_path, "qwen2", shard_size="100KB")
    places, expected = filled(path, dtype, ahead), slow_read(path, torch.float32)
    assert len(places) == len(expected) > 20
    assert all(torch.equal(places[name], tensor.to(places[name].dtype)) for name, tensor in expected.items())


def test_all_float_dtypes_in_one_file(tmp_path):
    path = write_checkpoint(tmp_path)
    kinds = [torch.float64, torch.float16, torch.bfloat16, torch.float32]
    stored = slow_read(path, torch.float32)
    mixed = {name: tensor.to(kinds[index % 4]) for index, (name, tensor) in enumerate(stored.items())}
    save_file(mixed, path / "model.safetensors")
    assert all(torch.equal(place, mixed[name].float()) for name, place in filled(path, torch.float32).items())


def test_an_error_in_a_reader_is_raised_and_ends_the_others():
    reads = []

    def failing(part: torch.Tensor) -> None:
        reads.append(len(part))
        raise OSError("the disk is gone")

    work = [tensor_transfer.TransferChunk(failing, torch.float32, torch.empty(4)) for _ in range(1000)]
    with pytest.raises(OSError, match="the disk is gone"):
        tensor_transfer.transfer(work, CPU)
    assert len(reads) <= tensor_transfer.READERS


def test_readers_that_cannot_begin_leave_nobody_waiting(monkeypatch):
    def refused() -> None:
        raise RuntimeError("no lane")

    monkeypatch.setattr(tensor_transfer, "_HostTransfer", refused)
    work = [tensor_transfer.TransferChunk(lambda part: None, torch.float32, torch.empty(4)) for _ in range(20)]
    with pytest.raises(RuntimeError, match="no lane"):
        tensor_transfer.transfer(work, CPU)


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = write_checkpoint(tmp_path)
    file = path / "model.safetensors"
    model, plan = planned(path, torch.float32)
    file.write_bytes(file.read_bytes()[:-500])
    with pytest.raises(CheckpointError, match="it ended within tensor"):
        load_parts(model, plan)


def test_progress_counts_every_byte(tmp_path, monkeypatch):
    path = write_checkpoint(tmp_path)
    counts: list[int] = []
    monkeypatch.setattr(load_weights, "_progress", lambda total, doing: nullcontext(counts.append))
    model, plan = planned(path, torch.bfloat16)
    load_parts(model, plan)
    assert sum(counts) == plan.bytes == sum(tensor.nbytes for tensor in slow_read(path, torch.float32).values())


def write_header(file: Path, header: object, data: bytes = b"") -> Path:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return file


def entry(start: int, stop: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    "header, why",
    [
        ([1, 2], "must hold a JSON object, not list"),
        (b"{nonsense", "Expecting property name"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "data_offsets"),
        ({"a": entry(0, 4, [2])}, r"'a' has 4 bytes for F32 \[2\]"),
        ({"a": entry(4, 8, [1])}, "'a' begins at byte"),
        ({"a": entry(0, 4, [1])}, "the tensors end at byte"),
        ({"a": entry(0, 8, [2]), "b": entry(4, 8, [1])}, "'b' begins at byte"),
    ],
)
def test_damaged_headers(tmp_path, header, why):
    file = write_header(tmp_path / "model.safetensors", header, b"12345678")
    with pytest.raises(CheckpointError, match=rf"is damaged or cut short \(.*{why}.*fetch the file again"):
        read_header(file)


def test_the_header_agrees_with_safetensors(tmp_path):
    path = write_checkpoint(tmp_path)
    stored = {tensor.name: tensor for tensor in read_header(path / "model.safetensors").tensors}
    with safe_open(path / "model.safetensors", "pt") as tensors:
        assert set(stored) == set(tensors.keys())
        assert all(stored[name].shape == tensors.get_slice(name).get_shape() for name in stored)


def test_a_transform_sees_every_projection(tmp_path):
    names: list[str] = []

    def transform(name, layer):
        names.append(name)
        return layer

    load_model(write_checkpoint(tmp_path), transform=transform)
    assert names.count("qkv") == 3 and set(names) == {"qkv", "output", "gate_up", "down", "head"}


@pytest.mark.parametrize("name", MODELS)
def test_modules_find_all_that_is_loaded(name: str) -> None:
    """What a part's places name is among its tensors, and its projections are those that places know."""
    model = Decoder(MODELS[name], torch.float32)
    weights = GivenWeights(lambda name, target: target.zero_())
    for index in model.loaded_parts(weights):
        part = model.parts[index]
        held = {tensor.untyped_storage().data_ptr() for tensor in part.tensors()}
        products = {id(getattr(*place)) for place in part.products()}
        places = list(part.places())
        assert {place.target.untyped_storage().data_ptr() for place in places} <= held
        assert index == 0 or {id(place.layer) for place in places if place.layer is not None} <= products
