"""Checkpoints that are whole load without the network; every other one says what is wrong and where."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
from checkpoints import write_checkpoint
from rig import Rig, Row
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from sgl.runtime.errors import CheckpointError
from sgl.runtime.loading import load_model, resolve_model
from sgl.runtime.models.load_statistics import LoadMemoryCounter, describe_loading
from sgl.runtime.quantization import transform_for

WEIGHTS = "model.safetensors"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a network call was made")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def rewrite(path: Path, **changes: torch.Tensor | None) -> None:
    """Replace tensors of the single weights file; None removes one."""
    tensors = load_file(path / WEIGHTS) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path / WEIGHTS)


def test_shards_and_single_file_are_the_same_model(checkpoint: Path, tmp_path: Path) -> None:
    sharded = write_checkpoint(tmp_path / "sharded", shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    one, many = (Rig(path).step([(Row([5, 6, 7]), 3)]) for path in (checkpoint, sharded))
    assert torch.equal(one, many)


@pytest.mark.parametrize("weights", ["auto", "int4"])
def test_what_loading_took_is_counted_part_by_part(checkpoint: Path, weights: str) -> None:
    """At the peak: what is kept, and no more than the two largest parts in the form in which they came, or in both."""
    transform = transform_for(weights, False, torch.device("cpu"))
    model = load_model(checkpoint, transform=transform)
    tensors = load_file(checkpoint / WEIGHTS)
    layers = [
        sum(4 * tensor.numel() for name, tensor in tensors.items() if f"layers.{index}." in name) for index in range(3)
    ]
    told, table = describe_loading(model), 4 * max(tensor.numel() for tensor in tensors.values())
    assert told is not None and told["bytes"] == sum(tensor.nbytes for tensor in tensors.values())
    assert told["bytes_per_second"] == told["bytes"] / told["seconds"] > 0
    assert model.weight_bytes <= told["peak_bytes"] <= model.weight_bytes + 2 * max(table, *layers)
    assert describe_loading(load_model(checkpoint, dummy_seed=0)) is None


def test_parts_that_come_ahead_and_memory_that_parts_share_are_counted_once() -> None:
    held, shared = LoadMemoryCounter(), torch.zeros(100)
    for count in (40, 500):
        held.comes(count)
    held.sealed([shared, shared[:10].view(2, 5), torch.zeros(5, device="meta")])
    assert held.peak == 940
    held.comes(30)
    held.sealed([shared.t(), torch.zeros(1)])
    assert held.loaded(7).peak == 940 and held.loaded(7).bytes == 7
    held.sealed([torch.zeros(300)])
    assert held.peak == 400 + 4 + 1200 + 30


def test_a_tied_head_may_be_in_the_file_and_an_old_rotary_table_too(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, tie_word_embeddings=True)
    before = Rig(path).step([(Row([5, 6, 7]), 3)])
    extra = {
        "lm_head.weight": load_file(path / "model.safetensors")["model.embed_tokens.weight"].clone(),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8),
    }
    rewrite(path, **extra)
    assert torch.equal(Rig(path).step([(Row([5, 6, 7]), 3)]), before)


def test_another_head_in_the_file_is_used_though_the_configuration_ties_it(tmp_path: Path) -> None:
    """As transformers does."""
    path = write_checkpoint(tmp_path, tie_word_embeddings=True)
    rewrite(path, **{"lm_head.weight": torch.randn(320, 64, generator=torch.Generator().manual_seed(0))})
    theirs = LlamaForCausalLM.from_pretrained(path)(torch.tensor([[5, 6, 7]])).logits[0, -1]
    torch.testing.assert_close(Rig(path).step([(Row([5, 6, 7]), 3)])[0], theirs.detach(), atol=1e-4, rtol=1e-4)


def test_loading_makes_no_network_call(checkpoint: Path, no_network: None) -> None:
    load_model(resolve_model(str(checkpoint)))


def test_missing_tensors_are_named(checkpoint: Path) -> None:
    rewrite(checkpoint, **{Q_PROJ: None})
    with pytest.raises(CheckpointError, match=rf"lacks 1 of 30 tensors: {Q_PROJ}"):
        load_model(checkpoint)


def test_unexpected_tensors_are_named_with_the_nearest_expected(checkpoint: Path) -> None:
    rewrite(checkpoint, **{"model.layers.0.self_attn.qproj.weight": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=rf"'model.layers.0.self_attn.qproj.weight' has no place.*'{Q_PROJ}'"):
        load_model(checkpoint)


def test_wrong_shapes_print_both(checkpoint: Path) -> None:
    rewrite(checkpoint, **{Q_PROJ: torch.zeros(64, 32)})
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS}: tensor '{Q_PROJ}' has shape \[64, 32\].*\[64, 64\]"):
        load_model(checkpoint)


def test_integer_weights_are_refused(checkpoint: Path) -> None:
    rewrite(checkpoint, **{Q_PROJ: torch.zeros(64, 64, dtype=torch.int8)})
    with pytest.raises(CheckpointError, match=r"is not a float, and no supported format stores it like this"):
        load_model(checkpoint)


@pytest.mark.parametrize("keep", [0, 4, 1000, -1000])
def test_truncated_files_say_so(checkpoint: Path, keep: int) -> None:
    data = (checkpoint / WEIGHTS).read_bytes()
    (checkpoint / WEIGHTS).write_bytes(data[:keep])
    with pytest.raises(CheckpointError, match=f"{WEIGHTS} .* is damaged or cut short"):
        load_model(checkpoint)


def test_missing_shard_and_broken_index(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, shard_size="100KB")
    first = min(path.glob("*.safetensors"))
    first.rename(path / "elsewhere.safetensors")
    with pytest.raises(CheckpointError, match=rf"lacks the weights {first.name} \(found: elsewhere.safetensors"):
        load_model(path)
    (path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"index\.json cannot be read as JSON"):
        load_model(path)
    (path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has no 'weight_map'"):
        load_model(path)


def test_missing_files_say_what_was_looked_for(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / WEIGHTS).rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=rf"lacks the weights {WEIGHTS} \(found: pytorch_model.bin\).*convert"):
        load_model(checkpoint)
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load_model(tmp_path)
    (checkpoint / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="must hold a JSON object, not list"):
        load_model(checkpoint)


def test_what_is_no_directory_and_no_hub_id(checkpoint: Path, tmp_path: Path, no_network: None) -> None:
    for name in (tmp_path / "absent", str(tmp_path / "absent"), "./absent", "a/b/c"):
        with pytest.raises(CheckpointError, match=r"no directory '.*'; give the path"):
            resolve_model(name)
    with pytest.raises(CheckpointError, match="is a file; give a GGUF file, or the directory"):
        resolve_model(checkpoint / "config.json")


def snapshot(cache: Path, hub_id: str) -> Path:
    """The directory that the hub client would keep this model's only revision in."""
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    return repository / "snapshots" / ("0" * 40)


def test_a_cached_snapshot_is_used_without_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    path = write_checkpoint(snapshot(tmp_path, "acme/tiny"))
    assert resolve_model("acme/tiny") == path
    load_model(resolve_model("acme/tiny"))


def test_an_unreachable_hub_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="'acme/tiny' is not a local directory, is not in the Hugging Face cache"):
        resolve_model("acme/tiny")
