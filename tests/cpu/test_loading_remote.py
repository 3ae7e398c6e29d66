"""Models behind an address of the web: texts are those of the local twin, and what breaks is told with its address."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from checkpoints import write_checkpoint
from file_server import FileServer, Handler, served
from remote_models import fails, text_of

from sgl.runtime import Engine
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.build.memory_estimate import estimate_memory
from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.loading import load_model, resolve_model
from sgl.runtime.loading.checkpoint import sources_of
from sgl.runtime.loading.remote import http_store
from sgl.runtime.loading.tensor_files.tensor_source import bytes_of


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("twins")
    return [write_checkpoint(place / str(seed), seed=seed, tokenizer=True, shard_size="300KB") for seed in (0, 1)]


@pytest.fixture
def store(twins: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("SGL_CACHE", str(tmp_path / "cache"))
    shutil.copytree(twins[0], tmp_path / "store" / "tiny")
    with served(tmp_path / "store") as server:
        yield server


def test_texts_are_those_of_the_local_twin(store: FileServer, twins: list[Path]) -> None:
    url = f"{store.url}/tiny/"
    assert text_of(url) == text_of(twins[0])
    whole = [line for line in store.asked if line.startswith("GET") and ".safetensors" in line and "bytes=" not in line]
    assert all("index.json" in line for line in whole)
    store.asked.clear()
    text_of(url)
    assert not [line for line in store.asked if line.startswith("GET") and ".json" in line and "index.json" not in line]


def test_an_engine_takes_its_weights_from_there_too(store: FileServer, twins: list[Path]) -> None:
    with Engine(twins[1], dtype="float32", kv_tokens=512) as engine:
        engine.update_weights(f"{store.url}/tiny")
        assert engine.generate("The quick brown", max_tokens=12, temperature=0, ignore_eos=True).text == text_of(
            twins[0]
        )
        assert Path(engine.model_path).name == "tiny" == Path(engine.info()["model_path"]).name


def test_a_survey_of_it_reads_headers_alone(store: FileServer, twins: list[Path]) -> None:
    local, far = (estimate_memory(resolve_model(model), EngineConfig()) for model in (twins[0], f"{store.url}/tiny"))
    assert far.loads and far.files == local.files
    sizes = [line for line in store.asked if line.startswith("GET") and line.split()[1].endswith(".safetensors")]
    assert len(sizes) % (2 * local.files.count) == 0


def test_every_byte_of_every_tensor_is_the_same(store: FileServer, twins: list[Path]) -> None:
    """Also of ranges that begin and end anywhere."""
    draw = torch.Generator().manual_seed(0)
    for near, far in zip(sources_of(twins[0]), sources_of(resolve_model(f"{store.url}/tiny")), strict=True):
        assert (near.tensors, near.bytes) == (far.tensors, far.bytes)
        for stored in near.tensors:
            size = stored.stop - stored.start
            first = int(torch.randint(size, (), generator=draw))
            count = int(torch.randint(size - first + 1, (), generator=draw))
            for part in ((0, size), (first, count)):
                assert (bytes_of(near, stored, *part) == bytes_of(far, stored, *part)).all()


def test_a_file_address_is_a_path(twins: list[Path], tmp_path: Path) -> None:
    assert resolve_model(twins[0].as_uri()) == twins[0] == resolve_model(f"file://localhost{twins[0]}")
    spaced = tmp_path / "a model"
    spaced.mkdir()
    assert resolve_model(spaced.as_uri()) == spaced
    with pytest.raises(CheckpointError, match="three slashes"):
        resolve_model("file://elsewhere/model")


def test_another_model_under_the_same_address(store: FileServer, twins: list[Path]) -> None:
    before = resolve_model(f"{store.url}/tiny")
    for file in twins[1].iterdir():
        shutil.copy(file, store.folder / "tiny")
    with fails(CheckpointError, rf"{store.url}/tiny/model-00001.*another file than when the model was opened"):
        load_model(before)
    assert text_of(f"{store.url}/tiny") == text_of(twins[1])


Change = Callable[[Handler, bytes], None]


def closes(request: Handler, data: bytes) -> None:
    request.close_connection = True


def cuts(request: Handler, data: bytes) -> None:
    """Half of what it announces, and the connection ends."""
    request.send(206, b"", {"ETag": _tag(request, data), "Content-Range": _range(request, data)}, _count(request))
    request.wfile.write(data[: _count(request) // 2])
    request.close_connection = True


def shorter(request: Handler, data: bytes) -> None:
    """Half, as if it were all."""
    request.send(
        206, data[: _count(request) // 2], {"ETag": _tag(request, data), "Content-Range": _range(request, data)}
    )


def retagged(request: Handler, data: bytes) -> None:
    request.send(206, data[: _count(request)], {"ETag": '"other"', "Content-Range": _range(request, data)})


def elsewhere(request: Handler, data: bytes) -> None:
    request.send(206, data[: _count(request)], {"ETag": _tag(request, data), "Content-Range": f"bytes 0-9/{len(data)}"})


def endless(request: Handler, data: bytes) -> None:
    """More than was asked for, without a length."""
    request.send_response(206)
    for name, value in {
        "ETag": _tag(request, data),
        "Content-Range": _range(request, data),
        "Connection": "close",
    }.items():
        request.send_header(name, value)
    request.end_headers()
    request.close_connection = True
    for _ in range(2000):
        request.wfile.write(bytes(2**16))


def refuses(request: Handler, data: bytes) -> None:
    request.send(503, b"", {})


def forgets(request: Handler, data: bytes) -> None:
    request.send(404, b"", {})


def _tag(request: Handler, data: bytes) -> str:
    return f'"{hashlib.sha1(data).hexdigest()}"'


def _range(request: Handler, data: bytes) -> str:
    return f"bytes {request.headers['Range'].removeprefix('bytes=')}/{len(data)}"


def _count(request: Handler) -> int:
    first, last = request.headers["Range"].removeprefix("bytes=").split("-")
    return int(last) - int(first) + 1


BROKEN = [
    (closes, "could not be read"),
    (cuts, "could not be read"),
    (shorter, "bytes came for"),
    (retagged, "another file than when"),
    (elsewhere, "another file than when"),
    (endless, "bytes came for"),
    (refuses, "answers 503"),
    (forgets, "answers 404"),
]


@pytest.mark.few(3)
@pytest.mark.parametrize(("broken", "words"), BROKEN, ids=[broken.__name__ for broken, _ in BROKEN])
def test_what_breaks_midway_is_told(store: FileServer, broken: Change, words: str) -> None:
    path, seen = resolve_model(f"{store.url}/tiny"), list[str]()

    def hook(request: Handler, name: str, data: bytes) -> bool:
        seen.append(name)
        if name.endswith(".safetensors") and len(seen) > 4:  # after the headers
            broken(request, data)
            return True
        return False

    store.hook = hook
    with fails(CheckpointError, rf"{store.url}/tiny/model-0.*{words}"):
        load_model(path)
    store.hook = lambda *_: False
    load_model(path)


def test_a_server_that_is_silent(store: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_store, "SECONDS", 0.1)
    path = resolve_model(f"{store.url}/tiny")
    store.hook = lambda *_: time.sleep(0.5) or False
    with fails(CheckpointError, rf"{store.url}/tiny/model-0.*could not be read.*timed out"):
        load_model(path)


def test_an_error_that_passes_is_not_seen(store: FileServer) -> None:
    path, failed = resolve_model(f"{store.url}/tiny"), set[str]()

    def once(request: Handler, name: str, data: bytes) -> bool:
        key = f"{name} {request.headers['Range']}"
        if key in failed:
            return False
        failed.add(key)
        request.close_connection = True
        return True

    store.hook = once
    load_model(path)
    assert failed


def test_a_server_that_is_gone(store: FileServer, twins: list[Path]) -> None:
    path = resolve_model(f"{store.url}/tiny")
    store.server_close()
    store.shutdown()
    with fails(CheckpointError, rf"{store.url}/tiny/model-0.*could not be read"):
        load_model(path)
    with fails(CheckpointError, rf"{store.url}/tiny/\S+ could not be read.*check the address"):
        resolve_model(f"{store.url}/tiny")


def test_what_is_missing_there(store: FileServer) -> None:
    with fails(CheckpointError, rf"{store.url}/none/config.json is missing"):
        resolve_model(f"{store.url}/none")
    lost = min((store.folder / "tiny").glob("*.safetensors"))
    lost.unlink()
    with fails(CheckpointError, rf"{store.url}/tiny/{lost.name} is missing"):
        resolve_model(f"{store.url}/tiny")
    (store.folder / "tiny" / "model.safetensors.index.json").unlink()
    with fails(CheckpointError, rf"{store.url}/tiny lacks the weights model.safetensors"):
        resolve_model(f"{store.url}/tiny")


def test_servers_that_answer_otherwise(store: FileServer, twins: list[Path]) -> None:
    store.tags = False
    assert text_of(f"{store.url}/tiny") == text_of(twins[0])
    store.ranges = False
    with fails(CheckpointError, "does not answer ranges"):
        load_model(resolve_model(f"{store.url}/tiny"))


def test_addresses_that_are_none(store: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for url, words in (
        ("ftp://host/a", "begins with http://"),
        (f"{store.url}/tiny?key=1", "leave out what follows"),
        ("redis://h/", "give the model a name"),
    ):
        with pytest.raises(ConfigError, match=words):
            resolve_model(url)
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setitem(sys.modules, "obstore", None)
    for url in ("redis://:secret@h/a", "s3://bucket/a"):
        with pytest.raises(ConfigError, match=r"needs the package \w+: pip install 'sgl\[remote\]'") as error:
            resolve_model(url)
        assert "secret" not in str(error.value)


def test_hostile_answers_take_no_room(store: FileServer, tmp_path: Path) -> None:
    index = store.folder / "tiny" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {str(i): f"{i}.safetensors" for i in range(5000)}}))
    with fails(CheckpointError, "names 5,000 files"):
        resolve_model(f"{store.url}/tiny")
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_the_header_is_checked_as_that_of_a_file(store: FileServer, twins: list[Path]) -> None:
    file = min((store.folder / "tiny").glob("*.safetensors"))
    file.write_bytes(b"\xff" * 100)
    with fails(CheckpointError, rf"{store.url}/tiny/{file.name} \(100 bytes\) is damaged"):
        load_model(resolve_model(f"{store.url}/tiny"))


def test_what_transformers_computes_is_no_stream(store: FileServer) -> None:
    with fails(ConfigError, "download the model"):
        Engine(f"{store.url}/tiny", implementation="transformers")


def test_a_folder_causes_no_request(store: FileServer, twins: list[Path], tmp_path: Path) -> None:
    """Whatever it holds: only what was fetched for this user, and lies where it was put, is read from elsewhere."""
    made = resolve_model(f"{store.url}/tiny")
    copied = Path(shutil.copytree(made, tmp_path / "a" / "remote" / "key" / "tiny"))
    shutil.copytree(made, tmp_path / "cache" / "deeper" / "remote" / "key" / "tiny")
    (tmp_path / "beside").mkdir()
    whole = Path(shutil.copytree(twins[0], tmp_path / "beside" / "whole"))
    shutil.copy(made / "remote.json", whole)
    store.asked.clear()
    for folder in (copied, tmp_path / "cache" / "deeper" / "remote" / "key" / "tiny"):
        with fails(CheckpointError, "lacks the weights|is missing|names"):
            load_model(folder)
        assert not estimate_memory(folder, EngineConfig()).loads
    load_model(whole)
    assert estimate_memory(whole, EngineConfig()).loads and not store.asked
    load_model(made)
    assert store.asked


@pytest.mark.parametrize(
    "name", ["../other/model.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..\\x.safetensors", "config.json"]
)
def test_names_stay_in_their_folder(store: FileServer, name: str) -> None:
    made = resolve_model(f"{store.url}/tiny")
    told = json.loads((made / "remote.json").read_text())
    (made / "remote.json").write_text(json.dumps({**told, "weights": {name: [10, ""]}}))
    store.asked.clear()
    with fails(CheckpointError, "remote.json is damaged.*is no name of a file"):
        load_model(made)
    assert not store.asked


def test_a_redirect_to_an_address_that_the_user_did_not_name(store: FileServer, tmp_path: Path) -> None:
    with served(store.folder) as other:
        store.moved = other.url
        with fails(
            CheckpointError,
            rf"{store.url}/tiny redirects to {other.url}/tiny/\S+, which is not public \(127.0.0.1\): that is not "
            r"followed; give this address yourself",
        ):
            resolve_model(f"{store.url}/tiny")
        assert not other.asked
        store.moved = ""
        path = resolve_model(f"{store.url}/tiny")
        store.moved = other.url
        with fails(CheckpointError, "is not followed"):
            load_model(path)
        assert not other.asked
