"""Which model speaks which dialect."""

from __future__ import annotations

import difflib
import logging
import re
from functools import lru_cache

from sgl.runtime.errors import ConfigError

from .dialect import Dialect
from .formats import FRAMED
from .gemma import GEMMA
from .harmony import HARMONY
from .mistral import Mistral, MistralArgs
from .nano import Nano
from .reasoning import MARKS, Marks, reasoning_of
from .tagged import Hermes, Llama

log = logging.getLogger("sgl.runtime")

_HERMES = Hermes()
DIALECTS: dict[str, Dialect] = {
    "nano": Nano(), "hermes": _HERMES, "qwen": _HERMES, "llama": Llama(), "mistral": Mistral(),
    **{dialect.name: dialect for dialect in (*FRAMED, MistralArgs(), GEMMA, HARMONY)},
}  # fmt: skip
_MODELS = (  # the first that is found in the name
    (r"sgl[-_]?nano|runtime/nano", "nano"),
    (r"gpt[-_]?oss", "harmony"),
    (r"deepseek[-_.]?v3[-_.]?2(?!.*exp)", "deepseek-v32"),
    (r"deepseek[-_.]?v3[-_.]?[12]", "deepseek-v31"),
    (r"deepseek[-_.]?(v3|r1)(?!.*distill)", "deepseek-v3"),
    (r"glm[-_.]?(4[-_.]?[7-9]|5)", "glm47"),
    (r"glm[-_.]?4[-_.]?[56]", "glm45"),
    (r"kimi[-_.]?k2", "kimi-k2"),
    (r"minimax[-_.]?m2", "minimax"),
    (r"seed[-_.]?oss", "seed-oss"),
    (r"step[-_.]?3[-_.]?[5-9]|qwen3.*coder|qwen3\.[5-9]|nemotron[-_.]?3", "qwen3-coder"),
    (r"step[-_.]?3", "step3"),
    (r"nemotron[-_.]?nano.*v2|nemotron.*super.*v1[-_.]5", "nemotron"),
    (r"gemma[-_.]?4", "gemma4"),
    (r"gemma[-_.]?3", "gemma3"),
    (r"command[-_.]?(r7b|a)\b|c4ai[-_.]command", "cohere"),
    (r"hunyuan.*a13b", "hunyuan"),
    (r"\bhy[-_.]?3|hunyuan[-_.]?3", "hunyuan-v3"),
    (r"lfm2", "lfm2"),
    (r"phi[-_.]?4[-_.]?mini", "phi4-mini"),
    (r"granite[-_.]?3", "granite"),
    (r"ernie|granite", "hermes"),
    (r"llama[-_. ]?4|llama[-_. ]?3[-_.]2.*\b[13]b|pythonic", "pythonic"),
    (r"llama[-_. ]?3", "llama"),
    (r"mistral[-_.]?small[-_.]?3[-_.]2|devstral|magistral|ministral[-_.]?3|mistral[-_.]?large[-_.]?3|mistral.*(?:250[6-9]|251)", "mistral-args"),
    (r"mi[sx]tral|ministral", "mistral"),
    (r"qwen|qwq|hermes|smollm", "hermes"),
)
_TEMPLATES = (  # the first whose mark is in the template
    (r"<\|tool_call>", "gemma4"),
    (r"to=functions\.|<\|channel\|>", "harmony"),
    (r"｜DSML｜|dsml_token", "deepseek-v32"),
    (r"<｜tool▁sep｜>'? ?\+? ?[^<]*```json|```json[^`]*```<｜tool▁call▁end｜>", "deepseek-v3"),
    (r"<｜tool▁calls▁begin｜>", "deepseek-v31"),
    (r"<\|tool_calls_section_begin\|>", "kimi-k2"),
    (r"minimax:tool_call", "minimax"),
    (r"<seed:tool_call>", "seed-oss"),
    (r"steptml:invoke|<｜tool_calls_begin｜>", "step3"),
    (r"<cofl:tool_call", "cohere-xml"),
    (r"<\|START_ACTION\|>", "cohere"),
    (r"<tool_sep>", "hunyuan-v3"),
    (r"</arg_key>\n<arg_value>|\{arg-key-1\}</arg_key>\s", "glm45"),
    (r"</?arg_key>", "glm47"),
    (r"<tool_call>(?:\\n|\s)*<function=", "qwen3-coder"),
    (r"<TOOLCALL>", "nemotron"),
    (r"<tool_calls>\[", "hunyuan"),
    (r"<\|tool_call_start\|>\[[\"'] ?\+ ?\(?ns_tc|<\|tool_call_start\|>.*\{\\?\"name", "lfm2-json"),
    (r"<\|tool_call_start\|>|<\|tool_list_start\|>", "lfm2"),
    (r"<\|/tool_call\|>", "phi4-mini"),
    (r"<\|tool_call\|>", "granite"),
    (r"<tool_call>", "hermes"),
    (r"\[ARGS\]", "mistral-args"),
    (r"\[TOOL_CALLS\]|\[AVAILABLE_TOOLS\]", "mistral"),
    (r"<\|header_start\|>", "pythonic"),
    (r"<\|start_header_id\|>", "llama"),
    (r"<start_of_turn>", "gemma3"),
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
    return dialect_named(name or "hermes").thinking(reasoning_of(model_name, template)).templated(template)


def _nearest(name: str, known: dict[str, Dialect] | dict[str, Marks]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
