"""Engine(chat_template=...) and Engine(tokenizer=...): what texts and conversations are written by, in both kinds of
engine."""

from __future__ import annotations

from pathlib import Path

import pytest

import sgl
from sgl.runtime import Engine
from sgl.runtime.errors import ConfigError

SOURCE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt "
    "%}<assistant>{% endif %}"
)


@sgl.function
def asks(s):
    s += sgl.user("Hi") + sgl.assistant(sgl.gen("answer", max_tokens=2))


@pytest.mark.few(1)
@pytest.mark.parametrize("process", [False, True])
def test_a_given_template_is_what_is_used(tiny: Path, tmp_path: Path, process: bool) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text(SOURCE)
    with Engine(tiny, dtype="float32", threads=1, kv_tokens=1024, process=process, chat_template=str(file)) as engine:
        talk = [{"role": "user", "content": "Hi"}]
        assert engine.tokenizer.render_chat(talk, add_generation_prompt=True) == "<user>Hi</s><assistant>"
        assert asks.run(backend=engine).text().startswith("<user>Hi</s><assistant>")


@pytest.mark.few(1)
@pytest.mark.parametrize("process", [False, True])
def test_a_checkpoint_without_a_tokenizer_takes_another_one_s(tiny: Path, tmp_path: Path, process: bool) -> None:
    for file in tiny.iterdir():
        if "token" not in file.name:
            (tmp_path / file.name).symlink_to(file)
    options = {"dtype": "float32", "threads": 1, "kv_tokens": 1024, "process": process}
    with pytest.raises(ConfigError, match="tokenizer"):
        Engine(tmp_path, **options)
    with Engine(tmp_path, tokenizer=tiny, **options) as engine, Engine(tiny, **options) as own:
        assert engine.tokenizer.eos_ids == own.tokenizer.eos_ids
        assert asks.run(backend=engine, temperature=0).text() == asks.run(backend=own, temperature=0).text()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{% for %}", r"Engine\(chat_template='\{% for %\}'\): the chat template does not compile"),
        ("/nowhere/x.jinja", r"/nowhere/x\.jinja.*no file that can be read"),
        ("chatm", r"none of the known formats: llama3, .*chatml"),
        ("gemma", r"is made of <start_of_turn>, <end_of_turn>, which this vocabulary does not have"),
    ],
)
def test_a_wrong_template_is_refused_at_once(tiny: Path, given: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Engine(tiny, chat_template=given, kv_tokens=64)
