"""sgl: a language for structured generation with its own embedded LLM runtime.

Names are loaded when they are first used, so that `import sgl` costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sgl import documents as documents
    from sgl.evaluation.compare import Comparison, compare
    from sgl.evaluation.evaluate import evaluate
    from sgl.evaluation.evaluation import Evaluation
    from sgl.evaluation.tune import Tuned, tune
    from sgl.lang.backends.apis.anthropic_backend import Anthropic
    from sgl.lang.backends.apis.litellm_backend import LiteLLM
    from sgl.lang.backends.default_backend import flush_cache, get_server_info, set_default_backend
    from sgl.lang.backends.native.runtime_endpoint import RuntimeEndpoint
    from sgl.lang.backends.openai.openai_backend import OpenAI
    from sgl.lang.backends.scripted.scripted_backend import Scripted
    from sgl.lang.errors import BudgetExceeded, DeadlineExceeded, ProgramCancelled, ProgramError
    from sgl.lang.global_config import global_config
    from sgl.lang.interpreter.token_usage import Budget, Usage
    from sgl.lang.journal import Journal, once, record, replay, resume
    from sgl.lang.journal.journal_backend import journal
    from sgl.lang.nodes.description_primitives import fields, labels
    from sgl.lang.nodes.primitives import (
        assistant,
        assistant_begin,
        assistant_end,
        gen,
        image,
        plain,
        select,
        separate_reasoning,
        special,
        system,
        system_begin,
        system_end,
        tool,
        tool_begin,
        tool_end,
        user,
        user_begin,
        user_end,
        video,
    )
    from sgl.lang.program.async_program_state import AsyncProgramState, AsyncState
    from sgl.lang.program.program_state import ProgramState, State
    from sgl.lang.program.state_group import ProgramStateGroup
    from sgl.lang.report import report
    from sgl.lang.sampling.choices import (
        Choice,
        ChoicesMethod,
        answer_likelihood,
        greedy_token_selection,
        token_length_normalized,
        unconditional_likelihood_normalized,
    )
    from sgl.lang.sgl_function import SglFunction, function
    from sgl.lang.tools.chat_messages import messages
    from sgl.lang.tools.toolbox import tools
    from sgl.lang.typed.copied_text import Quote, Span, copied, copied_spans
    from sgl.runtime.engine import Engine
    from sgl.tasks.calibrate import calibrate
    from sgl.tasks.calibration import Calibration
    from sgl.tasks.classify import classify
    from sgl.tasks.classify_program import Classification
    from sgl.tasks.decide import decide
    from sgl.tasks.decide_program import Decision
    from sgl.tasks.examples import examples
    from sgl.tasks.extract import extract
    from sgl.tasks.extract_document import extract_document
    from sgl.tasks.extract_program import Extraction
    from sgl.tasks.nearest_examples import nearest
    from sgl.tasks.questions import choice, predicate, score

_HOMES = {
    "sgl.evaluation.compare": ("Comparison", "compare"),
    "sgl.evaluation.tune": ("Tuned", "tune"),
    "sgl.tasks.nearest_examples": ("nearest",),
    "sgl.evaluation.evaluate": ("evaluate",),
    "sgl.evaluation.evaluation": ("Evaluation",),
    "sgl.lang.sampling.choices": (
        "Choice",
        "ChoicesMethod",
        "answer_likelihood",
        "greedy_token_selection",
        "token_length_normalized",
        "unconditional_likelihood_normalized",
    ),
    "sgl.lang.global_config": ("global_config",),
    "sgl.lang.backends.default_backend": ("flush_cache", "get_server_info", "set_default_backend"),
    "sgl.lang.errors": ("BudgetExceeded", "DeadlineExceeded", "ProgramCancelled", "ProgramError"),
    "sgl.lang.sgl_function": ("SglFunction", "function"),
    "sgl.lang.program.async_program_state": ("AsyncProgramState", "AsyncState"),
    "sgl.lang.program.state_group": ("ProgramStateGroup",),
    "sgl.lang.interpreter.token_usage": ("Budget", "Usage"),
    "sgl.lang.nodes.description_primitives": ("fields", "labels"),
    "sgl.lang.nodes.primitives": (
        "assistant",
        "assistant_begin",
        "assistant_end",
        "gen",
        "image",
        "plain",
        "select",
        "separate_reasoning",
        "special",
        "system",
        "system_begin",
        "system_end",
        "tool",
        "tool_begin",
        "tool_end",
        "user",
        "user_begin",
        "user_end",
        "video",
    ),
    "sgl.lang.backends.apis.anthropic_backend": ("Anthropic",),
    "sgl.lang.backends.native.runtime_endpoint": ("RuntimeEndpoint",),
    "sgl.lang.backends.apis.litellm_backend": ("LiteLLM",),
    "sgl.lang.backends.openai.openai_backend": ("OpenAI",),
    "sgl.lang.backends.scripted.scripted_backend": ("Scripted",),
    "sgl.lang.journal": ("Journal", "once", "record", "replay", "resume"),
    "sgl.lang.journal.journal_backend": ("journal",),
    "sgl.lang.tools.chat_messages": ("messages",),
    "sgl.lang.tools.toolbox": ("tools",),
    "sgl.lang.report": ("report",),
    "sgl.lang.typed.copied_text": ("Quote", "Span", "copied", "copied_spans"),
    "sgl.lang.program.program_state": ("ProgramState", "State"),
    "sgl.runtime.engine": ("Engine",),
    "sgl.tasks.examples": ("examples",),
    "sgl.tasks.extract_document": ("extract_document",),
    "sgl.tasks.extract": ("extract",),
    "sgl.tasks.extract_program": ("Extraction",),
    "sgl.tasks.calibrate": ("calibrate",),
    "sgl.tasks.calibration": ("Calibration",),
    "sgl.tasks.classify": ("classify",),
    "sgl.tasks.classify_program": ("Classification",),
    "sgl.tasks.decide": ("decide",),
    "sgl.tasks.decide_program": ("Decision",),
    "sgl.tasks.questions": ("choice", "predicate", "score"),
}
_OLDER = {
    "gen_int": "sgl.lang.nodes.primitives",
    "gen_string": "sgl.lang.nodes.primitives",
    "Crusoe": "sgl.lang.backends.openai.openai_backend",
    "VertexAI": "sgl.lang.backends.apis.vertex_backend",
    "Delayed": "sgl.lang.backends.scripted.scripted_backend",
}  # older programs import them; help and completion leave them out
_MEANT = {
    "generate": "gen",
    "complete": "gen",
    "completion": "gen",
    "choose": "select",
    "choices": "select",
    "LLM": "Engine",
    "program": "function",
    "sgl_function": "function",
    "set_backend": "set_default_backend",
}  # names of other libraries, and likely attempts
_HOME = {name: home for home, names in _HOMES.items() for name in names} | _OLDER

__all__ = [
    "Anthropic",
    "AsyncProgramState",
    "AsyncState",
    "Budget",
    "BudgetExceeded",
    "Calibration",
    "Choice",
    "ChoicesMethod",
    "Classification",
    "Comparison",
    "DeadlineExceeded",
    "Decision",
    "Engine",
    "Evaluation",
    "Extraction",
    "Journal",
    "LiteLLM",
    "OpenAI",
    "ProgramCancelled",
    "ProgramError",
    "ProgramState",
    "ProgramStateGroup",
    "Quote",
    "RuntimeEndpoint",
    "Scripted",
    "SglFunction",
    "Span",
    "State",
    "Tuned",
    "Usage",
    "answer_likelihood",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "calibrate",
    "choice",
    "classify",
    "compare",
    "copied",
    "copied_spans",
    "decide",
    "evaluate",
    "examples",
    "extract",
    "extract_document",
    "fields",
    "flush_cache",
    "function",
    "gen",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "journal",
    "labels",
    "messages",
    "nearest",
    "once",
    "plain",
    "predicate",
    "record",
    "replay",
    "report",
    "resume",
    "score",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "special",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "tool",
    "tool_begin",
    "tool_end",
    "tools",
    "tune",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]


def _show_error(kind: Any, error: Any, trace: Any) -> None:
    """sys.excepthook, where no other is set: of an ordinary mistake, the program's own lines."""
    from .tracebacks import show

    show(error.with_traceback(trace))


def __getattr__(name: str) -> Any:
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show_error
    if name in ("compat", "documents"):
        return importlib.import_module(f"sgl.{name}")
    home = _HOME.get(name)
    if home is None:
        import difflib

        close = [_MEANT[name]] if name in _MEANT else difflib.get_close_matches(name, __all__, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"module 'sgl' has no attribute {name!r}{hint}")
    from sgl.runtime.common.garbage_collection import import_uncollected

    value = getattr(import_uncollected(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
