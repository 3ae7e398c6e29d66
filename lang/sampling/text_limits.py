"""Texts that end at a limit (max_tokens, the context): which of them are cut, and the error that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .constraint_match import matches_constraint
from .options import CONSTRAINTS, DEFAULTS, SamplingOptions

if TYPE_CHECKING:
    from sgl.runtime.errors import TruncatedError

Meta = Mapping[str, Any]

# What the APIs call it: OpenAI and SGLang, Anthropic, Google.
_REASONS = frozenset({"length", "max_tokens", "model_context_window_exceeded", "max_output_tokens", "MAX_TOKENS"})


def is_constrained(options: SamplingOptions) -> bool:
    """True for a gen whose text must have a certain form."""
    return any(getattr(options, name) is not None for name in CONSTRAINTS)


def with_limit(options: SamplingOptions, typed: bool) -> SamplingOptions:
    """The options of a gen. Without max_tokens, free text has the default, and a text with a type or a constraint
    may run to its end, which only the context bounds: None. Programs with `dtype` were written for the default."""
    if options.max_new_tokens is not None or typed or (is_constrained(options) and options.dtype is None):
        return options
    return replace(options, max_new_tokens=DEFAULTS.max_new_tokens)


def at_limit(meta: Meta) -> bool:
    """Whether a limit ended the text."""
    reason = meta.get("finish_reason")
    return (reason.get("type") if isinstance(reason, Mapping) else reason) in _REASONS


def is_cut(text: str, options: SamplingOptions, meta: Meta) -> bool:
    """Whether a limit ended the text and more could have followed.

    Free text can always continue; for the others `truncated` of the meta_info says it, else their grammar.
    """
    if meta.get("truncated") is not None and is_constrained(options):
        return bool(meta["truncated"])
    return at_limit(meta) and not is_complete(text, options)


def is_complete(text: str, options: SamplingOptions) -> bool:
    """Whether the text fulfils its constraint and nothing could follow it."""
    matcher = matches_constraint(text, options)
    return matcher is not None and bool(matcher.finished)


def truncated_error(text: str, options: SamplingOptions, meta: Meta) -> TruncatedError:
    """What a text that was cut raises: the limit, the text so far, and what to do."""
    from sgl.runtime.errors import TruncatedError

    reached, action = _limit(options, meta)
    return TruncatedError.after(
        text, reached, f"{action}, or set close_at_limit=True where the backend can close a text"
    )


def _limit(options: SamplingOptions, meta: Meta) -> tuple[str, str]:
    """The limit that a text has reached, and what to do about it."""
    reason, most = meta.get("finish_reason"), options.max_new_tokens
    most = meta.get("max_tokens") if most is None else most  # what the backend sent, as its API wants a number
    length = reason.get("length") if isinstance(reason, Mapping) else None
    if most is not None and not (length and length < most):
        return f"max_tokens={most} was reached", "allow more tokens"
    length_text = f", after {length} tokens," if length else ""
    return (
        f"the context was full or the server's own limit was reached{length_text}",
        "shorten the prompt or give max_tokens=",
    )
