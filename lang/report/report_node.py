"""One piece of a state's text as data of the page."""

from __future__ import annotations

from typing import Any

from ..backend import Backend, Generated
from ..errors import ProgramError, RunStopped
from ..interpreter.state_transcript import LiteralText, PendingText, Piece
from ..interpreter.token_usage import computing_seconds
from ..nodes.ir import SglGen, SglSelect
from ..sampling.options import DEFAULTS, NAMES, OTHER_NAMES, SamplingOptions
from .report_media import media_data
from .report_pages import ReportPages
from .report_tokens import filled, rounded, token_data
from .value_text import error_data, shown

COUNTS = {
    "prompt": "prompt_tokens",
    "cached": "cached_tokens",
    "forced": "forced_tokens",
    "drafted": "drafted_tokens",
    "accepted": "accepted_tokens",
    "generated": "completion_tokens",
}

CUT = "the limit came before the grammar was at its end"
CLOSED = "the limit came before the grammar was at its end; then the grammar closed the text"


def literal_data(piece: LiteralText, pages: ReportPages) -> dict[str, Any]:
    data: dict[str, Any] = {"text": piece.text, "at": pages.sources.place(piece.where)}
    if piece.media is not None:
        data["media"] = media_data(piece.media)
    return data


def pending_data(
    piece: PendingText, before: PendingText | None, backend: Backend, pages: ReportPages
) -> dict[str, Any]:
    """An operation. Times are in seconds since the beginning of the run.

    `ready` is when the text before it was there: it cannot have begun earlier. None: that is not there (yet).
    """
    ready = piece.submitted if before is None else before.finished if before.error is None else None
    data: dict[str, Any] = {
        "kind": "select" if isinstance(piece.node, SglSelect) else "gen",
        "name": getattr(piece.node, "name", None),
        "at": pages.sources.place(piece.where),
        "submitted": pages.time(piece.submitted),
        "ready": pages.time(ready and max(ready, piece.submitted)),
        "finished": pages.time(piece.finished),
        "state": _state(piece, pages.failures),
        "options": _options(piece.node) | ({} if piece.adapter is ... else {"adapter": shown(piece.adapter)}),
    }
    if (began := _began(piece, data["ready"], data["finished"])) is not None:
        data["began"] = began
    if piece.first is not None:
        data["first"] = pages.time(piece.first)
    if piece.error is not None:
        data["error"] = error_data(piece.error, pages.sources.place)
    return data | _made(piece, backend, pages)


def _began(piece: PendingText, ready: float | None, finished: float | None) -> float | None:
    """When it got a place in the batch; None if its backend does not report it. The first of several samples."""
    usage = piece.usage
    if ready is None or finished is None or usage is None or usage.computing_seconds is None:
        return None
    longest = max(computing_seconds(result.meta_info, usage.seconds) or 0.0 for result in piece.results)
    return round(max(ready, finished - longest), 6)


def _state(piece: PendingText, failures: set[int]) -> str:
    """running, done, failed, stopped, or skipped: given up because of a failure that another piece shows."""
    if not piece.done:
        return "running"
    if piece.error is None:
        return "done"
    failure = id(piece.error.__cause__ or piece.error)
    if failure in failures:
        return "skipped"
    failures.add(failure)
    return "stopped" if isinstance(piece.error, RunStopped) else "failed"


def _options(node: Any) -> dict[str, str]:
    """What the node itself says, where that is not the default."""
    if isinstance(node, SglGen):
        return different(node.sampling_params)
    if isinstance(node, SglSelect):
        method = {"method": type(node.choices_method).__name__}
        return method | ({"temperature": shown(node.temperature)} if node.temperature else {})
    return {}


def different(options: SamplingOptions) -> dict[str, str]:
    """The options that are not the default ones, as text."""
    values = {name: getattr(options, name) for name in NAMES}
    names = {own: documented for documented, own in OTHER_NAMES.items()}
    return {names.get(n, n): shown(v) for n, v in values.items() if v is not None and v != getattr(DEFAULTS, n)}


def _made(piece: PendingText, backend: Backend, pages: ReportPages) -> dict[str, Any]:
    if not piece.done or piece.error is not None:
        return {"text": piece.streamed, **_choices(piece, [])}
    results = piece.results
    values = piece.value if isinstance(piece.value, list) else [piece.value]
    thoughts = piece.thought if isinstance(piece.thought, list) else [piece.thought]
    samples = [
        _sample(result, value, thought, backend, pages)
        for result, value, thought in zip(results, values, thoughts, strict=True)
    ]
    data: dict[str, Any] = {"text": piece.text, "samples": samples}
    if piece.usage is not None:
        data["counts"] = counts(results)
    return data | _choices(piece, _scores(results[0].meta_info, backend, pages))


def _sample(result: Generated, text: str, thought: str, backend: Backend, pages: ReportPages) -> dict[str, Any]:
    meta = result.meta_info
    data: dict[str, Any] = {"text": text}
    if thought:
        data["thought"] = thought
    if finish := meta.get("finish_reason"):
        data["finish"] = _finish(finish, backend)
    if meta.get("truncated"):
        data["truncated"] = CLOSED if meta.get("closed") else CUT
    if "choice_probs" not in meta and "normalized_prompt_logprobs" not in meta:
        data |= token_data(result, backend, pages.vocabulary)
    if text != result.text:  # split into thought and answer: the tokens are those of both
        data["spans"] = None
    return data


def _finish(reason: Any, backend: Backend) -> str:
    if not isinstance(reason, dict):
        return str(reason)
    matched = reason.get("matched")
    if isinstance(matched, int):  # a token
        texts = backend.token_texts([matched]) or [""]
        return f"{reason.get('type')}: the token {texts[0] or matched}"
    return str(reason.get("type")) + ("" if matched is None else f": {matched!r}")


def counts(results: list[Generated]) -> dict[str, int]:
    """Tokens by what became of them, added up over the samples; what no sample reports is left out."""
    totals = {
        name: sum(result.meta_info.get(key) or 0 for result in results)
        for name, key in COUNTS.items()
        if any(result.meta_info.get(key) is not None for result in results)
    }
    if "prompt" in totals:
        totals["computed"] = sum(_computed(result.meta_info) for result in results)
    return totals


def _computed(meta: dict[str, Any]) -> int:
    return max(0, (meta.get("prompt_tokens") or 0) - (meta.get("cached_tokens") or 0))


def _choices(piece: PendingText, scores: list[dict[str, Any]]) -> dict[str, Any]:
    """The choices of a select with what is known of each."""
    if not isinstance(piece.node, SglSelect):
        return {}
    known = scores or [{} for _ in piece.node.choices]
    return {"choices": [{"text": text} | score for text, score in zip(piece.node.choices, known, strict=False)]}


def _scores(meta: dict[str, Any], backend: Backend, pages: ReportPages) -> list[dict[str, Any]]:
    columns = {
        "prob": meta.get("choice_probs"),
        "mean": [rounded(value) for value in meta.get("normalized_prompt_logprobs") or ()],
        "tokens": [
            [[pages.vocabulary.number(token, text), rounded(value)] for value, token, text in filled(row, backend)]
            for row in meta.get("input_token_logprobs") or ()
        ],
    }
    size = max((len(column) for column in columns.values() if column), default=0)
    rows: list[dict[str, Any]] = [{} for _ in range(size)]
    for name, column in columns.items():
        for row, value in zip(rows, column or (), strict=False):
            row[name] = value
    return rows


def piece_data(piece: Piece, before: PendingText | None, backend: Backend, pages: ReportPages) -> dict[str, Any]:
    if isinstance(piece, PendingText):
        return pending_data(piece, before, backend, pages)
    return literal_data(piece, pages)


def failure_of(pieces: list[Piece]) -> ProgramError | None:
    return next((piece.error for piece in pieces if piece.error is not None), None)
