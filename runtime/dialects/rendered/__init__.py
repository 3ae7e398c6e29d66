"""The format of a model's calls and thoughts, read off what its chat template makes of probe conversations."""

from .chat_template_probe import TemplateProbe, probe_template
from .template_reasoning_marks import opened, reasoning_marks_of
from .tool_dialect_selection import MARKED, DialectChoice, choose_dialect

__all__ = [
    "MARKED",
    "DialectChoice",
    "TemplateProbe",
    "choose_dialect",
    "opened",
    "probe_template",
    "reasoning_marks_of",
]
