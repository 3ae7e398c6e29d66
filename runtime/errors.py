"""Every exception of the runtime, one tree. Messages carry the offending value and the next action.

An error in work for many sequences carries those whose work it was: see `note_sequence`.
"""

from __future__ import annotations

from typing import Any


class RuntimeFailure(Exception):
    """Base class of all errors of the runtime."""


class ConfigError(RuntimeFailure, ValueError):
    """An option, a sampling parameter or a model directory cannot be used."""


def brief(error: object, most: int = 300) -> str:
    """What a library says of a file, which may quote all of it."""
    text = str(error)
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 4 :]}"


def check_text(text: str, what: str = "the text") -> None:
    """Raise ConfigError for a value that is not a str, and for unpaired surrogates, which no tokenizer accepts."""
    if not isinstance(text, str):
        raise ConfigError(f"{what} is {text!r:.60}; give a str")
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        half = f"an unpaired surrogate, {text[error.start]!r}, at position {error.start}"
        raise ConfigError(f"{what} is not valid Unicode: it has {half}; leave it out") from None


NOTED = "_noted_sequences"  # the attribute of an error with its sequences, the innermost first


def note_sequence(error: BaseException, seq: object) -> None:
    """Note on an error, on its way out, that it came up in the work of `seq`. Work that goes well notes nothing.

    Who handles the error takes the notes: an error must not hold a sequence, whose operations may hold the error.
    """
    error.__dict__.setdefault(NOTED, []).append(seq)  # some classes allow no other way to set an attribute


def take_noted_sequences(error: BaseException) -> list[Any]:
    """The sequences that were noted on an error, the innermost first; the error carries them no longer."""
    found: list[Any] = error.__dict__.pop(NOTED, [])
    return found


class CheckpointError(ConfigError):
    """The files, tensors or shapes of a checkpoint do not fit its configuration."""


class ContextLengthError(RuntimeFailure, ValueError):
    """A prompt is longer than the model's context or than the whole KV pool."""


class OutOfPages(RuntimeFailure):
    """One request needs more KV pages than the pool has, or pins would hold more than half of the pool."""


class EngineClosed(RuntimeFailure):
    """The engine was closed (or failed) before the request was done."""

    expected = True  # its owner requested it: no warning


class EngineFailed(EngineClosed):
    """The engine's loop failed with the error in `__cause__`; the engine computes nothing any more."""

    expected = False


class EngineDied(RuntimeFailure):
    """The engine's process died while the request ran, or after its sequence was opened."""


class RequestAborted(RuntimeFailure):
    """The request was cancelled by its owner."""

    expected = True


class DeadlineExceeded(RuntimeFailure):
    """The request exceeded its time limit."""

    expected = True


class NoTokenAllowed(RuntimeFailure):
    """A request's grammar, logit_bias and min_tokens together allow no next token."""


SHOWN = 200  # characters of each end of a text


class TruncatedError(RuntimeFailure):
    """A text reached a limit before it was complete: max_tokens, the context, or what a server allows.

    The message names the limit and its value and says what to do. `text` is the text so far; a long one is quoted in
    part.
    """

    text: str = ""

    @classmethod
    def after(cls, text: str, reached: str, action: str) -> TruncatedError:
        """reached: the limit, as a sentence without its end; action: what to do, as the words after a semicolon."""
        shown = (
            repr(text) if len(text) <= 2 * SHOWN else f"{text[:SHOWN]!r} ... {text[-SHOWN:]!r} ({len(text)} characters)"
        )
        error = cls(f"{reached} before the text was complete, after {shown}; {action}")
        error.text = text
        return error
