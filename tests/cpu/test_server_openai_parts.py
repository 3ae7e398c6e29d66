"""The parts under OpenAI's routes: rows of log-probabilities, streams of events."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from sgl.runtime import Engine
from sgl.runtime.sequences.generation import Chunk, Generation
from sgl.runtime.server.http.sse_responses import first_of, merged, together
from sgl.runtime.server.protocols.api_adapter import ApiAdapter, answer, lines
from sgl.runtime.server.protocols.openai_common.openai_logprobs import (
    UNLIKELY,
    LogprobRow,
    LogprobRowStream,
    TextLogprobs,
    chat_logprobs,
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as opened:
        yield opened


# --- log-probabilities, one by one -----------------------------------------------------------------------


def test_numbers_that_json_lacks_become_words_of_openai(engine: Engine) -> None:
    rows = [LogprobRow(300, -math.inf, [(-math.inf, 301)]), LogprobRow(301, math.nan, []), LogprobRow(302, None)]
    text = TextLogprobs(engine.tokenizer, 1).take(rows)
    assert text["token_logprobs"] == [UNLIKELY, None, None]
    chat = chat_logprobs(engine.tokenizer, rows)
    assert [row["logprob"] for row in chat["content"]] == [UNLIKELY] * 3
    json.dumps([text, chat], allow_nan=False)


def test_bytes_that_are_no_text_have_names_and_one_place(engine: Engine) -> None:
    whole = "☃".encode()
    ids = [engine.tokenizer.token_bytes.index(bytes([byte])) for byte in whole]
    rows = [LogprobRow(token, -1.0, [(-1.0, token)]) for token in (*ids, 300)]
    found = TextLogprobs(engine.tokenizer, 1, offset=10).take(rows)
    assert found["tokens"][:3] == ["bytes:\\xe2", "bytes:\\x98", "bytes:\\x83"]
    assert found["text_offset"] == [10, 10, 10, 11]
    assert [len(best) for best in found["top_logprobs"]] == [1, 1, 1, 1]
    chat = chat_logprobs(engine.tokenizer, rows[:3])["content"]
    assert bytes(byte for row in chat for byte in row["bytes"]) == whole


def test_rows_wait_for_their_text(engine: Engine) -> None:
    ids = engine.tokenizer.encode("one two three").tolist()
    pairs = [(-float(i), token) for i, token in enumerate(ids)]
    stream = LogprobRowStream(engine.tokenizer)
    text = engine.tokenizer.decode(ids[:1])
    early = stream.take(Chunk(text, ids[:2], pairs[:2]))
    assert [row.token for row in early] == ids[:1]
    done = Generation("", ids[:2], {"type": "stop", "matched": "x"}, 1, 2, 0, 0, pairs[:2], None, 0.0)
    late = stream.take(Chunk("", [], [], True, done))
    assert [row.token for row in late] == ids[1:2]


# --- streams ---------------------------------------------------------------------------------------------


class Source:
    """An async generator that knows whether it was closed."""

    def __init__(self, *items: Any) -> None:
        self.items, self.closed = items, False

    async def run(self) -> AsyncGenerator[Any, None]:
        try:
            for item in self.items:
                await asyncio.sleep(0)
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.closed = True


class Panic(BaseException):
    """As libraries in Rust raise it."""


class Numbers(ApiAdapter[int]):
    """An API whose pieces are numbers: the events hold them, the answer their sum."""

    def __init__(self, *items: Any, streamed: bool = True) -> None:
        self.source, self.streamed, self.sum, self.gone = Source(*items), streamed, 0, False

    async def parse(self) -> AsyncGenerator[tuple[int, int], None]:
        return self.source.run()

    def event(self, index: int, piece: int) -> list[dict[str, Any]]:
        self.sum += piece
        return [{"number": piece}] * index

    async def begin(self) -> list[dict[str, Any]]:
        return [{"begun": True}]

    async def end(self) -> list[dict[str, Any]]:
        return [{"sum": self.sum}]

    async def whole(self) -> dict[str, Any]:
        return {"sum": self.sum}

    def left(self) -> None:
        self.gone = True


def sent(adapter: Numbers) -> list[Any]:
    """The events of a stream, and its end mark."""

    async def run() -> list[bytes]:
        pieces = adapter.source.run()
        return [item async for item in lines(adapter, await anext(pieces), pieces)]

    found = [line.removeprefix(b"data: ").removesuffix(b"\n\n") for line in asyncio.run(run())]
    return [line if line == b"[DONE]" else json.loads(line) for line in found]


def test_a_stream_and_a_whole_answer_have_the_same_pieces() -> None:
    pieces = [(1, 1), (0, 5), (2, 2)]
    numbers = [{"number": 1}, {"number": 2}, {"number": 2}]
    assert sent(Numbers(*pieces)) == [{"begun": True}, *numbers, {"sum": 8}, b"[DONE]"]
    adapter = Numbers(*pieces, streamed=False)
    assert json.loads(bytes(asyncio.run(answer(adapter)).body)) == {"sum": 8} and adapter.source.closed


@pytest.mark.parametrize(("error", "words"), [(TimeoutError("too late"), "too late"), (Panic(), "internal error")])
def test_an_error_in_the_middle_is_the_last_event_before_the_end(error: BaseException, words: str) -> None:
    adapter = Numbers((1, 1), error, (1, 2))
    begun, first, last, done = sent(adapter)
    assert begun == {"begun": True} and first == {"number": 1} and done == b"[DONE]"
    assert words in last["error"]["message"] and adapter.source.closed and not adapter.gone


@pytest.mark.parametrize("streamed", [True, False])
def test_an_error_before_the_first_piece_is_raised(streamed: bool) -> None:
    adapter = Numbers(TimeoutError("too late"), (1, 1), streamed=streamed)
    with pytest.raises(TimeoutError):
        asyncio.run(answer(adapter))
    assert adapter.source.closed


@pytest.mark.parametrize(("taken", "gone"), [(1, True), (2, True), (3, False)])
def test_an_api_learns_that_its_client_left_unless_all_was_made(taken: int, gone: bool) -> None:
    async def run() -> None:
        pieces = adapter.source.run()
        stream = lines(adapter, await anext(pieces), pieces)
        for _ in range(taken):
            await anext(stream)
        await stream.aclose()

    adapter = Numbers((1, 1))
    asyncio.run(run())
    assert adapter.gone == gone and adapter.source.closed


def test_items_that_fail_at_once_are_closed() -> None:
    async def run() -> None:
        source = Source(KeyError("x"))
        with pytest.raises(KeyError):
            await first_of(source.run())
        assert source.closed and await first_of(Source(1, 2).run()) == 1

    asyncio.run(run())


@pytest.mark.parametrize("stop_at", [0, 3, None])
def test_merged_streams_are_closed_when_the_merge_is(stop_at: int | None) -> None:
    async def run() -> None:
        sources = [Source(1, 2, 3), Source(4, 5, 6)]
        stream, found = merged([source.run() for source in sources]), []
        async for item in stream:
            found.append(item)
            if stop_at is not None and len(found) > stop_at:
                break
        await stream.aclose()
        assert all(source.closed for source in sources)
        if stop_at is None:
            assert sorted(found) == [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6)]

    asyncio.run(run())


@pytest.mark.parametrize("kind", [KeyError, Panic])
def test_the_first_error_ends_the_merge_and_the_calls(kind: type[BaseException]) -> None:
    cancelled = []

    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def fails() -> None:
        raise KeyError("x")

    async def run() -> None:
        sources = [Source(1, 2, 3), Source(kind("x"))]
        with pytest.raises(kind):
            [item async for item in merged([source.run() for source in sources])]
        assert all(source.closed for source in sources)
        with pytest.raises(KeyError):
            await together([endless(), fails()])

    asyncio.run(run())
    assert cancelled == [True]
