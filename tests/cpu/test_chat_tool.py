"""`sgl chat`: piped, and in a terminal of its own."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from sgl.cli import main
from sgl.commands.chat_command import ChatPrinter
from sgl.runtime import Engine, SamplingParams

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def chat(monkeypatch: pytest.MonkeyPatch, text: str, *options: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return main(["chat", *options])


def test_answers_are_those_of_the_engine(monkeypatch, capsys) -> None:
    said = ["I am looking for a restaurant in Lisbon.", "Italian, please. <|end|>"]
    assert chat(monkeypatch, "\n".join(said), "--temperature", "0") == 0
    with Engine() as engine:
        messages = [{"role": "system", "content": "You are a helpful assistant."}]
        expected = []
        for text in said:
            messages.append({"role": "user", "content": text})
            sequence = engine.open()
            sequence.extend(engine.tokenizer.encode_chat(messages, add_generation_prompt=True))
            expected.append(sequence.generate(SamplingParams(max_tokens=512, temperature=0.0)).result().text)
            messages.append({"role": "assistant", "content": expected[-1]})
    assert capsys.readouterr().out.splitlines() == expected


def test_every_answer_keeps_to_the_schema(monkeypatch, capsys, tmp_path) -> None:
    path = tmp_path / "city.json"
    path.write_text(json.dumps(SCHEMA))
    assert chat(monkeypatch, "A room in Lisbon\n\nNow Rome", "--json-schema", str(path), "--seed", "3") == 0
    answers = capsys.readouterr().out.splitlines()
    assert len(answers) == 2 and all(set(json.loads(answer)) == {"city"} for answer in answers)


def test_commands(monkeypatch, capsys, tmp_path) -> None:
    saved = tmp_path / "talk.json"
    lines = [
        "/system Be brief.",
        "/tokens 3",
        "/temperature 0",
        "/temperature hot",
        "/temperature -7",
        "/tokens -1",
        "/nonsense",
        "One",
        "Two",
        "/undo",
        f"/save {saved}",
        "/help",
        "/new",
        f"/save {tmp_path}/no/such.json",
        "/exit",
        "not said",
    ]
    assert chat(monkeypatch, "\n".join(lines)) == 0
    told = capsys.readouterr().out
    for words in ("hot", "-7", "got -1", "/nonsense", "/undo", "No such file"):
        assert words in told, words
    roles = [(each["role"], each["content"]) for each in json.loads(saved.read_text())]
    assert roles[:2] == [("system", "Be brief."), ("user", "One")] and len(roles) == 3


def test_a_conversation_that_is_too_long_is_told(monkeypatch, capsys) -> None:
    assert chat(monkeypatch, "word " * 100 + "\nHi", "--temperature", "0", "context=64") == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert "context of 64 tokens" in first and "/new" in first
    assert rest and "context" not in rest[0], "the message that did not fit is not kept"


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "options, words",
    [
        (["--temperature", "-9"], "-9"),
        (["no/such/model"], "no/such/model"),
        (["--json-schema", "/no/such.json"], "/no/such.json"),
        (["--regex", "(a"], "(a"),
        (["colour=red"], "colour"),
    ],
)
def test_what_cannot_be_is_refused(monkeypatch, capsys, options, words) -> None:
    assert chat(monkeypatch, "Hi", *options) == 1
    assert words in capsys.readouterr().err


class Terminal:
    """`sgl chat` with a person in front of it."""

    def __init__(self, *options: str) -> None:
        self.master, slave = pty.openpty()
        command = [sys.executable, "-m", "sgl.cli", "chat", *options]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env={**os.environ, "TERM": "dumb"}
        )
        os.close(slave)
        self.seen = ""

    def wait_for(self, words: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while words not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.master, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    assert words in self.seen, self.seen

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self.master, text.encode())


@pytest.mark.whole
def test_in_a_terminal_an_answer_can_be_stopped() -> None:
    terminal = Terminal("--regex", "b[ab]{1900}", "--max-tokens", "1900", "threads=1")
    try:
        terminal.wait_for("> ")
        terminal.type("Go on\n")
        terminal.wait_for("b")
        os.killpg(terminal.process.pid, 2)
        terminal.wait_for("> ")
        terminal.type("/tokens 2\n")
        terminal.wait_for("> ")
        terminal.type("Go on\n")
        terminal.wait_for("tokens/s")
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)


def test_nothing_of_a_stopped_answer_comes_behind_the_next_prompt(capsys) -> None:
    writer = ChatPrinter()
    for text in ("some ", "words"):
        writer.take(SimpleNamespace(text=text))
    writer.stop()
    writer.take(SimpleNamespace(text=" more"))
    assert capsys.readouterr().out == "some words" and writer.texts == ["some ", "words"]


def test_it_is_told_of(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "chat" in capsys.readouterr().out
