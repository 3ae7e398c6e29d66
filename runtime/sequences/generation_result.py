"""The end of a generation: a text that goes on after its tokens, and log-probabilities that fit its tokens."""

from __future__ import annotations

from .generation import TokenLogprobs
from .stop_checker import GenerationFinish


def completed(finish: GenerationFinish, pieces: list[bytes], end: bytes) -> GenerationFinish:
    """With a text that goes on after the last whole character of the tokens' bytes."""
    kept = next(n for n in range(len(pieces), -1, -1) if _is_whole(b"".join(pieces[:n])))
    remainder = (b"".join(pieces[kept:]) + end).decode()
    return GenerationFinish(finish.reason, b"".join(pieces[:kept]).decode() + remainder, kept, remainder)


def aligned(logprobs: TokenLogprobs | None, tokens: list[int]) -> TokenLogprobs | None:
    """One entry a kept token; tokens that were encoded anew have no probability of their own.

    A text without tokens keeps the entry of the token that ended it.
    """
    if logprobs is None or not tokens:
        return logprobs and logprobs[:1]
    kept = [entry for entry, token in zip(logprobs, tokens, strict=False) if entry[1] == token]
    return kept + [(float("nan"), token) for token in tokens[len(kept) :]]


def _is_whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
