"""Hub ids: the hub's own client, against a server of this process; only what is needed is fetched, once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import write_checkpoint
from file_server import FileServer, Handler, served
from safetensors.torch import load_file, save_file

from sgl.runtime.errors import CheckpointError
from sgl.runtime.loading import load_model, resolve_model
from sgl.runtime.loading.model_files.choose_weight_files import chosen_gguf
from sgl.runtime.loading.model_files.hub_download import HubModelId


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """The repository acme/tiny: a checkpoint in shards, and files that nobody needs."""
    folder = write_checkpoint(tmp_path / "repository", shard_size="100KB", tokenizer=True)
    for name in (
        "tf_model.h5",
        "flax_model.msgpack",
        "pytorch_model.bin",
        "consolidated.safetensors",
        "onnx/model.onnx",
        "onnx/config.json",
        "README.md",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"not needed")
    with served(folder) as server:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            server.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        offline(monkeypatch, False)
        yield server


def offline(monkeypatch: pytest.MonkeyPatch, yes: bool) -> None:
    from huggingface_hub import close_session

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", yes)
    close_session()  # it remembers


def fetched(hub: FileServer) -> set[str]:
    return {
        line.split("/resolve/")[1].split("/", 1)[1].split()[0]
        for line in hub.asked
        if line.startswith("GET") and "/resolve/" in line
    }


def test_only_the_files_that_are_needed_are_fetched_and_once(hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    path = resolve_model("acme/tiny")
    load_model(path)
    small = {
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    shards = {file.name for file in hub.folder.glob("model-*.safetensors")}
    assert small | shards <= fetched(hub) <= small | shards | {"chat_template.jinja", "special_tokens_map.json"}
    hub.asked.clear()
    assert resolve_model("acme/tiny") == path and not hub.asked
    offline(monkeypatch, True)
    assert resolve_model("acme/tiny") == path


def test_small_files_alone_and_then_the_weights(hub: FileServer) -> None:
    path = resolve_model("acme/tiny", weights=False)
    assert not list(path.glob("*.safetensors"))
    assert resolve_model("acme/tiny", weights=False) == path
    assert resolve_model("acme/tiny") == path
    load_model(path)


def test_a_download_that_broke_off_goes_on(hub: FileServer) -> None:
    path = resolve_model("acme/tiny")
    lost = min(path.glob("model-*.safetensors"))
    blob = lost.resolve()
    blob.with_name(f"{blob.name}.incomplete").write_bytes(blob.read_bytes()[:1000])
    blob.unlink()
    lost.unlink()
    hub.asked.clear()
    load_model(resolve_model("acme/tiny"))
    assert fetched(hub) == {lost.name}


def test_revisions_are_kept_apart(hub: FileServer) -> None:
    resolve_model("acme/tiny@v1.0")
    assert any("/revision/v1.0" in line for line in hub.asked)
    assert HubModelId.of("acme/tiny@refs/pr/1:Q4_K_M") == ("acme/tiny", "refs/pr/1", "Q4_K_M")
    assert (
        HubModelId.of("acme/tiny@") is None and HubModelId.of("acme/tiny:") is None and HubModelId.of("a/b/c") is None
    )


def test_pickles_are_fetched_only_when_asked_for(hub: FileServer) -> None:
    for file in hub.folder.glob("*.safetensors*"):
        file.unlink()
    with pytest.raises(
        CheckpointError,
        match=r"'acme/tiny' lacks the weights model.safetensors .*pytorch_model.bin\); .*load_format='pt'",
    ):
        resolve_model("acme/tiny")
    path = resolve_model("acme/tiny", load_format="pt")
    assert (path / "pytorch_model.bin").is_file() and not (path / "tf_model.h5").exists()


def test_one_gguf_file_of_many(hub: FileServer) -> None:
    for name in (
        "tiny-Q4_K_M.gguf",
        "tiny-Q4_K_S.gguf",
        "Q8_0/tiny-Q8_0-00001-of-00002.gguf",
        "Q8_0/tiny-Q8_0-00002-of-00002.gguf",
        "mmproj-Q8_0.gguf",
    ):
        (hub.folder / name).parent.mkdir(exist_ok=True)
        (hub.folder / name).write_bytes(b"GGUF")
    assert resolve_model("acme/tiny:q4_k_m").name == "tiny-Q4_K_M.gguf"
    assert fetched(hub) == {"tiny-Q4_K_M.gguf"}
    found = resolve_model("acme/tiny:Q8_0")
    assert found.name == "tiny-Q8_0-00001-of-00002.gguf" and found.with_name("tiny-Q8_0-00002-of-00002.gguf").is_file()
    hub.asked.clear()
    assert resolve_model("acme/tiny:Q8_0") == found and not hub.asked
    with pytest.raises(
        CheckpointError, match=r"3 GGUF models with 'tiny' as a word.*tiny-Q4_K_M.gguf, tiny-Q4_K_S.gguf"
    ):
        resolve_model("acme/tiny@other:tiny")
    with pytest.raises(CheckpointError, match=r"no GGUF models with 'Q4_K' as a word.*tiny-Q4_K_M"):
        resolve_model("acme/tiny:Q4_K")


@pytest.mark.parametrize(
    ("word", "chosen"),
    [
        ("Q4_K_M", "UD-Q4_K_M.gguf"),
        ("m-Q4_0", "m-Q4_0.gguf"),
        ("m-Q4_0.gguf", "m-Q4_0.gguf"),
        ("q4_0_4_4", "m-Q4_0_4_4.gguf"),
    ],
)
def test_words_of_gguf_names(word: str, chosen: str) -> None:
    assert chosen_gguf(["UD-Q4_K_M.gguf", "m-Q4_0.gguf", "m-Q4_0_4_4.gguf", "m-F16.gguf"], word, "it") == [chosen]


def test_a_directory_of_one_gguf_file_stands_for_it(tmp_path: Path) -> None:
    (tmp_path / "a-Q8_0.gguf").write_bytes(b"GGUF")
    assert resolve_model(tmp_path) == tmp_path / "a-Q8_0.gguf" == resolve_model(tmp_path / "a-Q8_0.gguf")
    (tmp_path / "a-Q4_0.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"2 GGUF models, one is wanted .found: a-Q4_0.gguf, a-Q8_0.gguf"):
        resolve_model(tmp_path)


def test_what_the_hub_does_not_have(hub: FileServer) -> None:
    def broken(request: Handler, name: str, data: bytes) -> bool:
        if name.startswith("model-"):
            request.send(403, b"", {})
        return name.startswith("model-")

    hub.hook = broken
    with pytest.raises(CheckpointError, match=r"'acme/tiny' is not a local directory.* could not be downloaded \(\w+"):
        resolve_model("acme/tiny")
    for file in hub.folder.glob("*.json"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"neither config.json nor GGUF files"):
        resolve_model("acme/tiny@other")


def test_an_index_may_name_no_file_elsewhere(hub: FileServer) -> None:
    save_file(load_file(min(hub.folder.glob("model-*.safetensors"))), hub.folder / "model.safetensors")
    (hub.folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../../x.safetensors"}}))
    with pytest.raises(CheckpointError, match="not the name of a safetensors file next to it"):
        resolve_model("acme/tiny")


def test_what_would_not_be_read_is_not_fetched(hub: FileServer) -> None:
    with open(hub.folder / "config.json", "r+b") as stream:
        stream.truncate(5 * 2**20)
    with pytest.raises(
        CheckpointError, match=r"the repository 'acme/tiny'/config.json has 5,242,880 bytes, at most 4,194,304 are read"
    ):
        resolve_model("acme/tiny")
    assert not fetched(hub) - {"model.safetensors.index.json"}
