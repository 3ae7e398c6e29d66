"""select over the native protocol: all choices are scored from the same token on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ...backend import SelectRequest
from ...errors import RemoteProtocolError, UnsupportedByBackendError
from ...sampling.choices import ChoicesDecision, TokenLogprob
from ..remote.remote_prompt import RemotePrompt
from ..select_decision import Rows, conclude_select
from .generate_request import prompt_body
from .native_response import check_finish

Post = Callable[[dict[str, Any]], Awaitable[Any]]

WINDOWS = (8, 128)  # tokens before the end of the prompt where the texts may begin to differ; then all of it


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """The last tokens of one text: `entries` begin with token number `first`."""

    first: int
    entries: list[TokenLogprob]
    output: list[TokenLogprob]

    @classmethod
    def of(cls, answer: dict[str, Any]) -> ScoredTokens:
        meta = answer["meta_info"]
        entries = [list(entry) for entry in meta.get("input_token_logprobs") or []]
        return cls(meta["prompt_tokens"] - len(entries), entries, meta.get("output_token_logprobs") or [])

    def token(self, position: int) -> int | None:
        index = position - self.first
        return self.entries[index][1] if index < len(self.entries) else None

    def since(self, position: int) -> list[TokenLogprob]:
        return self.entries[position - self.first :]


async def choose(post: Post, prompt: RemotePrompt, request: SelectRequest, with_head: bool = False) -> ChoicesDecision:
    """Decide by the scores that the server gives. `with_head`: show the last token before the choices in the rows too.

    Scoring begins where the tokens of the prompt and of all prompts with a choice stop being the same, so
    that choices which melt into the end of the prompt are measured as the others are.
    """
    if not prompt.text:
        raise UnsupportedByBackendError(
            "select with nothing before it: the server gives no log-probability for a first token; put text before it"
        )
    ledger = _SelectUsage(post)
    texts = [prompt.text, *(prompt.text + choice for choice in request.scored)]
    scored, start = await _score(ledger.post, prompt, texts)
    rows = [item.since(start) for item in scored[1:]]
    if _unscored(rows):
        raise UnsupportedByBackendError(
            f"select: the first characters of a choice merge with the first token of the prompt {prompt.text!r}, for "
            "which the server gives no log-probability; put more text before it"
        )
    priors = await _priors(ledger.post, rows) if request.method.requires_unconditional_logprobs else None
    decision = conclude_select(request, rows, [item.output for item in scored[1:]], priors)
    meta = {**(decision.meta_info or {}), **ledger.totals}
    if with_head and start > max(item.first for item in scored) and meta.get("input_token_logprobs") == rows:
        meta["input_token_logprobs"] = [item.since(start - 1) for item in scored[1:]]
    return ChoicesDecision(decision.decision, meta)


class _SelectUsage:
    """Adds up the tokens of all calls of one select."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self.totals = {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0}

    async def post(self, body: dict[str, Any]) -> Any:
        answers = await self._post(body)
        for answer in answers if isinstance(answers, list) else [answers]:
            meta = _meta_of(answer)
            for name in ("prompt_tokens", "cached_tokens"):
                self.totals[name] += meta.get(name) or 0
        return answers


async def _score(post: Post, prompt: RemotePrompt, texts: list[str]) -> tuple[list[ScoredTokens], int]:
    """The scores of the last tokens of each text, and the number of the first token that is scored."""
    whole = await post({**prompt_body(prompt), "sampling_params": _NOTHING_NEW})
    length = _batch(whole, 1)[0]["meta_info"]["prompt_tokens"]
    images = prompt_body(prompt, copies=len(texts))
    for window in (*WINDOWS, length):
        first = max(length - window, 0)
        answers = await post({**images, "text": texts, **_scores_from(first)})
        scored = [ScoredTokens.of(answer) for answer in _batch(answers, len(texts))]
        start = _first_difference(scored)
        if _is_certain(scored, start):
            return scored, start
    raise RemoteProtocolError(
        f"the server omitted the first tokens of a prompt of {length}, although all log-probabilities were requested"
    )


def _first_difference(scored: list[ScoredTokens]) -> int:
    """The number of the first token, among those that all rows have, that is not the same in all."""
    position = max(item.first for item in scored)
    while (token := scored[0].token(position)) is not None:
        if any(item.token(position) != token for item in scored):
            break
        position += 1
    return position


def _is_certain(scored: list[ScoredTokens], start: int) -> bool:
    """False if the texts may differ before the tokens that are known, or a score is missing."""
    if start == 0:
        return True
    return start > max(item.first for item in scored) and not _unscored([r.since(start) for r in scored[1:]])


def _unscored(rows: Rows) -> bool:
    return any(bool(row) and row[0][0] is None for row in rows)


async def _priors(post: Post, rows: Rows) -> Rows:
    """Log-probabilities of the choices' tokens without the prompt; the first one has none."""
    longer = [row for row in rows if len(row) > 1]
    answers: list[Any] = []
    if longer:
        ids = [[entry[1] for entry in row] for row in longer]
        answers = _batch(await post({"input_ids": ids, **_scores_from(0)}), len(ids))
    found = iter(answers)
    return [_prior(row, ScoredTokens.of(next(found)).entries if len(row) > 1 else row) for row in rows]


def _prior(row: list[TokenLogprob], alone: list[TokenLogprob]) -> list[TokenLogprob]:
    if len(row) > 1 and len(alone) < len(row) - 1:
        raise RemoteProtocolError(f"the server scored {len(alone)} of {len(row)} tokens of a choice")
    return [[None, *row[0][1:]], *alone[len(alone) - len(row) + 1 :]] if row else []


def _scores_from(first: int) -> dict[str, Any]:
    return {
        "sampling_params": {**_NOTHING_NEW, "temperature": 0},
        "return_logprob": True,
        "return_text_in_logprobs": True,
        "logprob_start_len": first,
    }


def _batch(answers: Any, size: int) -> list[dict[str, Any]]:
    if isinstance(answers, dict) and size == 1:
        answers = [answers]
    if not isinstance(answers, list) or len(answers) != size:
        raise RemoteProtocolError(f"the server answered {size} texts with {str(answers)[:200]}")
    return answers


def _meta_of(answer: Any) -> dict[str, Any]:
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    if not isinstance(meta, dict) or not isinstance(meta.get("prompt_tokens"), int):
        raise RemoteProtocolError(f"the server answered without meta_info.prompt_tokens: {str(answer)[:200]}")
    check_finish(answer)
    return meta


_NOTHING_NEW = {"max_new_tokens": 0}
