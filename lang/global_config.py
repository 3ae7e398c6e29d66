"""What holds for the whole process: a few switches, and which backend is the default one."""

from __future__ import annotations

from typing import Any

from sgl.runtime.text.chat_templates.quoted_text import quoted

from .errors import UnknownOptionError, nearest


class GlobalConfig:
    """Settings of the process. Assign to the attributes.

    verbosity: 2 or more prints the final text of each run.
    default_backend: the backend set with `set_default_backend`, or None.
    skip_special_tokens_in_output: leave special tokens out of generated text.

    spaces_between_special_tokens_in_out: passed on to servers by RuntimeEndpoint; other backends ignore it.

    `enable_precache_with_tracing` and `enable_parallel_encoding` are accepted for old programs and have no effect: the
    engine shares prefixes automatically.
    """

    _DEFAULTS: dict[str, Any] = {  # noqa: RUF012
        "verbosity": 0,
        "default_backend": None,
        "skip_special_tokens_in_output": True,
        "spaces_between_special_tokens_in_out": True,
        "enable_precache_with_tracing": True,
        "enable_parallel_encoding": True,
    }

    verbosity: int
    default_backend: Any
    skip_special_tokens_in_output: bool
    spaces_between_special_tokens_in_out: bool
    enable_precache_with_tracing: bool
    enable_parallel_encoding: bool

    def __init__(self) -> None:
        for name, value in self._DEFAULTS.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._DEFAULTS:
            raise UnknownOptionError(f"global_config has no option {name!r}; {nearest(name, self._DEFAULTS)}")
        object.__setattr__(self, name, value)


global_config = GlobalConfig()


def own_words(text: str) -> str:
    """A text that the model wrote, on its way back into a prompt: a special token in it was spelled, unless they are
    shown.
    """
    return quoted(text, own=True) if global_config.skip_special_tokens_in_output else text
