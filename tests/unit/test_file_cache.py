"""A folder of files that can be made again: its bound, what is left of writes that fail, and the environment."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sgl.common import file_cache
from sgl.common.file_cache import ABANDONED, UNFINISHED, FileCache, cache_folder, caches_are_off, most_bytes


def put(cache: FileCache, name: str, size: int, used: float | None = None) -> None:
    with cache.writing(name, size) as stream:
        stream.write(b"x" * size)
    if used is not None:
        os.utime(cache.path(name), (used, used))


def names(cache: FileCache) -> list[str]:
    return [entry.path.name for entry in cache.entries()]


def test_the_least_recently_used_go(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "new" / "folder", 100)
    assert cache.entries() == []
    for used, name in enumerate("abc"):
        put(cache, name, 30, 1000 + used)
    cache.used("a")
    put(cache, "d", 40)
    assert names(cache) == ["c", "a", "d"]
    put(cache, "d", 40)  # the same name takes the place of the one before
    assert set(names(cache)) == {"a", "c", "d"} and sum(entry.bytes for entry in cache.entries()) == 100


def test_what_never_fits_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FileCache(tmp_path, 100)
    put(cache, "a", 60)
    with pytest.raises(OSError, match="SGL_CACHE_GB"):
        put(cache, "b", 101)
    monkeypatch.setattr(file_cache.shutil, "disk_usage", lambda _: type("Usage", (), {"free": file_cache.SPARED + 20}))
    with pytest.raises(OSError, match="disk"):
        put(cache, "b", 90)
    assert names(cache) == ["a"]
    put(cache, "b", 70)  # there is room for it without the other
    assert names(cache) == ["b"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 100)
    put(cache, "a", 10)
    with pytest.raises(ZeroDivisionError), cache.writing("a", 10) as stream:
        stream.write(b"half")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["a"] and cache.path("a").read_bytes() == b"x" * 10


def test_readers_see_all_or_nothing_and_may_go_on_when_it_is_deleted(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 100)
    put(cache, "a", 10)
    with open(cache.path("a"), "rb") as reader, cache.writing("a", 4) as stream:
        stream.write(b"ab")
        assert cache.path("a").read_bytes() == b"x" * 10
        stream.write(b"cd")
        cache.remove("a")
        cache.remove("a")
        assert reader.read() == b"x" * 10
    assert cache.path("a").read_bytes() == b"abcd"


def test_files_that_a_process_left_unfinished(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 100)
    for name in ("old", "new"):
        (tmp_path / f"{UNFINISHED}{name}").write_bytes(b"half")
    long_ago = os.stat(tmp_path / f"{UNFINISHED}new").st_mtime - 2 * ABANDONED
    os.utime(tmp_path / f"{UNFINISHED}old", (long_ago, long_ago))
    put(cache, "a", 10)
    assert sorted(os.listdir(tmp_path)) == [f"{UNFINISHED}new", "a"] and names(cache) == ["a"]


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = FileCache(tmp_path / "file" / "folder", 100)
    with pytest.raises(OSError):
        put(cache, "a", 10)
    cache.used("a")
    cache.remove("a")


def test_many_writers_of_one_name(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 10_000)

    def write(letter: bytes) -> None:
        for _ in range(20):
            with cache.writing("a", 1000) as stream:
                stream.write(letter * 500)
                stream.write(letter * 500)
            assert len(set(cache.path("a").read_bytes())) == 1

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"x", b"y", b"z")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.listdir(tmp_path) == ["a"] and len(cache.path("a").read_bytes()) == 1000


@pytest.mark.parametrize(
    "environment, folder",
    [
        ({"SGL_CACHE": "/x/y"}, "/x/y"),
        ({"SGL_CACHE": "/x/y", "XDG_CACHE_HOME": "/z"}, "/x/y"),
        ({"XDG_CACHE_HOME": "/z"}, "/z/sgl"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/sgl"),
        ({"SGL_CACHE": ""}, "/home/me/.cache/sgl"),
        ({"SGL_CACHE": "0"}, "/home/me/.cache/sgl"),
        ({"SGL_CACHE": "~/mine"}, "/home/me/mine"),
    ],
)
def test_the_folder(environment: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SGL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder) and caches_are_off() == (environment.get("SGL_CACHE") == "0")


def test_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGL_CACHE_GB", raising=False)
    assert most_bytes() == 20 * 10**9
    monkeypatch.setenv("SGL_CACHE_GB", "0.5")
    assert most_bytes() == 5 * 10**8
    for wrong in ("many", "inf", "nan"):
        monkeypatch.setenv("SGL_CACHE_GB", wrong)
        with pytest.raises(OSError, match="SGL_CACHE_GB"):
            most_bytes()
