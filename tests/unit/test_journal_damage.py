"""Journals whose disk was full for a moment, or whose file was damaged: never another text than was recorded."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import warnings

import pytest
from journal_programs import CITIES, LoggedBackend, facts, trip

import sgl
from sgl.lang.errors import JournalError, RecordedError, ReplayMismatch
from sgl.lang.journal import Journal, journalled, record, replay, resume
from sgl.lang.journal import journal_file as journal_file


@sgl.function
def short(s):
    s += "a" + sgl.gen("season") + sgl.select("rank", ["high", "low"]) + sgl.gen("verdict")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.fixture
def whole(path):
    """The bytes of a small journal, and its nodes as they are written."""
    with record(path, LoggedBackend(), seed=7) as backend:
        short.run(backend=backend).text()
        backend.journal.edit(backend.journal.find("verdict"), "stay")
    return path.read_bytes(), {node.number: node.as_json() for node in Journal.open(path)}


def test_every_line_has_a_checksum(whole):
    lines = whole[0].splitlines()
    assert len(lines) == 5 and all(re.fullmatch(r"[0-9a-f]{16}", json.loads(line)["sum"]) for line in lines)


@pytest.mark.whole
def test_each_flipped_bit_is_an_error_that_names_the_line(path, whole):
    """Or takes the last line away, where it was its end."""
    data, _ = whole
    for place in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        line = data[: place // 8].count(b"\n") + 1
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                found = Journal.open(path)
        except JournalError as error:
            assert re.search(rf"{re.escape(str(path))}:{line}\b", str(error)), (place, str(error))
        else:
            assert place // 8 == len(data) - 1 and "torn" in str(told[0].message)
            assert [node.number for node in found] == [0, 1, 2]


def test_what_is_around_a_flipped_bit_can_be_used(path, whole):
    data, nodes = whole
    begin = data.index(b"\n") + 1
    for place in range(begin * 8, len(data) * 8, 7):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.warns(UserWarning, match="damaged lines are skipped|torn"):
            found = {node.number: node.as_json() for node in Journal.open(path, skip_damaged=True)}
        assert 1 <= len(found) <= 3
        for number, node in found.items():  # whole, but for an edit that is lost
            assert node == nodes[number] or (node["text"] != "stay" and number == 2)


def test_without_its_first_line_a_journal_is_of_no_use(path, whole):
    path.write_bytes(b"x" + whole[0])
    with pytest.raises(JournalError, match=r"run.jsonl:1 is damaged .*cannot be used without its first line"):
        Journal.open(path, skip_damaged=True)


def test_truncated_at_each_byte_it_goes_on(path, whole):
    """A torn line is dropped; nothing else is lost, and nothing is there that was not."""
    data, nodes = whole
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [node.as_json() for node in Journal.open(path)]
        assert len(found) == max(0, min(data[:length].count(b"\n") - 1, 3))
        assert found[:2] == [nodes[number] for number in range(min(2, len(found)))]


@pytest.mark.parametrize("lines", [[0, 1, 3], [0, 2, 1, 3], [0, 1, 1, 2], [0, 1, 2, 4]])
def test_lines_that_are_missing_or_there_twice(path, whole, lines):
    kept = [whole[0].splitlines(keepends=True)[line] for line in lines]
    path.write_bytes(b"".join(kept))
    with pytest.raises(JournalError, match=r"run.jsonl:\d is damaged \(it (holds|edits) node \d"):
        Journal.open(path)


def test_a_resumed_run_computes_what_a_damaged_line_held(path):
    items = CITIES[:3]
    with record(path, LoggedBackend(), seed=7) as backend:
        undisturbed = [facts(state) for state in trip.run_batch(items, backend=backend)]
    lines = path.read_bytes().splitlines(keepends=True)
    for number in range(1, len(lines), 5):
        path.write_bytes(b"".join([*lines[:number], lines[number].replace(b'"kind"', b'"kint"'), *lines[number + 1 :]]))
        with pytest.raises(JournalError, match=rf"run.jsonl:{number + 1} .*skip_damaged=True"):
            resume(path, LoggedBackend())
        with pytest.warns(UserWarning, match=rf"1 damaged lines are skipped: {number + 1}"):
            backend = resume(path, LoggedBackend(), skip_damaged=True)
        with backend:
            assert [facts(state) for state in trip.run_batch(items, backend=backend)] == undisturbed
        assert len(backend.computed) == 1
        with pytest.warns(UserWarning, match="skipped"), replay(path, skip_damaged=True) as backend:
            assert [facts(state) for state in trip.run_batch(items, backend=backend)] == undisturbed


def test_journals_of_the_first_format_are_read_and_gone_on_with(path):
    """Without checksums; what is added has them, and is held to them."""
    items = CITIES[:2]
    with record(path, LoggedBackend(), seed=7) as backend:
        undisturbed = [facts(state) for state in trip.run_batch(items, backend=backend)]
    old = [
        re.sub(rb',"sum":"[0-9a-f]{16}"}', b"}", line).replace(b'"journal":2', b'"journal":1')
        for line in path.read_bytes().splitlines()
    ]
    path.write_bytes(b"".join(line + b"\n" for line in old[:9]))
    assert len(Journal.open(path)) == 8
    with resume(path, LoggedBackend()) as backend:
        assert [facts(state) for state in trip.run_batch(items, backend=backend)] == undisturbed
    assert len(backend.served) == 8
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], re.sub(rb',"sum":"[0-9a-f]{16}"}', b"}", lines[-1])]))
    with pytest.raises(JournalError, match=rf"run.jsonl:{len(lines)} is damaged \(it does not end in a checksum"):
        Journal.open(path)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"edit": -1, "text": "x"}, "edits node -1"),
        ({"edit": 10**30, "text": "x"}, "edits node 1000"),
        ({"edit": "0", "text": "x"}, "edits node '0'"),
        ({"edit": 0}, "KeyError"),
        ({"turn": 5}, "TypeError"),
        ({"number": 10**9, "kind": "gen", "name": "x", "key": "", "shape": "", "path": "0"}, "holds node 1000000000"),
        ({"number": 3, "kind": "gen", "name": "x", "key": "", "shape": "", "path": "0", "previous": 3}, "after node 3"),
        ({"number": 3}, "lacks 'key'"),
        ({"turn": ["user", 5], "prefix": "", "suffix": ""}, "its turn is"),
        ({"turn": ["user"], "prefix": "", "suffix": None}, "its turn is"),
        ({"edit": 0, "text": 5}, "TypeError: the text of gen 'season' must be a str"),
        ({"number": 3, "kind": "select", "name": "x", "key": "", "shape": "", "path": "0"}, "select without choices"),
        ({"number": 3, "kind": "gen", "name": "x", "key": "", "shape": "", "path": "a.b"}, "its node has path='a.b'"),
        (
            {"number": 3, "kind": "gen", "name": "x", "key": "", "shape": "", "path": "0", "error": {"type": 5}},
            "its node has error=",
        ),
    ],
)
def test_entries_that_nobody_writes(path, whole, entry, why):
    path.write_bytes(whole[0] + journal_file.with_checksum(entry))
    with pytest.raises(JournalError, match=rf"run.jsonl:6 is damaged \(.*{why}"):
        Journal.open(path)
    with pytest.warns(UserWarning, match="1 damaged lines are skipped: 6"):
        assert len(Journal.open(path, skip_damaged=True)) == 3


@pytest.mark.parametrize(
    "header", [{"journal": 1}, {"journal": 1, "model": "x", "seed": "7", "chat_template": {}}, {"journal": []}]
)
def test_first_lines_that_nobody_writes(path, header):
    path.write_text(json.dumps(header) + "\n")
    with pytest.raises(JournalError, match=r"is this a journal|does not begin like a journal"):
        resume(path, LoggedBackend())


def test_lines_that_are_edited_and_sealed_again(path, whole):
    """Any value in any field: it is read, or the error is one of a journal's."""
    lines = [json.loads(line) for line in whole[0].splitlines()]
    for number, line in enumerate(lines):
        line.pop("sum")
        for field in (*line, *(f"chat_template/{name}" for name in line.get("chat_template", {}))):
            for value in (None, -1, "x", [5], {"a": 5}):
                changed = json.loads(json.dumps(line))
                place = changed["chat_template"] if "/" in field else changed
                place[field.partition("/")[2] or field] = value
                path.write_bytes(
                    b"".join(
                        journal_file.with_checksum(changed if i == number else other) for i, other in enumerate(lines)
                    )
                )
                try:
                    with replay(path) as backend:
                        short.run(backend=backend).text()
                except (JournalError, ReplayMismatch, RecordedError) as error:
                    assert str(path) in str(error) or isinstance(error, RecordedError), (
                        number,
                        field,
                        value,
                        str(error),
                    )


# --- a disk that is full for a moment ------------------------------------------------------------------------------


class FullDisk:
    """Fails the write number `at`, after half of its bytes; with `cut`, so does the first attempt to cut back."""

    def __init__(self, at: int, cut: bool) -> None:
        self.at, self.cut, self.count = at, cut, 0
        self.write_before, self.cut_before = os.write, os.ftruncate

    def write(self, file, data):
        self.count += 1
        if self.count == self.at:
            self.write_before(file, bytes(data)[: len(data) // 2])
        if self.count in (self.at, self.at + 1):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.write_before(file, data)

    def ftruncate(self, file, length):
        if self.cut and self.count >= self.at:
            self.cut = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.cut_before(file, length)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("at", range(1, 25, 3))
def test_a_full_disk_at_each_write(path, tmp_path, monkeypatch, caplog, at, cut):
    items = CITIES[:3]
    with record(tmp_path / "undisturbed.jsonl", LoggedBackend(), seed=7) as backend:
        undisturbed = [facts(state) for state in trip.run_batch(items, backend=backend)]
    disk = FullDisk(at, cut)
    with monkeypatch.context() as patch:
        patch.setattr(journal_file.os, "write", disk.write)
        patch.setattr(journal_file.os, "ftruncate", disk.ftruncate)
        errors = attempt(path, items)
    assert disk.count > at  # the run went on
    assert all("cannot be written ([Errno" in str(error) for error in errors)
    assert errors or "cannot be written ([Errno 28] No space" in caplog.text  # of a fork that nobody reads
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with journalled(LoggedBackend(), path, seed=7) as backend:
            assert [facts(state) for state in trip.run_batch(items, backend=backend)] == undisturbed
        assert len(Journal.open(path)) == len(Journal.open(tmp_path / "undisturbed.jsonl"))


def attempt(path, items):
    """What the states of a run on a full disk end in, or the attempts to begin."""
    errors = []
    for _ in range(3):
        try:
            with journalled(LoggedBackend(), path, seed=7) as backend:
                states = trip.run_batch(items, backend=backend, return_exceptions=True)
                return errors + [found for state in states if (found := error_of(state))]
        except JournalError as error:
            errors.append(error)
    return errors


def error_of(state):
    return state if isinstance(state, Exception) else state.error()


REAL = """
import resource, sys, sgl, warnings
from sgl.lang.errors import JournalError, RecordedError, ReplayMismatch
@sgl.function
def ask(s, n):
    s += "x" * 50 + sgl.gen("a")
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
path = sys.argv[1]
warnings.simplefilter("error")
with sgl.record(path, sgl.Scripted(lambda prompt, request: "y"), seed=1) as backend:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    failed = [state.error() for state in ask.run_batch([{"n": n} for n in range(5)], backend=backend)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    ask.run(9, backend=backend)
kept = len(sgl.Journal.open(path))
print(sum(error is not None for error in failed), kept)
"""


def test_a_limit_of_the_system(path):
    """The kernel itself writes half a line, then refuses."""
    done = subprocess.run([sys.executable, "-c", REAL, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    failed, kept = map(int, done.stdout.split())
    assert failed > 0 and kept == 5 - failed + 1


def test_a_value_that_could_not_be_written_is_told_at_the_end(path, monkeypatch):
    calls = []

    @sgl.function
    def mail(s):
        s += "a" + sgl.gen("x")
        sgl.once(s, "send", lambda: calls.append(1) or len(calls))
        s += "b" + sgl.gen("y")

    disk = FullDisk(10**9, False)
    monkeypatch.setattr(journal_file.os, "write", disk.write)
    backend = record(path, LoggedBackend(), seed=1)

    def full(entry):
        if entry.get("kind") == "once":
            raise JournalError("cannot be written")
        return write(entry)

    write = backend.journal._file.append
    monkeypatch.setattr(backend.journal._file, "append", full)
    assert mail.run(backend=backend).error() is None
    with pytest.raises(JournalError, match="cannot be written"):
        backend.close()
    backend.close()
