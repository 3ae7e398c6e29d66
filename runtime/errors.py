"""Every exception of the runtime, one tree. Messages carry the offending value and the next action."""


class RuntimeFailure(Exception):
    """Base class of all errors that the runtime raises on purpose."""


class ConfigError(RuntimeFailure, ValueError):
    """An option, a sampling parameter or a model directory that cannot be used as given."""


class CheckpointError(ConfigError):
    """A checkpoint whose files, tensors or shapes do not fit its configuration."""


class ContextLengthError(RuntimeFailure, ValueError):
    """A prompt that is longer than the model's context or than the whole KV pool."""


class OutOfPages(RuntimeFailure):
    """One request alone needs more KV pages than the pool has, or pins would hold more than half of them."""


class EngineClosed(RuntimeFailure):
    """The engine was closed (or failed) while, or before, the request ran."""

    expected = True  # its owner asked for it: nobody needs to be warned


class EngineDied(RuntimeFailure):
    """The process that the engine ran in died while the request ran, or since its sequence was opened."""


class RequestAborted(RuntimeFailure):
    """The request was cancelled by its owner."""

    expected = True


class DeadlineExceeded(RuntimeFailure):
    """The request was not done when its time was over."""

    expected = True


class TruncatedError(RuntimeFailure):
    """A constrained generation reached the token limit before its grammar could end (opt-in)."""
