"""Every exception of the runtime, one tree. Messages carry the offending value and the next action."""


class RuntimeFailure(Exception):
    """Base class of all errors that the runtime raises on purpose."""


class ConfigError(RuntimeFailure, ValueError):
    """An option, a sampling parameter or a model directory that cannot be used as given."""


def brief(error: object, most: int = 300) -> str:
    """What a library says of a file, which may quote all of it."""
    text = str(error)
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 4 :]}"


def check_text(text: str, what: str = "the text") -> None:
    """Raise ConfigError for what is no str, and for halves of characters (lone surrogates), which no tokenizer takes."""
    if not isinstance(text, str):
        raise ConfigError(f"{what} is {text!r:.60}; give a str")
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        half = f"half a character, {text[error.start]!r}, at {error.start}"
        raise ConfigError(f"{what} is no Unicode text: it has {half}; leave it out") from None


class CheckpointError(ConfigError):
    """A checkpoint whose files, tensors or shapes do not fit its configuration."""


class ContextLengthError(RuntimeFailure, ValueError):
    """A prompt that is longer than the model's context or than the whole KV pool."""


class OutOfPages(RuntimeFailure):
    """One request alone needs more KV pages than the pool has, or pins would hold more than half of them."""


class EngineClosed(RuntimeFailure):
    """The engine was closed (or failed) while, or before, the request ran."""

    expected = True  # its owner asked for it: nobody needs to be warned


class EngineFailed(EngineClosed):
    """The engine's loop ended by an error of its own, which is the `__cause__`; nothing is computed any more."""

    expected = False


class EngineDied(RuntimeFailure):
    """The process that the engine ran in died while the request ran, or since its sequence was opened."""


class RequestAborted(RuntimeFailure):
    """The request was cancelled by its owner."""

    expected = True


class DeadlineExceeded(RuntimeFailure):
    """The request was not done when its time was over."""

    expected = True


class NoTokenAllowed(RuntimeFailure):
    """What a request asks for leaves no token that may come next: its grammar, logit_bias and min_tokens together."""


class TruncatedError(RuntimeFailure):
    """A constrained generation reached the token limit before its grammar could end (opt-in)."""
