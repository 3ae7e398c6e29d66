"""The result of a generation at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import TruncatedError
from .generation import Generation, TokenLogprobs
from .stop_checker import GenerationFinish

if TYPE_CHECKING:
    from .running_generation import RunningGeneration


def generation_result(
    decoding: RunningGeneration, finish: GenerationFinish, tokens: list[int], truncated: bool, closed: bool
) -> Generation | TruncatedError:
    """Of the text of `finish`, whose tokens these are.

    truncated: a limit came before the end of its grammar; closed: then the grammar completed it.
    """
    op = decoding.op
    if truncated and not closed and op.params.error_on_truncation:
        action = "allow more tokens" if decoding.limited else "shorten the prompt"
        return TruncatedError.after(
            finish.text, _limit(decoding), f"{action}, or set close_at_limit=True to have the text closed"
        )
    return Generation(
        text=finish.text,
        token_ids=tokens,
        finish_reason=finish.reason,
        prompt_tokens=decoding.prompt_tokens,
        completion_tokens=len(tokens),
        cached_tokens=min(op.cached or 0, decoding.prompt_tokens),
        forced_tokens=decoding.forced,
        logprobs=_aligned(decoding.logprobs, tokens),
        top_logprobs=None if decoding.top_logprobs is None else decoding.top_logprobs[: max(len(tokens), 1)],
        e2e_latency=op.elapsed,
        truncated=truncated,
        closed=closed,
        queue_seconds=op.queue_seconds,
        first_token_seconds=op.elapsed if decoding.first is None else decoding.first,
        drafted_tokens=decoding.drafted,
        accepted_tokens=decoding.accepted,
        reread_tokens=decoding.reread,
    )


def completed(finish: GenerationFinish, pieces: list[bytes], end: bytes) -> GenerationFinish:
    """With a text that goes on after the last whole character of the tokens' bytes."""
    kept = next(n for n in range(len(pieces), -1, -1) if _is_whole(b"".join(pieces[:n])))
    remainder = (b"".join(pieces[kept:]) + end).decode()
    return GenerationFinish(finish.reason, b"".join(pieces[:kept]).decode() + remainder, kept, remainder)


def _limit(decoding: RunningGeneration) -> str:
    if decoding.limited:
        return f"max_tokens={decoding.op.params.max_tokens} was reached"
    return f"the context of {decoding.life.context} tokens was full"


def _is_whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _aligned(logprobs: TokenLogprobs | None, tokens: list[int]) -> TokenLogprobs | None:
    """One entry a kept token; tokens that were encoded anew have no probability.

    A text without tokens keeps the entry of the token that ended it.
    """
    if logprobs is None or not tokens:
        return logprobs and logprobs[:1]
    kept = [entry for entry, token in zip(logprobs, tokens, strict=False) if entry[1] == token]
    return kept + [(float("nan"), token) for token in tokens[len(kept) :]]
