"""What a grammar needs long for is worked out beside the loop: the text is the same, and nobody else waits for it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from sgl import grammars
from sgl.grammars.automaton.automaton_work_budget import UNLIMITED
from sgl.grammars.errors import GrammarLimitError
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.errors import RequestAborted
from sgl.runtime.loop import engine_core
from sgl.runtime.sequences import pending_grammar

pytestmark = pytest.mark.stepping
INTEGER = {"type": "integer"}
PERSON = {
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
}
SOURCES: list[tuple[str, Any]] = [
    ("json_schema", PERSON),
    (
        "json_schema",
        {"type": "array", "items": {"enum": ["left", "right", "up", "down"]}, "uniqueItems": True, "minItems": 2},
    ),
    (
        "json_schema",
        {"properties": {f"p{i}": INTEGER for i in range(12)}, "minProperties": 5, "additionalProperties": False},
    ),
    ("regex", "([ab]{1,9}-){2,20}!"),
    ("regex", "The answer is (yes|no), and that is (certain|likely)\\."),
    ("ebnf", 'root ::= root "+" root | "(" root ")" | [0-9]'),
]
ALL_LATE, FEW_LATE = -1, 20_000


def compiled(engine: Engine, kind: str, source: Any) -> grammars.Grammar:
    return getattr(grammars, f"compile_{kind}")(source, engine.vocabulary)


def texts(engine: Engine, **options: Any) -> list[tuple[Any, ...]]:
    """Of all sources at once, each streamed."""
    pieces: dict[int, list[str]] = {}
    futures = []
    for index, (kind, source) in enumerate(SOURCES * 2):
        sequence = engine.open()
        sequence.extend(engine.tokenizer.encode(f"Text {index}:", special_prefix=True))
        params = SamplingParams(**({"max_tokens": 40, "seed": index, "temperature": 1.3} | options))
        heard = pieces.setdefault(index, [])
        futures.append(
            sequence.generate(
                params, compiled(engine, kind, source), lambda chunk, heard=heard: heard.append(chunk.text)
            )
        )
    found = [future.result(120) for future in futures]
    assert all("".join(pieces[i]) == made.text for i, made in enumerate(found))
    return [(made.text, made.token_ids, made.finish_reason, made.truncated) for made in found]


@pytest.mark.parametrize("jump", [True, False])
@pytest.mark.parametrize("options", [{"close_at_limit": True}, {"max_tokens": 9}, {"logprobs": True}], ids=str)
def test_the_text_is_the_same(open_engine, monkeypatch, jump, options):
    found, late = [], []
    for work in (UNLIMITED, ALL_LATE, FEW_LATE):
        monkeypatch.setattr(engine_core, "STEP_WORK", work)
        engine = open_engine(jump_forward=jump)
        if work == UNLIMITED:
            engine._core._meter.hasty = False
        found.append(texts(engine, **options))
        late.append(engine.stats().late_masks)
    assert found[0] == found[1] == found[2]
    assert late[0] == 0 and late[1] > late[2] > 0


def test_it_is_the_same_with_drafts_and_where_pages_are_scarce(open_engine, monkeypatch):
    expected = texts(open_engine(run_ahead=False))
    monkeypatch.setattr(engine_core, "STEP_WORK", ALL_LATE)
    drafting = open_engine(run_ahead=False, speculation="auto")
    assert texts(drafting) == texts(drafting) == expected
    crowded = open_engine(kv_tokens=80, max_running=9)
    for _ in range(40):  # who waits for how long is a race
        assert texts(crowded) == expected
        if crowded.stats().preemptions:
            break
    assert crowded.stats().preemptions and crowded.stats().late_masks


class Slow(grammars.Grammar):
    """A grammar whose masks wait until somebody opens a gate."""

    def __init__(self, grammar: grammars.Grammar, gate: threading.Event) -> None:
        self.__dict__.update(grammar.__dict__)
        core, gated = self._automaton.core, gate

        class Gated(type(core)):
            def mask(self, *args):
                gated.wait(60)
                return super().mask(*args)

        core.__class__ = Gated


def began(engine: Engine, grammar: grammars.Grammar | None, **options: Any) -> Any:
    sequence = engine.open()
    sequence.extend(engine.tokenizer.encode("One:", special_prefix=True))
    return sequence, sequence.generate(SamplingParams(**({"max_tokens": 12, "seed": 1} | options)), grammar)


def test_the_others_go_on(open_engine, monkeypatch):
    monkeypatch.setattr(engine_core, "STEP_WORK", ALL_LATE)
    engine, gate = open_engine(), threading.Event()
    _, slow = began(engine, Slow(compiled(engine, "regex", "[0-9]{5,9}"), gate))
    for _ in range(3):
        began(engine, None)[1].result(30)
    assert not slow.done()
    gate.set()
    assert slow.result(30).text.isdigit()


def test_who_waits_can_be_given_up_and_the_engine_closed(open_engine, monkeypatch):
    monkeypatch.setattr(engine_core, "STEP_WORK", ALL_LATE)
    engine, gate = open_engine(), threading.Event()
    sequence, slow = began(engine, Slow(compiled(engine, "regex", "[0-9]{5,9}"), gate))
    time.sleep(0.05)
    sequence.abort()
    with pytest.raises(RequestAborted):
        slow.result(10)
    gate.set()
    assert began(engine, compiled(engine, "regex", "[ab]{5}"))[1].result(10).text
    began(engine, Slow(compiled(engine, "regex", "[0-9]{7,9}"), threading.Event()))
    engine.close()


def test_work_of_a_text_is_bounded(open_engine, monkeypatch):
    monkeypatch.setattr(engine_core, "STEP_WORK", ALL_LATE)
    monkeypatch.setattr(pending_grammar, "MOST_WORK", 200_000)
    engine = open_engine(jump_forward=False)
    hostile = compiled(engine, "regex", "([ab]{1,400}c?){100,900}")
    with pytest.raises(GrammarLimitError, match="steps of work in the middle of this text"):
        began(engine, hostile, max_tokens=200)[1].result(60)
    assert began(engine, None)[1].result(30).completion_tokens
