"""Which model speaks which dialect."""

from __future__ import annotations

import copy
import difflib
import json
import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sgl.runtime.errors import ConfigError
from sgl.runtime.text.chat_templates.hf_chat_template import ChatTemplate

from .families.framed_tool_dialect_families import FRAMED
from .families.functionary_tool_dialect import FUNCTIONARY
from .families.gemma_tool_dialect import GEMMA
from .families.harmony_tool_dialect import HARMONY
from .families.minimax_m3_tool_dialect import MINIMAX_M3
from .families.mistral_tool_dialect import MistralArgsToolDialect, MistralToolDialect
from .families.nano_tool_dialect import NanoToolDialect
from .families.tagged_json_tool_dialects import HermesToolDialect, LlamaToolDialect
from .reasoning_marks import MARKS, ReasoningMarks, reasoning_of
from .rendered import MARKED, TemplateProbe, choose_dialect, opened, probe_template, reasoning_marks_of
from .rendered.response_template import response_template_dialect
from .tool_dialect import Dialect

log = logging.getLogger("sgl.runtime")

_HERMES = HermesToolDialect()
DIALECTS: dict[str, Dialect] = {
    "nano": NanoToolDialect(),
    "hermes": _HERMES,
    "qwen": _HERMES,
    "llama": LlamaToolDialect(),
    "mistral": MistralToolDialect(),
    **{
        dialect.name: dialect
        for dialect in (*FRAMED, MistralArgsToolDialect(), GEMMA, HARMONY, FUNCTIONARY, MINIMAX_M3)
    },
}
_CANDIDATES = [
    *(dialect for name, dialect in DIALECTS.items() if name not in ("nano", "qwen")),
    MistralArgsToolDialect(given_ids=True),
]
_WRITTEN = list(dict.fromkeys(marks._replace(open=False) for marks in MARKS.values()))
_MODELS = (  # the first that is found in the name
    (r"sgl[-_]?nano|runtime/nano", "nano"),
    (r"hermes|groq.*tool[-_.]?use|xlam", "hermes"),
    (r"functionary.*3[-_.]?2", "functionary-v3.2"),
    (r"functionary", "functionary-v3.1"),
    (r"gpt[-_]?oss", "harmony"),
    (r"deepseek[-_.]?v4", "deepseek-v4"),
    (r"deepseek[-_.]?v3[-_.]?2(?!.*exp)", "deepseek-v32"),
    (r"deepseek[-_.]?v3[-_.]?[12]", "deepseek-v31"),
    (r"deepseek[-_.]?(v3|r1)(?!.*distill)", "deepseek-v3"),
    (r"glm[-_.]?(4[-_.]?[7-9]|5)", "glm47"),
    (r"glm[-_.]?4[-_.]?[56]", "glm45"),
    (r"kimi[-_.]?k2", "kimi-k2"),
    (r"kimi[-_.]?k3", "kimi-k3"),
    (r"minicpm[-_.]?5", "minicpm5"),
    (r"minimax[-_.]?m2", "minimax"),
    (r"minimax[-_.]?m3", "minimax-m3"),
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
    (r"llama[-_. ]?4|pythonic", "pythonic"),
    (r"llama[-_. ]?3", "llama"),
    (
        r"mistral[-_.]?small[-_.]?3[-_.]2|devstral|magistral|ministral[-_.]?3|mistral[-_.]?large[-_.]?3|mistral.*(?:250[6-9]|251)",
        "mistral-args",
    ),
    (r"mi[sx]tral|ministral", "mistral"),
    (r"qwen|qwq|smollm", "hermes"),
)
_TEMPLATES = (  # of templates that write no calls: the first whose mark is in the template
    (r"<\|tool_call>", "gemma4"),
    (r"to=functions\.|<\|channel\|>", "harmony"),
    (r"(｜DSML｜|dsml_token.{0,9})function_calls", "deepseek-v32"),
    (r"｜DSML｜|dsml_token", "deepseek-v4"),
    (r"<｜tool▁sep｜>'? ?\+? ?[^<]*```json|```json[^`]*```<｜tool▁call▁end｜>", "deepseek-v3"),
    (r"<｜tool▁calls▁begin｜>", "deepseek-v31"),
    (r"<\|tool_calls_section_begin\|>", "kimi-k2"),
    (r"minimax:tool_call", "minimax"),
    (r"\]<\]minimax\[>\[", "minimax-m3"),
    (r"<seed:tool_call>", "seed-oss"),
    (r"steptml:invoke|<｜tool_calls_begin｜>", "step3"),
    (r"<cofl:tool_call", "cohere-xml"),
    (r"<\|START_ACTION\|>", "cohere"),
    (r"<tool_sep>", "hunyuan-v3"),
    (r"</arg_key>\n<arg_value>|\{arg-key-1\}</arg_key>\s", "glm45"),
    (r"</?arg_key>", "glm47"),
    (r"<tool_call>(?:\\n|\s)*<function=", "qwen3-coder"),
    (r"<function name=", "minicpm5"),
    (r"<function=", "functionary-v3.1"),
    (r">>>all", "functionary-v3.2"),
    (r"<\|open\|>", "kimi-k3"),
    (r"<TOOLCALL>", "nemotron"),
    (r"<tool_calls>\[", "hunyuan"),
    (r"<\|tool_call_start\|>\[[\"'] ?\+ ?\(?ns_tc|<\|tool_call_start\|>.*\{\\?\"name", "lfm2-json"),
    (r"<\|tool_call_start\|>|<\|tool_list_start\|>", "lfm2"),
    (r"<\|/tool_call\|>", "phi4-mini"),
    (r"<\|tool_call\|>", "granite"),
    (r"<tool_call>", "hermes"),
    (r"\[ARGS\]", "mistral-args"),
    (r"\[TOOL_CALLS\]|\[AVAILABLE_TOOLS\]", "mistral"),
)
_TURNS = (  # marks of turns, which say nothing of calls but whose family of models it may be
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


def reasoning_named(name: str) -> ReasoningMarks:
    """The marks of a family's thoughts. Raises ConfigError for a name that is not known."""
    if name not in MARKS:
        raise ConfigError(f"there is no reasoning format {name!r}; {_nearest(name, MARKS)}")
    return MARKS[name]


def dialect_for(
    model_name: str,
    template: str | ChatTemplate | None,
    tokens: Mapping[str, str] | None = None,
    response_template: Mapping[str, Any] | None = None,
) -> Dialect:
    """The dialect of a model: what its files say of it, else what its chat template writes, else a guess with a `note`.

    Args:
        model_name: the last resort, where the template writes no calls.
        template: Jinja source, or what was made of it.
        tokens: the special tokens that the source reads by name.
        response_template: of tokenizer_config.json, the model's own rules of reading its answers.

    A guess goes by the marks of calls that stand in the source, then by the name, then by the marks of turns, and is
    logged.
    """
    given = None if response_template is None else json.dumps(response_template, sort_keys=True)
    return _dialect_for(model_name, template, tuple(sorted((tokens or {}).items())), given)


@lru_cache(maxsize=256)
def _dialect_for(
    model: str, template: str | ChatTemplate | None, tokens: tuple[tuple[str, str], ...], given: str | None
) -> Dialect:
    source = template.source if isinstance(template, ChatTemplate) else template
    probe = TemplateProbe() if template is None else probe_template(template, dict(tokens))
    dialect = _rendered(model, source, probe)
    marks = reasoning_marks_of(probe, _WRITTEN) or dialect.reasoning or reasoning_of(model, source)
    if marks is not None and any(probe.generation_prompt):
        marks = marks._replace(open=not marks.begin or opened(marks.begin, probe))
    found = dialect.thinking(marks).templated(source)
    found = found if given is None else response_template_dialect(found, json.loads(given), _CANDIDATES)
    if found.note:
        log.warning(found.note)
    return found


def _rendered(model: str, source: str | None, probe: TemplateProbe) -> Dialect:
    """The dialect of the calls that the template writes, else a guess."""
    choice = choose_dialect(probe, _CANDIDATES)
    if choice is not None and choice.seen != MARKED:
        return choice.dialect
    if choice is not None:
        return _noted(choice.dialect, model, "marks that its template writes")
    name, why = known_name(model), f"the name {model!r}"
    if name != "nano" and (found := _marked(source, _TEMPLATES) or (name is None and _marked(source, _TURNS))):
        name, why = found, "marks in its template"
    return (
        dialect_named(name) if name == "nano" else _noted(dialect_named(name or "hermes"), model, why if name else "")
    )


def _marked(source: str | None, table: tuple[tuple[str, str], ...]) -> str | None:
    """The dialect whose mark is in the source of a template."""
    return next((name for mark, name in table if re.search(mark, source or "")), None)


def _noted(dialect: Dialect, model: str, why: str) -> Dialect:
    """The dialect with a note on how it was found; `why` is empty where it is a fallback."""
    found = copy.copy(dialect)
    source = (
        f"is taken from {why}: {dialect.name}" if why else "is not known: hermes is used (<tool_call>{...}</tool_call>)"
    )
    found.note = (
        f"the format in which {model} calls tools {source}; no call could be read off its chat template. If it is "
        "another, choose it "
        f"(sgl serve --tool-format): {', '.join(DIALECTS)}"
    )
    return found


def _nearest(name: str, known: dict[str, Dialect] | dict[str, ReasoningMarks]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
