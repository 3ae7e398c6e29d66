"""API speculation on completion models: a call brings more than a gen wants; what follows is served from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...backend import Generated, GenRequest, Media, OnChunk, Stream
from ...errors import BadValueError, RemoteStatusError
from ...global_config import own_words
from ...sampling.options import CONSTRAINTS, DEFAULTS, SamplingOptions
from ..apis.api_response import Entry, first_stop
from ..remote.remote_stream import RemoteStream
from .turn_speculation import TurnSpeculation

if TYPE_CHECKING:
    from ..remote.base import RemoteBackend

# Options of which the one call and each gen that is served from it may have their own.
_FREE = {"max_new_tokens": None, "stop": None, "timeout": None, "return_logprob": None, "n": None}
_ALONE = (*CONSTRAINTS, "stop_regex", "stop_token_ids", "min_new_tokens", "keep_stop", "close_at_limit")


def speculating_stream(backend: RemoteBackend, num_api_spec_tokens: int, chat: bool) -> Stream:
    """A stream whose calls ask for `num_api_spec_tokens` tokens, if a gen wants fewer."""
    if num_api_spec_tokens < 1:
        raise BadValueError(f"num_api_spec_tokens is {num_api_spec_tokens}; give 1 or more")
    stream = (TurnSpeculation if chat else TextSpeculation)(backend)
    stream.spec_tokens = num_api_spec_tokens
    return stream


@dataclass(frozen=True)
class SpeculatedText:
    """Text that was generated and not used yet, as tokens, each with its row of log-probabilities if known.

    `ended`: the model ended its text after it; else the call's limit cut it. `options`: what it was made
    with. `counted`: False if the server named no tokens, and `tokens` are pieces of about their length.
    """

    tokens: tuple[str, ...]
    rows: tuple[Entry, ...]
    ended: bool
    options: SamplingOptions
    counted: bool = True

    @property
    def text(self) -> str:
        return "".join(self.tokens)

    def without(self, head: int) -> SpeculatedText:
        """What is left after so many characters."""
        index = 0
        while index < len(self.tokens) and head >= len(self.tokens[index]):
            head -= len(self.tokens[index])
            index += 1
        left = self.tokens[index:]
        tokens = (left[0][head:], *left[1:]) if head and left else left
        return replace(self, tokens=tokens, rows=self.rows[index:])


@dataclass(frozen=True)
class ServedText:
    """What a gen gets of a text: so many characters, that many tokens, and why it ends there."""

    length: int
    tokens: int
    reason: dict[str, Any]


def serve(ahead: SpeculatedText, stops: tuple[str, ...], limit: int) -> ServedText | None:
    """What a separate gen would make of the same text; None if the text ends before that is decided."""
    within = "".join(ahead.tokens[:limit])
    if cut := first_stop(within, stops):
        return ServedText(cut[0], _tokens_in(ahead, cut[0]), {"type": "stop", "matched": cut[1]})
    if len(ahead.tokens) >= limit:
        return ServedText(len(within), limit, {"type": "length", "length": limit})
    if ahead.ended:
        return ServedText(len(within), len(ahead.tokens), {"type": "stop", "matched": None})
    return None


class TextSpeculation(RemoteStream):
    """Keeps what a call brought beyond the gen's end. A literal uses up the head that it is equal to.

    A literal that differs, another sampling option, a picture or a fork drops what is kept. Gens with a
    constraint make their own calls. Nothing is streamed.
    """

    spec_tokens = 0
    _ahead: SpeculatedText | None = None

    def write(self, text: str) -> None:
        super().write(text)
        if self._ahead is not None:
            same = self._ahead.text.startswith(text)
            self._ahead = self._ahead.without(len(text)) if same else None

    def begin(self, role: str, prefix: str) -> None:
        super().begin(role, prefix)
        self._follow(prefix)

    def end(self, role: str, suffix: str) -> None:
        super().end(role, suffix)
        self._follow(suffix)

    def insert(self, media: Media, token: str) -> None:
        self._ahead = None
        super().insert(media, token)

    def inherit(self, parent: RemoteStream) -> None:
        super().inherit(parent)
        self.spec_tokens = parent.spec_tokens  # type: ignore[attr-defined]

    async def produce(self, request: GenRequest, on_chunk: OnChunk | None, deadline: float | None) -> Generated:
        options = request.options
        if options.max_new_tokens == 0:
            return await super().produce(request, on_chunk, deadline)
        if not may_speculate(options):
            self._ahead = None
            return await super().produce(request, on_chunk, deadline)
        return self._serve(request, {}) or await self._ask(request, deadline)

    async def _ask(self, request: GenRequest, deadline: float | None) -> Generated:
        wanted = request.options.max_new_tokens or 0
        options = replace(request.options, max_new_tokens=max(wanted, self.spec_tokens), stop=(), return_logprob=True)
        whole = await self._produce_named(GenRequest(options, (), request.name, request.where), deadline)
        self._ahead = speculated_text_of(whole, request.options)
        bill = {name: whole.meta_info.get(name, 0) for name in ("prompt_tokens", "cached_tokens", "e2e_latency")}
        generated = self._serve(request, bill)
        if generated is None:  # the server gave less than it was asked for, and says that it goes on
            self._ahead = None
            return await super().produce(request, None, deadline)
        return generated

    async def _produce_named(self, request: GenRequest, deadline: float | None) -> Generated:
        """An answer with its tokens; without them, if the server does not name them."""
        if getattr(self.backend, "names_tokens", False):
            try:
                return await super().produce(request, None, deadline)
            except RemoteStatusError as error:
                if error.status != 400:
                    raise
        unnamed = replace(request, options=replace(request.options, return_logprob=False, top_logprobs_num=None))
        generated = await super().produce(unnamed, None, deadline)
        self.backend.names_tokens = False  # type: ignore[attr-defined]
        return generated

    def _serve(self, request: GenRequest, bill: dict[str, Any]) -> Generated | None:
        """The result of a gen, from what is kept."""
        ahead, options = self._ahead, request.options
        if ahead is None or ahead.options != free_of(options) or not (ahead.tokens or bill):
            return None
        served = serve(ahead, request.stops, options.max_new_tokens or 0)
        if served is None:
            return None
        self._ahead = ahead.without(served.length)
        meta = {
            "finish_reason": served.reason,
            "prompt_tokens": 0,
            "cached_tokens": 0,
            "completion_tokens": served.tokens,
            "e2e_latency": 0.0,
            **bill,
            "speculated": not bill,
        }
        if options.return_logprob:
            meta["output_token_logprobs"] = list(ahead.rows[: served.tokens])
        return Generated(ahead.text[: served.length], meta)

    def _write_generated(self, request: GenRequest, generated: Generated) -> None:
        kept = request.keep(generated.text) if request.keep else generated.text
        if kept != generated.text:
            self._ahead = None
        super().write(own_words(kept))

    def _follow(self, mark: str) -> None:
        if self._ahead is not None:
            same = self._ahead.text.startswith(mark)
            self._ahead = self._ahead.without(len(mark)) if same else None


def may_speculate(options: SamplingOptions) -> bool:
    """False for a gen whose text an unconstrained, longer answer would not begin with."""
    if options.max_new_tokens is None:
        return False
    defaults = {name: getattr(DEFAULTS, name) for name in _ALONE}
    return all(getattr(options, name) in (None, default) for name, default in defaults.items())


def free_of(options: SamplingOptions) -> SamplingOptions:
    """The options that must be the same for gens to share one call."""
    return replace(options, **_FREE)


def speculated_text_of(whole: Generated, options: SamplingOptions) -> SpeculatedText:
    """The answer to a call, cut into its tokens; into pieces of equal length where the server names none."""
    rows = whole.meta_info.get("output_token_logprobs") or []
    tokens = tuple(row[2] or "" for row in rows)
    ended = (whole.meta_info.get("finish_reason") or {}).get("type") != "length"
    if tokens and "".join(tokens) == whole.text:
        return SpeculatedText(tokens, tuple(rows), ended, free_of(options))
    count = whole.meta_info.get("completion_tokens") or len(whole.text)
    return SpeculatedText(_pieces(whole.text, count), (), ended, free_of(options), counted=False)


def _pieces(text: str, count: int) -> tuple[str, ...]:
    """The text in `count` pieces of about the same length (fewer, if it has fewer characters)."""
    ends = [round(len(text) * index / count) for index in range(count + 1)] if count else []
    return tuple(text[start:end] for start, end in pairwise(ends) if end > start)


def _tokens_in(ahead: SpeculatedText, length: int) -> int:
    """How many tokens begin within so many characters."""
    count = at = 0
    while at < length:
        at += len(ahead.tokens[count])
        count += 1
    return count
