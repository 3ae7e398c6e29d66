"""Which model speaks which dialect."""

from __future__ import annotations

import difflib
import logging
import re
from functools import lru_cache

from sgl.runtime.errors import ConfigError

from .dialect import Dialect
from .mistral import Mistral
from .nano import Nano
from .pythonic import Pythonic
from .reasoning import MARKS, Marks, reasoning_of
from .tagged import Hermes, Llama

log = logging.getLogger("sgl.runtime")

_HERMES = Hermes()
DIALECTS: dict[str, Dialect] = {
    "nano": Nano(), "hermes": _HERMES, "qwen": _HERMES, "llama": Llama(), "mistral": Mistral(), "pythonic": Pythonic(),
}  # fmt: skip
_MODELS = (
    (r"sgl[-_]?nano|runtime/nano", "nano"),
    (r"llama[-_. ]?4|llama[-_. ]?3[-_.]2.*\b[13]b|pythonic", "pythonic"),
    (r"llama[-_. ]?3", "llama"),
    (r"mi[sx]tral|ministral|magistral|devstral", "mistral"),
    (r"qwen|qwq|hermes|smollm", "hermes"),
)
_TEMPLATES = (
    (r"<tool_call>", "hermes"),
    (r"\[TOOL_CALLS\]|\[AVAILABLE_TOOLS\]", "mistral"),
    (r"<\|header_start\|>", "pythonic"),
    (r"<\|start_header_id\|>", "llama"),
)


def known_name(model: str) -> str | None:
    """The dialect of a model by its name or path; None for one that the table does not have."""
    return next((name for pattern, name in _MODELS if re.search(pattern, model, re.IGNORECASE)), None)


def dialect_named(name: str) -> Dialect:
    """Raises ConfigError for a name that is not known."""
    if name not in DIALECTS:
        raise ConfigError(f"there is no tool format {name!r}; {_nearest(name, DIALECTS)}")
    return DIALECTS[name]


def reasoning_named(name: str) -> Marks:
    """The marks of a family's thoughts. Raises ConfigError for a name that is not known."""
    if name not in MARKS:
        raise ConfigError(f"there is no reasoning format {name!r}; {_nearest(name, MARKS)}")
    return MARKS[name]


@lru_cache(maxsize=256)
def dialect_for(model_name: str, template: str | None) -> Dialect:
    """The dialect of a model by its name, else by its chat template (Jinja source), else hermes with a note.

    The marks of its thoughts are those that the template knows; without a template they go by the name.
    """
    name = known_name(model_name) or next((to for mark, to in _TEMPLATES if re.search(mark, template or "")), None)
    if name is None:
        log.warning(
            "the format in which %s calls tools is not known: hermes is used (<tool_call>{...}</tool_call>); choose another "
            "of %s", model_name, ", ".join(DIALECTS),
        )  # fmt: skip
    return dialect_named(name or "hermes").thinking(reasoning_of(model_name, template))


def _nearest(name: str, known: dict[str, Dialect] | dict[str, Marks]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
