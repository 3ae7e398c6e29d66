"""From what an API sends, in pieces or at once, to the text of a generation and its meta_info."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any

from ...backend import Generated, GenRequest, OnChunk
from ...concurrency.unique_ids import fresh_id
from ...errors import RemoteError, RemoteProtocolError
from ...sampling.text_limits import is_complete, is_constrained, truncated_error

if TYPE_CHECKING:
    from ..openai.openai_constraints import OpenAIConstraint

Entry = list[Any]  # [log-probability or None, token id or None, text]


@dataclass
class CallTokenUsage:
    """Tokens of one call, as the server counts them; cached_tokens is None where it does not report them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where the text is to be cut, and by which stop: the one that is complete first."""
    found = [(at + len(stop), at, stop) for stop in stops if stop and (at := text.find(stop)) >= 0]
    return min(found)[1:] if found else None


class StopStringCutter:
    """Cuts a text that comes in pieces where a stop begins, and holds back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self.text = ""
        self.matched: str | None = None
        self._shown = 0

    def push(self, piece: str) -> str:
        """What of the text can be shown now."""
        if self.matched is not None:
            return ""
        before = max(0, len(self.text) - max(map(len, self._stops), default=0))
        self.text += piece
        if cut := first_stop(self.text[before:], self._stops):
            self.text, self.matched = self.text[: before + cut[0]], cut[1]
            return self.rest()
        return self._show(len(self.text) - self._held())

    def rest(self) -> str:
        """The text has ended: what was held back."""
        return self._show(len(self.text))

    def _show(self, until: int) -> str:
        shown, self._shown = self.text[self._shown : until], max(self._shown, until)
        return shown

    def _held(self) -> int:
        """The length of the longest end of the text that some stop begins with."""
        lengths = range(max(map(len, self._stops), default=1) - 1, 0, -1)
        ends = (n for n in lengths if n <= len(self.text))
        return next((n for n in ends if any(stop.startswith(self.text[-n:]) for stop in self._stops)), 0)


@dataclass
class ApiResponseCollector:
    """Collects one answer. `emit` gets what can be shown, unless the form changes the text when it is whole.

    `form` is what was asked for, `limit` the max_tokens that was sent.
    White space at the start that repeats `skip`, the end of the prompt, is not part of the text.
    The caller sets `finish` (why the answer ended) and `bill`, and `matched` where the server reports it.
    """

    request: GenRequest
    stops: Sequence[str]
    emit: OnChunk | None = None
    form: OpenAIConstraint | None = None
    limit: int | None = None
    skip: str = ""
    meta: dict[str, Any] = field(default_factory=dict)
    bill: CallTokenUsage = field(default_factory=CallTokenUsage)
    finish: str | None = None
    matched: str | None = None

    def __post_init__(self) -> None:
        self._began = time.perf_counter()
        self._cutter = StopStringCutter(self.stops)
        self._rows: list[Entry] = []
        self._tops: list[list[Entry]] = []
        self.meta.setdefault("id", fresh_id())

    def push(self, text: str, rows: Sequence[Entry] = (), tops: Sequence[list[Entry]] = ()) -> None:
        """A piece of the answer has come."""
        self._rows += rows
        self._tops += tops
        self._emit(self._cutter.push(self._without_skipped(text)), rows)

    def done(self) -> Generated:
        """The whole answer. Raises RemoteProtocolError if the server never said that it had ended."""
        if self.finish is None:
            raise RemoteProtocolError(
                f"the stream ended without a finish reason after {self._cutter.text!r}", retryable=True
            )
        self._emit(self._cutter.rest(), ())
        answer = self._cutter.text
        meta = self._whole_meta(self._reason(), answer)
        if self.finish == "content_filter" and is_constrained(self.request.options):
            raise RemoteError(f"the provider's content filter ended the answer after {answer!r}; change the prompt")
        if meta["truncated"]:
            return Generated(self._cut(answer, meta), meta)
        return Generated(self._formed(answer), meta)

    def _cut(self, answer: str, meta: dict[str, Any]) -> str:
        """The text of an answer that a limit cut. Raises TruncatedError where the gen minds, and where it has none."""
        options = self.request.options
        if options.error_on_truncation or (self.form is not None and self.form.closed):
            raise truncated_error(answer, options, meta)
        return self._shown(answer if self.form is None else self.form.opening + answer)

    def _formed(self, answer: str) -> str:
        """The text that the answer stands for. Raises RemoteProtocolError if it has not the form asked for."""
        if self.form is None:
            return answer
        try:
            if self.form.check is not None:
                self.form.check(answer)
            return answer if self.form.unwrap is None else self._shown(self.form.unwrap(answer))
        except ValueError as error:
            raise RemoteProtocolError(str(error)) from error

    def _shown(self, text: str) -> str:
        """The text, which has not been shown yet where the form changes it."""
        if self._changes and self.emit is not None and text:
            self.emit(Generated(text, self._chunk_meta(())))
        return text

    @property
    def _changes(self) -> bool:
        return self.form is not None and self.form.unwrap is not None

    def _without_skipped(self, text: str) -> str:
        if self.skip and text:
            kept = text.lstrip()
            self.skip = self.skip if not kept else ""
            return kept
        return text

    def _emit(self, text: str, rows: Sequence[Entry]) -> None:
        if self.emit is not None and not self._changes and text:
            self.emit(Generated(text, self._chunk_meta(rows)))

    def _reason(self) -> dict[str, Any]:
        if self._cutter.matched is not None:
            return {"type": "stop", "matched": self._cutter.matched}
        if self.finish == "length":
            return {"type": "length", "length": self.bill.completion_tokens}
        return {"type": self.finish, "matched": self.matched} if self.finish == "stop" else {"type": self.finish}

    def _chunk_meta(self, rows: Sequence[Entry]) -> dict[str, Any]:
        meta: dict[str, Any] = {"id": self.meta["id"], "finish_reason": None}
        if self.request.options.return_logprob:
            meta |= {"output_token_logprobs": list(rows), "output_token_logprobs_length": len(self._rows)}
        return meta

    def _is_cut(self, reason: dict[str, Any], answer: str) -> bool:
        """Whether a form was cut by a limit."""
        options = self.request.options
        if reason["type"] != "length" or not is_constrained(options):
            return False
        ended = None if self.form is None else self.form.ended
        return not (is_complete(answer, options) if ended is None else ended(answer))

    def _whole_meta(self, reason: dict[str, Any], answer: str) -> dict[str, Any]:
        meta = {
            **self.meta,
            "finish_reason": reason,
            "prompt_tokens": self.bill.prompt_tokens,
            "completion_tokens": self.bill.completion_tokens,
            "cached_tokens": self.bill.cached_tokens,
            "e2e_latency": time.perf_counter() - self._began,
            "truncated": self._is_cut(reason, answer),
        }
        if reason["type"] == "length" and self.limit is not None:
            meta["max_tokens"] = self.limit
        options = self.request.options
        if options.return_logprob:
            rows = self._rows[: self._kept_rows()]
            meta |= {"output_token_logprobs": rows, "output_token_logprobs_length": len(rows)}
        if options.return_logprob and options.top_logprobs_num:
            meta["output_top_logprobs"] = self._tops[: self._kept_rows()]
        return meta

    def _kept_rows(self) -> int:
        """How many tokens begin within the text, if it was cut here."""
        if self._cutter.matched is None:
            return len(self._rows)
        starts = accumulate((len(row[2] or "") for row in self._rows), initial=0)
        return sum(1 for _ in takewhile(lambda start: start < len(self._cutter.text), starts))


def nothing_generated() -> Generated:
    """What a gen of no tokens gives."""
    reason = {"type": "length", "length": 0}
    return Generated("", {"id": fresh_id(), "finish_reason": reason, "prompt_tokens": 0, "completion_tokens": 0})


def finished(writer: ApiResponseCollector) -> Generated:
    """The result of a call. Raises TruncatedError if a limit cut a form and the gen minds."""
    generated = writer.done()
    if writer.request.options.max_new_tokens == 0:  # one token was asked for, for the sake of its log-probabilities
        return Generated("", generated.meta_info)
    return generated
