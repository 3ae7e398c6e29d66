"""Models in a bucket, of a local server that speaks S3."""

from __future__ import annotations

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
from sgl.runtime.loading.tensor_files.tensor_source import bytes_of

pytest.importorskip("obstore", reason="needs the client: pip install 'sgl[remote]'")
moto = pytest.importorskip("moto.server", reason="needs moto: pip install 'sgl[formats]'")
boto3 = pytest.importorskip("boto3", reason="needs boto3, which comes with moto")
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}
URL = "s3://models/a/tiny"


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("twins")
    return [write_checkpoint(place / str(seed), seed=seed, tokenizer=True, shard_size="300KB") for seed in (0, 1)]


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twins: list[Path]) -> Iterator[Any]:
    """A client of the bucket, which holds the first model."""
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        **ENVIRONMENT,
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "SGL_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
    client.create_bucket(Bucket="models")
    assert main(["push", str(twins[0]), URL]) == 0
    client.stop = server.stop
    yield client
    server.stop()


def test_texts_are_those_of_what_was_pushed(bucket: Any, twins: list[Path]) -> None:
    assert text_of(URL) == text_of(twins[0])
    assert main(["push", str(twins[1]), URL]) == 0
    assert text_of(URL) == text_of(twins[1])


def test_bytes_are_those_of_the_files(bucket: Any, twins: list[Path]) -> None:
    for near, far in zip(sources_of(twins[0]), sources_of(resolve_model(URL)), strict=True):
        assert (near.tensors, near.bytes) == (far.tensors, far.bytes)
        for stored in near.tensors[::7]:
            for part in ((0, stored.stop - stored.start), (7, stored.stop - stored.start - 9)):
                assert (bytes_of(near, stored, *part) == bytes_of(far, stored, *part)).all()


def test_what_is_changed_or_gone_is_told(bucket: Any, twins: list[Path]) -> None:
    path = resolve_model(URL)
    opened, name = sources_of(path)[0], min(twins[0].glob("*.safetensors")).name
    bucket.upload_file(str(twins[1] / name), "models", f"a/tiny/{name}")
    with fails(CheckpointError, rf"{URL}/{name} is another file than when the model was opened"):
        bytes_of(opened, opened.tensors[0], 0, 8)
    bucket.delete_object(Bucket="models", Key=f"a/tiny/{name}")
    with fails(CheckpointError, rf"{URL}/{name} is no longer there"):
        load_model(path)
    with fails(CheckpointError, rf"{URL}/{name} is missing, of"):
        resolve_model(URL)
    with fails(CheckpointError, "s3://models/b/config.json is missing"):
        resolve_model("s3://models/b")


def test_a_server_that_is_gone(bucket: Any) -> None:
    path = resolve_model(URL)
    bucket.stop()
    with fails(CheckpointError, rf"{URL}/model-0\S+ could not be read"):
        load_model(path)
