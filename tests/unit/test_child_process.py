"""The channel between a process and its child: messages in pieces, ends in the middle, silence, errors, restarts."""

from __future__ import annotations

import pickle
import random
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sgl.common.child_process import message_channel
from sgl.common.child_process.child_process import ChildProcess, child_environment, how_it_ended
from sgl.common.child_process.message_channel import (
    HEARTBEAT,
    LONGEST,
    LOOK,
    HeartbeatLost,
    MessageChannel,
    SocketReader,
    frame,
)
from sgl.common.child_process.restart_policy import RestartPolicy
from sgl.common.child_process.serialized_error import SerializedError


@pytest.fixture
def ends() -> Iterator[tuple[MessageChannel, socket.socket]]:
    """A channel, and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    channel = MessageChannel(ours)
    yield channel, theirs
    channel.close()
    theirs.close()


def drawn(rng: random.Random) -> tuple[int, bytes]:
    return rng.randrange(1 << 40), rng.randbytes(rng.choice([0, 1, 15, 16, 17, 300, 1 << 16, 200_000]))


@pytest.mark.parametrize("patience", [None, 1000.0])
@pytest.mark.parametrize("seed", range(3))
def test_messages_arrive_whole_in_whatever_pieces(ends, seed, patience):
    channel, theirs = ends
    channel.reader.patience = patience
    rng = random.Random(seed)
    messages = [drawn(rng) for _ in range(40)]
    sent = b"".join(frame(number, data) for number, data in messages)

    def send() -> None:
        at = 0
        while at < len(sent):
            size = rng.choice([1, 2, 15, 16, 17, 1000, 70_000])
            theirs.sendall(sent[at : at + size])
            at += size

    sender = threading.Thread(target=send)
    sender.start()
    assert [channel.receive() for _ in messages] == messages
    sender.join()


def test_many_threads_send_whole_messages(ends):
    channel, theirs = ends
    other, messages = MessageChannel(theirs), [(number, bytes([number]) * 5000) for number in range(64)]
    senders = [threading.Thread(target=other.send, args=message) for message in messages]
    for sender in senders:
        sender.start()
    assert sorted(channel.receive() for _ in messages) == messages
    for sender in senders:
        sender.join()


@pytest.mark.parametrize("size", [LONGEST + 1, 1 << 62, (1 << 64) - 1])
def test_a_length_that_cannot_be_is_the_end(ends, size):
    channel, theirs = ends
    theirs.sendall(struct.pack("<qQ", 1, size) + b"abc")
    with pytest.raises(OSError, match=f"a message of {size:,} bytes"):
        channel.receive()


@pytest.mark.parametrize("patience", [None, 1000.0])
def test_a_death_in_the_middle_of_a_message_is_the_end(patience):
    whole = frame(3, b"abcdef")
    for cut in range(len(whole)):
        ours, other = socket.socketpair()
        one = MessageChannel(ours)
        one.reader.patience = patience
        other.sendall(frame(2, b"before") + whole[:cut])
        other.close()
        assert one.receive() == (2, b"before")
        with pytest.raises(EOFError):
            one.receive()
        one.close()


def test_what_was_sent_before_the_end_is_read(ends):
    channel, theirs = ends
    other = MessageChannel(theirs)
    other.send(1, b"last")
    other.leave()
    other.leave()
    with pytest.raises(OSError):
        other.send(1, b"later")
    assert channel.receive() == (1, b"last")
    with pytest.raises(EOFError):
        channel.receive()


def test_the_channels_own_messages_are_kept_and_not_handed_out(ends):
    channel, theirs = ends
    other = MessageChannel(theirs)
    other.send(HEARTBEAT, b"7 steps")
    other.send_failure(KeyError("gone"))
    other.send(5, b"mine")
    assert channel.receive() == (5, b"mine")
    assert channel.sign == b"7 steps" and isinstance(channel.failure, KeyError) and channel.failure.args == ("gone",)


def test_signs_of_life_carry_what_is_made_for_them(ends):
    channel, theirs = ends
    given = iter([b"1", b"2", b"3"])
    channel.make_sign = lambda: next(given)
    with pytest.raises(StopIteration):
        channel._beat(0.0)
    other = MessageChannel(theirs)
    channel.close()
    with pytest.raises(EOFError):
        other.receive()
    assert other.sign == b"3"


class Clock:
    """Time passes only in waits, and in what the reader's owner does meanwhile. arrives: seconds of a wait -> when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reader: SocketReader) -> None:
        self.now, self.waits, self.at_wait = 0.0, 0, {}
        self.at_wait: dict[int, Callable[[], object]]
        monkeypatch.setattr(message_channel.time, "monotonic", lambda: self.now)
        reader._poll = self

    def poll(self, milliseconds: float) -> list[object]:
        self.now += milliseconds / 1000
        self.waits += 1
        arrived = self.at_wait.pop(self.waits, None)
        return [arrived()] if arrived else []


def test_silence_is_counted_in_waits(ends, monkeypatch):
    channel, _ = ends
    reader = channel.reader
    reader.patience = 3.2
    clock = Clock(monkeypatch, reader)
    with pytest.raises(HeartbeatLost, match=r"was stopped or hung: it gave no sign of life for 3.2 s, and was killed"):
        channel.receive()
    assert clock.now == pytest.approx(3.2) and clock.waits == 7  # of half a second, and the rest


def test_time_in_which_this_process_was_busy_is_no_silence(ends, monkeypatch):
    channel, theirs = ends
    reader, looks = channel.reader, []
    reader.patience = 2.0
    clock = Clock(monkeypatch, reader)

    def busy() -> None:
        clock.now += 1000.0  # what is called at a look takes long
        looks.append(clock.now)

    reader.look = busy
    clock.at_wait[3] = lambda: theirs.sendall(frame(HEARTBEAT, b""))  # a sign of life ends the silence
    clock.at_wait[6] = lambda: theirs.sendall(frame(4, b"there"))
    assert channel.receive() == (4, b"there")
    with pytest.raises(HeartbeatLost):
        channel.receive()
    assert clock.waits == 6 + 2.0 / LOOK and len(looks) >= clock.waits - 2


def test_patience_may_change_during_a_wait(ends, monkeypatch):
    channel, _ = ends
    clock = Clock(monkeypatch, channel.reader)
    channel.reader.patience = 100.0
    clock.at_wait[4] = lambda: setattr(channel.reader, "patience", 1.0)
    with pytest.raises(HeartbeatLost, match="for 1 s"):
        channel.receive()
    assert clock.waits == 4


# errors


class Worded(Exception):
    def __init__(self, what: str, where: str) -> None:
        super().__init__(what, where)
        self.where = where

    def __str__(self) -> str:
        return f"{self.args[0]} at {self.where}"


def back(error: BaseException, **options: object) -> BaseException:
    return pickle.loads(pickle.dumps(SerializedError.of(error, **options))).error()


def test_an_error_arrives_as_it_was():
    found = back(Worded("what", "here"))
    assert type(found) is Worded and str(found) == "what at here" and found.where == "here"
    missing = back(FileNotFoundError(2, "no such file", "name"))
    assert (type(missing), missing.errno, missing.filename) == (FileNotFoundError, 2, "name")


def test_an_error_that_cannot_be_sent_arrives_as_its_nearest_base_class():
    class Local(LookupError):
        pass

    class Own(Exception):
        pass

    error = Local("what")
    error.where, error.held = "here", lambda: None
    found = back(error)
    assert type(found) is LookupError and str(found) == "Local: what" and vars(found) == {"where": "here"}
    assert type(back(Own("x"))) is RuntimeError and str(back(Own("x"))) == "Own: x"
    assert type(back(Own("x"), otherwise=OSError)) is OSError


def test_an_error_whose_class_does_anything_arrives_as_a_text():
    class Hostile(Exception):
        def __str__(self) -> str:
            raise SystemExit

        def __reduce__(self) -> str:
            raise KeyboardInterrupt

    assert str(back(Hostile())) == "Hostile: (its str() raises SystemExit)"


# starting and ending


CHILD = """
import os, signal, sys

def begin(channel, *arguments):
    channel.send(0, repr((arguments, os.environ.get("ONE"))).encode())
    while True:
        number, data = channel.receive()
        if data == b"die":
            os.kill(os.getpid(), signal.SIGKILL)
        if data == b"fail":
            channel.send_failure(ValueError("what it was given"))
            os._exit(3)
        channel.send(number, data[::-1])
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildProcess]:
    (tmp_path / "echoes.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    found = ChildProcess("echoes", "a", 1, environment=child_environment(ONE="1"))
    yield found
    found.kill()
    found.end(0.0)


def test_a_child_answers_and_says_how_it_fails(child):
    assert child.channel.receive() == (0, b"(('a', '1'), '1')")
    child.channel.send(8, b"abc" * 100_000)
    assert child.channel.receive() == (8, b"cba" * 100_000)
    child.channel.send(9, b"fail")
    with pytest.raises((EOFError, OSError)):
        child.channel.receive()
    assert child.end(60.0) == "ended with exit code 3" and child.code == 3
    assert isinstance(child.channel.failure, ValueError) and str(child.channel.failure) == "what it was given"


def test_a_child_that_is_killed(child):
    child.channel.send(9, b"die")
    with pytest.raises((EOFError, OSError)):
        while True:
            child.channel.receive()
    assert child.end(60.0) == "was killed by SIGKILL (by somebody, or as memory ran out)"


def test_a_child_that_does_not_end_is_killed(child):
    child.channel.receive()
    child.signal(signal.SIGSTOP)
    assert "SIGKILL" in child.end(0.0) and "SIGKILL" in child.end(0.0)  # again


def test_how_a_process_ended():
    assert how_it_ended(0) == "ended with exit code 0" and how_it_ended(None) == "was killed and has not ended yet"
    assert how_it_ended(-signal.SIGSEGV) == "was killed by SIGSEGV" and how_it_ended(-200) == "was killed by signal 200"


def test_restarts_in_a_row_are_counted():
    policy = RestartPolicy((0.0, 1.0, 4.0))
    assert [policy.pause(useful=False) for _ in range(4)] == [0.0, 1.0, 4.0, None] and policy.deaths == 4
    assert [policy.pause(useful) for useful in (True, False, True, False)] == [0.0, 1.0, 0.0, 1.0]
