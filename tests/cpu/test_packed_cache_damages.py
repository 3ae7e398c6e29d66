"""Entries of the cache that are damaged, and caches that cannot be written: rebuilt or left aside, never wrong."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from checkpoints import write_checkpoint
from packed_cache_rig import FOUND, entry_of, load, same, start, use_cache, without

from sgl.common import file_cache
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.loading.packed_cache import content_digest, entry_file, known_sources
from sgl.runtime.loading.packed_cache.content_digest import DamagedEntryError
from sgl.runtime.loading.packed_cache.entry_file import HEADER, PAGE, EntryHeader, read_entry

pytestmark = pytest.mark.skipif(
    not cpu_kernels.kernels or not cpu_kernels.kernels.INT4, reason="needs the kernels that weights are packed for"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return use_cache(tmp_path / "cache", monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "m")


@pytest.fixture
def expected(path: Path, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    return without(path, monkeypatch)


def flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda file: file[:at] + bytes([file[at] ^ 1 << at % 8]) + file[at + 1 :]


def zeroed(at: int, size: int) -> Callable[[bytes], bytes]:
    return lambda file: file[:at] + bytes(size) + file[at + size :]


def damages(file: bytes, header: EntryHeader, count: int) -> Iterator[Callable[[bytes], bytes]]:
    """Of each kind, and flipped bits everywhere that something is."""
    draw = random.Random(7)
    yield from (lambda _: b"", lambda file: file[:-1], lambda file: file + b"\0", lambda file: file + file)
    yield from (lambda file: file[:PAGE], lambda file: file[: header.rest_at], lambda file: b"\0" * len(file))
    yield from (lambda file: file[1:] + file[:1], lambda file: b"x" + file[:-1])
    yield zeroed(0, 8)
    yield lambda file: file[:8] + (entry_file.VERSION + 1).to_bytes(8, "little") + file[16:]
    yield from (flipped(at) for at in range(PAGE) if at < HEADER.size + content_digest.DIGEST or at % 64 == 0)
    parts = ((PAGE, header.manifest), (header.blocks_at, header.blocks), (header.rest_at, header.rest))
    for first, size in parts:
        yield from (flipped(first + draw.randrange(size)) for _ in range(count))
        yield from (flipped(first), flipped(first + size - 1))


def test_a_walk_over_damages(path: Path, cache: Path) -> None:
    start(path)
    entry = entry_of(cache)
    whole, key = entry.read_bytes(), entry.stem
    header = EntryHeader.of(whole[:PAGE])
    tried = 0
    for damage in damages(whole, header, 90):
        damaged = damage(whole)
        if damaged != whole:
            entry.write_bytes(damaged)
            with pytest.raises(DamagedEntryError):
                read_entry(entry, key)
            tried += 1
    assert tried > 500
    entry.write_bytes(whole)
    assert read_entry(entry, key).bytes == len(whole)


@pytest.mark.parametrize("at", ["empty", "version", "manifest", "blocks", "rest", "cut"])
def test_a_damaged_entry_is_written_anew_and_told_once(
    at: str, path: Path, cache: Path, expected: torch.Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    start(path)
    entry = entry_of(cache)
    whole = entry.read_bytes()
    header = EntryHeader.of(whole[:PAGE])
    places = {"version": 8, "manifest": PAGE + 9, "blocks": header.blocks_at + 99, "rest": header.rest_at + 99}
    entry.write_bytes({"empty": b"", "cut": whole[:-9]}.get(at) or flipped(places.get(at, 0))(whole))
    if at == "empty":
        entry.write_bytes(b"")
    model, packed = load(path)
    assert packed.outcome.startswith("an entry was damaged") and same(path, expected, model)
    assert len(caplog.records) == 1
    model, outcome = start(path)
    assert outcome.startswith("written to the cache") and same(path, expected, model)
    model, outcome = start(path)
    assert outcome.startswith(FOUND) and same(path, expected, model)
    assert len(caplog.records) == 1


def test_swapped_files(path: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of two models, and what is known of their files, under each other's names."""
    other = write_checkpoint(tmp_path / "other", seed=5)
    for each in (path, other):
        start(each)
    for pair in (sorted(cache.glob("*.weights")), sorted(cache.glob("*.source"))):
        contents = [file.read_bytes() for file in pair]
        for file, text in zip(pair, reversed(contents), strict=True):
            file.write_bytes(text)
        for each in (path, other):
            model, outcome = start(each)
            assert not outcome.startswith(FOUND) and same(each, without(each, monkeypatch), model)
            assert start(each)[1].startswith(FOUND)


def test_what_is_known_of_a_file_is_checked(path: Path, cache: Path, expected: torch.Tensor) -> None:
    start(path)
    (known,) = cache.glob("*.source")
    whole = known.read_bytes()
    edited = json.loads(whole) | {"digest": "00" * 32}
    for text in (b"", b"[]", b"\xff", whole[:-1], json.dumps(edited).encode(), b"[" * 10_000, b"{}"):
        known.write_bytes(text)
        model, outcome = start(path)
        assert outcome == "in the cache already" and same(path, expected, model)
        assert known.read_bytes() == whole


# caches that cannot be written


def test_a_full_disk(path: Path, cache: Path, expected: torch.Tensor) -> None:
    """The system refuses to write more than some bytes into a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20 + 5000, before[1]))
    try:
        model, outcome = start(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert outcome.startswith("not written") and same(path, expected, model)
    assert not [*cache.glob("*.weights")] and not [*cache.glob(f"{file_cache.UNFINISHED}*")]


@pytest.mark.parametrize("why", ["file", "no permission", "no home", "no number"])
def test_a_folder_that_cannot_be_written(
    why: str, path: Path, tmp_path: Path, cache: Path, expected: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> tuple[int, str]:
        raise PermissionError(errno.EROFS, "Read-only file system")

    if why == "file":
        (tmp_path / "file").write_bytes(b"")
        monkeypatch.setenv("SGL_CACHE", str(tmp_path / "file" / "folder"))
    elif why == "no permission":
        monkeypatch.setattr(file_cache.tempfile, "mkstemp", refused)
    elif why == "no home":
        monkeypatch.setenv("SGL_CACHE", "~nobody-of-this-name/cache")
    else:
        monkeypatch.setenv("SGL_CACHE_GB", "many")
    model, outcome = start(path)
    assert outcome.startswith("not ") and same(path, expected, model)


def test_a_folder_that_can_only_be_read(
    path: Path, cache: Path, expected: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(path)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system")

    for name in ("utime", "unlink", "replace"):
        monkeypatch.setattr(file_cache.os, name, refused)
    model, outcome = start(path)
    assert outcome.startswith(FOUND) and same(path, expected, model)


def test_deletion_while_it_is_used(path: Path, cache: Path, expected: torch.Tensor) -> None:
    start(path)
    model, outcome = start(path)
    for file in cache.iterdir():
        file.unlink()
    cache.rmdir()
    assert outcome.startswith(FOUND) and same(path, expected, model)
    assert start(path)[1].startswith("written to the cache")


def test_what_is_written_into_weights_stays_in_the_process(path: Path, cache: Path, expected: torch.Tensor) -> None:
    start(path)
    model, _ = start(path)
    model.embedding.table.zero_()
    for layer in model.layers:
        for place in layer.products():
            getattr(*place).weight.zero_()
    assert not same(path, expected, model)
    model, outcome = start(path)
    assert outcome.startswith(FOUND) and same(path, expected, model)


def test_a_file_that_changes_while_it_is_written(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digest would be that of other contents than those that were loaded."""
    digest = known_sources.digest_of_file

    def changed(file: Path, *more: Callable[[], None]) -> str:
        found = digest(file, *more)
        with open(file, "r+b") as stream:
            stream.write(stream.read(1))
        os.utime(file)
        return found

    monkeypatch.setattr(known_sources, "digest_of_file", changed)
    assert "have changed since" in start(path)[1] and not [*cache.glob("*")]


def test_several_at_once(path: Path, cache: Path, expected: torch.Tensor) -> None:
    found: list[bool] = []
    barrier = threading.Barrier(3)

    def run() -> None:
        barrier.wait()
        model, outcome = start(path)
        found.append(outcome.startswith(("written to", "in the cache already", FOUND)) and same(path, expected, model))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 3 and entry_of(cache) and start(path)[1].startswith(FOUND)


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from packed_cache_rig import packed_weights, known_sources, load
from sgl.runtime.loading.packed_cache.background_writer import PackedWeightsWriter
packed_weights.LEAST, known_sources.GRAIN = 0, -1e9
model, packed = load(Path(sys.argv[1]))
writer = PackedWeightsWriter.started(packed, model)
assert writer is not None or packed.outcome.startswith("from the cache")  # where the other one was much faster
"""


@pytest.mark.whole
def test_two_processes_at_once_that_end_before_they_have_written(
    path: Path, cache: Path, expected: torch.Tensor
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(path), str(Path(__file__).parent)]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    model, outcome = start(path)
    assert outcome.startswith(FOUND) and same(path, expected, model)
