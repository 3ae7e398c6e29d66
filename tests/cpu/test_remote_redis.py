"""Models in a redis server, a real one that the test starts."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_checkpoint
from remote_models import fails, text_of

from sgl.cli import main
from sgl.runtime.errors import CheckpointError
from sgl.runtime.loading import load_model, resolve_model
from sgl.runtime.loading.checkpoint import sources_of
from sgl.runtime.loading.remote import redis_store
from sgl.runtime.loading.tensor_files.tensor_source import bytes_of

redis = pytest.importorskip("redis", reason="needs the client: pip install 'sgl[remote]'")
SERVER = shutil.which("redis-server")
pytestmark = pytest.mark.skipif(SERVER is None, reason="needs redis-server, the Debian package of that name")


class Server:
    """Listens on a free port, keeps nothing on disk."""

    def __init__(self, folder: Path) -> None:
        assert SERVER is not None
        for port in range(36_379, 36_479):
            self.process = subprocess.Popen(
                [SERVER, "--port", str(port), "--save", "", "--requirepass", "secret", "--dir", str(folder)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self.client = redis.Redis(port=port, password="secret")
            if self._up():
                break
        self.url = f"redis://:secret@127.0.0.1:{port}"

    def _up(self) -> bool:
        for _ in range(100):
            if self.process.poll() is not None:
                return False
            try:
                if self.client.info("server")["process_id"] == self.process.pid or self.process.poll() is None:
                    return True
            except redis.RedisError:
                time.sleep(0.05)
        return False

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("twins")
    return [write_checkpoint(place / str(seed), seed=seed, tokenizer=True, shard_size="300KB") for seed in (0, 1)]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("SGL_CACHE", str(tmp_path / "cache"))
    started = Server(tmp_path)
    yield started
    started.stop()


def test_texts_are_those_of_what_was_pushed(server: Server, twins: list[Path], capsys: Any) -> None:
    url = f"{server.url}/models/tiny"
    for twin in twins:
        assert main(["push", str(twin), url]) == 0
        assert "MB written" in capsys.readouterr().out
        assert text_of(url) == text_of(twin)
    tensors = sum(len(source.tensors) for source in sources_of(twins[1]))
    names = [name.decode() for name in server.client.keys("*")]
    assert len([name for name in names if ".safetensors:" in name]) == tensors + len(sources_of(twins[1]))
    assert len({name.split(":")[1] for name in names if not name.endswith("manifest")}) == 1


def test_values_are_cut_and_read_from_any_byte_on(
    server: Server, twins: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "MOST_VALUE", 1000)
    url = f"{server.url}/tiny"
    assert main(["push", str(twins[0]), url]) == 0
    assert max(server.client.strlen(name) for name in server.client.keys("*.safetensors:[1-9]*")) == 1000
    for near, far in zip(sources_of(twins[0]), sources_of(resolve_model(url)), strict=True):
        assert near.tensors == far.tensors
        for stored in near.tensors[::5]:
            for part in ((0, stored.stop - stored.start), (7, stored.stop - stored.start - 9)):
                assert (bytes_of(near, stored, *part) == bytes_of(far, stored, *part)).all()


def test_what_is_changed_or_gone_is_told(server: Server, twins: list[Path]) -> None:
    url, shown = f"{server.url}/tiny", f"{server.url}/tiny".replace(":secret@", "")
    with fails(CheckpointError, rf"{shown} holds no model: there is no key tiny:manifest.*sgl push"):
        resolve_model(url)
    main(["push", str(twins[0]), url])
    path = resolve_model(url)
    key = min(server.client.keys("*model-00001*:[1-9]*")).decode()
    value = server.client.get(key)
    for damage in (lambda: server.client.delete(key), lambda: server.client.set(key, value[:-1])):
        damage()
        with fails(
            CheckpointError,
            rf"{shown}: the key {key} has .* bytes of model-00001-of-\d+.safetensors.*gone or cut short",
        ):
            load_model(path)
    opened = sources_of(path)[0]
    main(["push", str(twins[1]), url])
    with fails(CheckpointError, rf"{shown} holds another model than when it was opened"):
        load_model(path)
    with fails(CheckpointError, rf"{shown}: the key .* is gone"):
        bytes_of(opened, opened.tensors[-1], 0, 8)
    server.client.set("tiny:manifest", "{")
    with fails(CheckpointError, rf"{shown}: the key tiny:manifest is damaged"):
        resolve_model(url)


def test_a_server_that_dies(server: Server, twins: list[Path]) -> None:
    url = f"{server.url}/tiny"
    main(["push", str(twins[0]), url])
    path = resolve_model(url)
    opened = sources_of(path)[0]
    server.stop()
    with fails(CheckpointError, r"redis://127.0.0.1:\d+/tiny/model-0\S+ could not be read"):
        bytes_of(opened, opened.tensors[0], 0, 8)
    with fails(CheckpointError, r"redis://127.0.0.1:\d+/tiny/manifest could not be read"):
        load_model(path)


def test_what_is_not_pushed(server: Server, twins: list[Path], tmp_path: Path, capsys: Any) -> None:
    for model, url, words in (
        (tmp_path, f"{server.url}/a", "lacks the weights"),
        (twins[0], "http://127.0.0.1:9/a", "can only be read"),
        (twins[0], f"{server.url.replace('secret', 'other')}/a", "could not be read"),
    ):
        assert main(["push", str(model), url]) == 1
        told = capsys.readouterr().err
        assert words in told and "secret" not in told and "other@" not in told
