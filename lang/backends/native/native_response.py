"""What /generate answers: one text, or a stream of events that becomes chunks."""

from __future__ import annotations

from typing import Any

from ...backend import Generated, GenRequest, OnChunk
from ...errors import RemoteProtocolError, RemoteStatusError
from ..remote.retry_policy import is_retryable

Json = dict[str, Any]

_LOGPROB_LISTS = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")


def answer_of(found: Any) -> Json:
    """The one answer to a request for one text. Raises RemoteProtocolError, RemoteStatusError."""
    answer = found[0] if isinstance(found, list) and len(found) == 1 else found
    if not isinstance(answer, dict) or not isinstance(answer.get("text"), str):
        raise RemoteProtocolError(f"the server answered /generate without a text: {str(found)[:200]}")
    check_finish(answer)
    return answer


def check_finish(answer: Json) -> None:
    """Raise what the server says if it gave up on the request."""
    reason = answer.get("meta_info", {}).get("finish_reason")
    if isinstance(reason, dict) and reason.get("type") == "abort":
        status = reason.get("status_code")
        raise RemoteStatusError(
            f"the server gave up: {reason.get('message') or 'no message'}",
            status=status,
            retryable=status is not None and is_retryable(status),
        )


def generated_of(answer: Json) -> Generated:
    return Generated(answer["text"], answer.get("meta_info", {}), answer.get("output_ids"))


class NativeResponseStream:
    """Takes the events of one stream and emits what is new in each.

    Servers send the whole text so far with each event, or (`incremental`) only what is new. The end of the
    text is kept back while it may still change: half a character, or the beginning of a stop string, which
    the server cuts off once it is whole.
    """

    def __init__(self, request: GenRequest, emit: OnChunk, incremental: bool = False) -> None:
        self._emit = emit
        self._incremental = incremental
        self._stops = () if request.options.keep_stop else request.stops
        self._text = ""
        self._emitted = 0
        self._ids: list[int] = []
        self._rows: dict[str, list[Any]] = {}
        self._meta: Json = {}
        self.complete = False

    def take(self, event: Json) -> None:
        """One event; {} is the end mark."""
        if not event:
            self.complete = self.complete or ("finish_reason" not in self._meta and bool(self._text))
            return
        answer = answer_of(event)
        self._meta = answer.get("meta_info", {})
        self.complete = self._meta.get("finish_reason") is not None
        self._follow(answer["text"])
        self._take_tokens(answer.get("output_ids") or [])
        self._send(self._take_rows())

    def result(self) -> Generated:
        """The whole, once the stream is `complete`."""
        if self._emitted < len(self._text):
            self._send({})
        rows = {name: row for name, row in self._rows.items() if name in self._meta}
        return Generated(self._text, {**self._meta, **rows}, self._ids or None)

    def _follow(self, text: str) -> None:
        if self._incremental:
            self._text += text
            return
        shown = self._text[: self._emitted]
        if not text.startswith(shown):
            raise RemoteProtocolError(f"the server's stream first said {shown!r}, then {text!r}")
        self._text = text

    def _send(self, rows: Json) -> None:
        end = len(self._text) if self.complete else settled_length(self._text, self._stops)
        fresh = self._text[self._emitted : end]
        self._emitted = max(end, self._emitted)
        if fresh or rows:
            self._emit(Generated(fresh, {**self._meta, **rows}))

    def _take_tokens(self, ids: list[int]) -> None:
        self._ids += _news(ids, len(self._ids), self._meta.get("completion_tokens"))

    def _take_rows(self) -> Json:
        """The log-probabilities that are new in this event; the lists may be cumulative or not."""
        total = self._meta.get("output_token_logprobs_length", self._meta.get("completion_tokens"))
        fresh: Json = {}
        for name in _LOGPROB_LISTS:
            if self._meta.get(name) is not None:
                kept = self._rows.setdefault(name, [])
                fresh[name] = _news(self._meta[name], len(kept), total)
                kept += fresh[name]
        return fresh


def _news(items: list[Any], known: int, total: int | None) -> list[Any]:
    """The last of the items: as many as are missing to `total` (without a total: the list is cumulative)."""
    missing = (len(items) if total is None else total) - known
    return items[-missing:] if missing > 0 else []


def settled_length(text: str, stops: tuple[str, ...]) -> int:
    """How much of an unfinished text is final."""
    end = len(text.rstrip("�"))
    longest = max(map(len, stops), default=0)
    for start in range(max(0, end - longest + 1), end):
        if any(stop.startswith(text[start:end]) for stop in stops):
            return start
    return end
