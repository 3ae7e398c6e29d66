"""The text of a state, as the pieces that its nodes add: some known at once, some still being made."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from types import EllipsisType
from typing import Any

from sgl.runtime.text.chat_templates.quoted_text import QuotedText, joined

from ..backend import Generated, Media
from ..chat import ConversationTurn, ConversationTurns
from ..concurrency.replay_feed import ReplayFeed
from ..errors import BadValueError, ProgramError
from ..global_config import own_words
from ..media.media_urls import as_url
from ..media.message_content import content_of
from ..nodes.ir import SglExpr
from ..places.source_location import SourceLocation
from ..sampling.choices import ChoicesDecision
from .detached_backend import set_slots, slots_of
from .token_usage import Usage

Split = Callable[[str], tuple[str, str]]  # a text into thought and answer


class LiteralText:
    """Text that is known from the start. `media` is the picture or film that it stands for.

    passage: the text as it was said, with what is quoted of it.
    """

    __slots__ = ("media", "passage", "text", "where")

    error: ProgramError | None = None
    usage: Usage | None = None

    def __init__(self, text: str, where: SourceLocation | None = None, media: Media | None = None) -> None:
        self.text = str(text)
        self.passage = text
        self.where = where
        self.media = media

    def wait(self) -> None:
        """Return at once."""

    @property
    def done(self) -> bool:
        return True

    async def settled(self) -> None:
        """Return at once."""

    def chunks(self) -> Iterator[Generated]:
        yield Generated(self.text)

    async def chunks_async(self) -> AsyncIterator[Generated]:
        yield Generated(self.text)


class PendingText:
    """Text that an operation of the backend makes. It is done once its feed of chunks is closed.

    With `samples` > 1 several operations run side by side: the value is the list of all their texts, the
    text is that of the first one. `adapter` computes it, ...: that of its branch. `split` divides a finished text into
    thought and answer: only the answer is
    value and text then. `submitted` and `finished` are times of time.perf_counter() in seconds.
    """

    __slots__ = (
        "_feed",
        "_results",
        "_streamed",
        "adapter",
        "claimed",
        "demand",
        "error",
        "finished",
        "first",
        "meta_info",
        "node",
        "split",
        "submitted",
        "text",
        "thought",
        "token_ids",
        "usage",
        "value",
        "where",
    )

    def __init__(
        self, node: SglExpr, where: SourceLocation | None, samples: int = 1, split: Split | None = None
    ) -> None:
        self.node = node
        self.where = where
        self.split = split
        self.adapter: str | EllipsisType | None = ...
        self._feed: ReplayFeed[Generated] = ReplayFeed()
        self.text = ""
        self.value: Any = None
        self.thought: Any = ""
        self.token_ids: list[int] | None = None
        self.meta_info: Any = None
        self.usage: Usage | None = None
        self.error: ProgramError | None = None
        self.submitted = time.perf_counter()
        self.finished: float | None = None
        self.first: float | None = None  # when the first text of a streamed gen came
        self.claimed = False  # somebody is settling it
        self.demand: Callable[[], None] | None = None  # notifies the backend that a reader waits now
        self._results: list[Generated | None] = [None] * samples
        self._streamed = False

    def __getstate__(self) -> dict[str, Any]:
        return slots_of(self, "demand")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.adapter = ...  # of those that were written down before states could change theirs
        set_slots(self, state)

    @property
    def done(self) -> bool:
        return self._feed.closed

    def wait(self) -> None:
        if self.demand is not None and not self.done:
            self.demand()
        self._feed.wait_closed()

    def when_done(self, call: Callable[[], object]) -> None:
        """Have `call` called once it is done, on any thread: at once if it is."""
        if self.demand is not None and not self.done:
            self.demand()
        self._feed.when_closed(call)

    async def settled(self) -> None:
        """Wait without blocking the event loop. Raises nothing."""
        if self.demand is not None and not self.done:
            self.demand()
        await self._feed.closing()

    def chunks(self) -> Iterator[Generated]:
        """The parts of the text as they come. Raises ProgramError where they end with a failure."""
        yield from self._feed

    async def chunks_async(self) -> AsyncIterator[Generated]:
        async for chunk in self._feed:
            yield chunk

    def get(self) -> Any:
        """The value, once it is there. Raises ProgramError, chained to the original error."""
        self.wait()
        if self.error is not None:
            raise again(self.error)
        return self.value

    def chunk(self, chunk: Generated) -> None:
        """A part of the text has arrived. Parts after the end are too late."""
        if self.done:
            return
        self._streamed = True
        if self.first is None and chunk.text:
            self.first = time.perf_counter()
        self._feed.put(chunk)

    def deliver(self, index: int, result: Generated) -> bool:
        """The result of sample `index`; True when it was the last one that was missing."""
        self._results[index] = result
        return all(result is not None for result in self._results)

    @property
    def results(self) -> list[Generated]:
        """What the samples that are done have given, in order."""
        return [result for result in self._results if result is not None]

    @property
    def streamed(self) -> str:
        """What has come of the text so far, as far as it was streamed."""
        return "".join(chunk.text for chunk in self._feed.items)

    def is_last(self, index: int) -> bool:
        return index == len(self._results) - 1

    def finish(self) -> None:
        self.finished = time.perf_counter()
        results = [result for result in self._results if result is not None]
        parts = [self.split(result.text) if self.split else ("", result.text) for result in results]
        thoughts, answers = [thought for thought, _ in parts], [answer for _, answer in parts]
        self.text, self.token_ids = answers[0], results[0].token_ids
        if len(results) == 1:
            self.value, self.thought, self.meta_info = answers[0], thoughts[0], results[0].meta_info
        else:
            self.value, self.thought = answers, thoughts
            self.meta_info = [result.meta_info for result in results]
        self.usage = self._count(results)
        if not self._streamed:
            self._feed.put(Generated(self.text, results[0].meta_info, self.token_ids))
        self._feed.close()

    def _count(self, results: list[Generated]) -> Usage:
        seconds = (self.finished or self.submitted) - self.submitted
        usages = [Usage.of(result.meta_info, seconds, self.finished) for result in results]
        return usages[0] if len(usages) == 1 else Usage.total(usages)

    def fail(self, error: ProgramError) -> None:
        self.finished = time.perf_counter()
        self.error = error
        self._feed.close(error)


Piece = LiteralText | PendingText


class ThoughtText:
    """The value of `x_reasoning_content`: what the gen `x` thought before its answer."""

    __slots__ = ("_piece",)

    node: SglExpr | None = None

    def __init__(self, piece: PendingText) -> None:
        self._piece = piece

    @property
    def done(self) -> bool:
        return self._piece.done

    @property
    def error(self) -> ProgramError | None:
        return self._piece.error

    @property
    def meta_info(self) -> Any:
        return self._piece.meta_info

    @property
    def value(self) -> Any:
        return self._piece.thought

    def get(self) -> Any:
        self._piece.get()
        return self._piece.thought

    def wait(self) -> None:
        self._piece.wait()

    def when_done(self, call: Callable[[], object]) -> None:
        self._piece.when_done(call)

    async def settled(self) -> None:
        await self._piece.settled()

    def chunks(self) -> Iterator[Generated]:
        yield Generated(str(self.get()))

    async def chunks_async(self) -> AsyncIterator[Generated]:
        await self.settled()
        yield Generated(str(self.get()))


class TextSpan:
    """The value of a variable scope: the text of its pieces."""

    __slots__ = ("_pieces",)

    meta_info: Any = None
    node: SglExpr | None = None

    def __init__(self, pieces: list[Piece]) -> None:
        self._pieces = pieces

    @property
    def done(self) -> bool:
        return all(piece.done for piece in self._pieces)

    @property
    def error(self) -> ProgramError | None:
        return next((piece.error for piece in self._pieces if piece.error), None)

    @property
    def value(self) -> str:
        return self.get()

    def get(self) -> str:
        return text_of(self._pieces, strict=True)

    def wait(self) -> None:
        for piece in self._pieces:
            piece.wait()

    def when_done(self, call: Callable[[], object]) -> None:
        pending = next((piece for piece in self._pieces if isinstance(piece, PendingText) and not piece.done), None)
        if pending is None:
            call()
        else:
            pending.when_done(lambda: self.when_done(call))

    async def settled(self) -> None:
        for piece in self._pieces:
            await piece.settled()

    def chunks(self) -> Iterator[Generated]:
        for piece in self._pieces:
            yield from piece.chunks()

    async def chunks_async(self) -> AsyncIterator[Generated]:
        for piece in self._pieces:
            async for chunk in piece.chunks_async():
                yield chunk


def text_of(pieces: list[Piece], strict: bool = False, wait: bool = True) -> str:
    """The text up to the first piece that failed (`strict`: raise its error) or, not waiting, is not done."""
    texts: list[str] = []
    for piece in pieces:
        if wait:
            piece.wait()
        elif not piece.done:
            break
        if piece.error is not None:
            if strict:
                raise again(piece.error)
            break
        texts.append(piece.text)
    return "".join(texts)


def passage_of(pieces: list[Piece]) -> QuotedText:
    """The text of pieces that are done, with what is quoted of it; what the model wrote is."""
    return joined(piece.passage if isinstance(piece, LiteralText) else own_words(piece.text) for piece in pieces)


def last_user_turn(conversation: ConversationTurns, pieces: list[Piece]) -> str | None:
    """The text of the last finished turn of the user; None where there is none.

    Raises BadValueError where a model has still to write a part of it.
    """
    turns = [turn for turn in conversation.finished if turn.role == "user"]
    if not turns:
        return None
    content = pieces[turns[-1].start : turns[-1].end]
    if not all(piece.done for piece in content):
        raise BadValueError(
            "values are to be copied from a user turn of which the model has still to write a part; give "
            "gen(..., copied_from=text)"
        )
    return text_of(content, wait=False)


def messages_of(turns: list[ConversationTurn], pieces: list[Piece]) -> list[dict[str, Any]]:
    """Finished turns as {"role", "content"}: text without leading white space, content parts with pictures."""
    messages = []
    for turn in list(turns):
        parts: list[str | Media] = []
        for piece in pieces[turn.start : turn.end]:
            if isinstance(piece, LiteralText) and piece.media:
                parts.append(replace(piece.media, source=as_url(piece.media)))
            elif not piece.done or piece.error:
                break
            else:
                parts.append(piece.text)
        messages.append({"role": turn.role, "content": content_of(parts)})
    return messages


async def with_text(chunks: AsyncIterator[Generated]) -> AsyncIterator[Generated]:
    """The chunks that have text; meta_info of chunks without text joins that of the chunk before."""
    held: Generated | None = None
    async for chunk in chunks:
        if held is None:
            held = chunk
        elif chunk.text and held.text:
            yield held
            held = chunk
        else:
            held = Generated(held.text + chunk.text, _merged(held.meta_info, chunk.meta_info))
    if held is not None:
        yield held


def _merged(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """The later meta_info, with the earlier one's rows of tokens in front."""
    rows = ("output_token_logprobs", "output_top_logprobs")
    both = {key: [*earlier.get(key, []), *later.get(key, [])] for key in rows if key in earlier or key in later}
    return {**earlier, **later, **both}


def again(error: ProgramError, where: SourceLocation | None = None) -> ProgramError:
    """A fresh exception for each reader, chained to the same original error; `where` is its new place."""
    fresh = type(error)(error.message, where or error.where)
    fresh.__cause__ = error.__cause__
    return fresh


def result_of(future: Future[Any]) -> Generated:
    """What an operation gave, as text and meta_info. Raises what it raised."""
    result = future.result()
    if isinstance(result, ChoicesDecision):
        return Generated(str(result.decision), result.meta_info or {})
    return result
