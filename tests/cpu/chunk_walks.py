"""What a sample may tell, at random and in random pieces, for tests of those who write it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from sgl.runtime.dialects import ArgumentsDelta, ContentDelta, ReasoningDelta, ToolCallEnd, ToolCallStart
from sgl.runtime.server.protocols.chat.chat_choice import ChoiceFinished, ContentChunk


def walk(seed: int) -> tuple[list[ContentChunk], list[ContentChunk]]:
    """The same once in whole pieces, once in random ones."""
    chance = random.Random(seed)
    whole = list(_whole(chance))
    return whole, [piece for told in whole for piece in _pieces(chance, told)]


def _whole(chance: random.Random) -> Iterator[ContentChunk]:
    calls = 0
    if chance.random() < 0.4:
        yield ContentChunk(ReasoningDelta(_text(chance)))
    for _ in range(chance.randrange(4)):
        if chance.random() < 0.5:
            yield ContentChunk(ContentDelta(("\n" if calls else "") + _text(chance)))
            continue
        text, complete = json.dumps({"a": _text(chance), "b": [1, {}]}), chance.random() < 0.8
        yield ContentChunk(ToolCallStart(calls, f"call_{calls}", chance.choice(["f", "g"])))
        yield ContentChunk(ArgumentsDelta(calls, text if complete else text[: chance.randrange(1, len(text))]))
        yield ContentChunk(ToolCallEnd(calls, complete))
        calls += 1
    yield ContentChunk(ChoiceFinished(chance.choice(["stop", "length", "tool_calls"])))


def _pieces(chance: random.Random, told: ContentChunk) -> Iterator[ContentChunk]:
    event = told.event
    if not isinstance(event, ContentDelta | ReasoningDelta | ArgumentsDelta):
        yield told
        return
    text = event.text
    while text:
        cut = chance.randrange(1, len(text) + 1)
        yield ContentChunk(
            ArgumentsDelta(event.index, text[:cut]) if isinstance(event, ArgumentsDelta) else type(event)(text[:cut])
        )
        text = text[cut:]


def _text(chance: random.Random) -> str:
    return "".join(chance.choice(["a", "ß", "\n", " ", '"', "🙂", "{"]) for _ in range(chance.randrange(1, 12))) + "."
