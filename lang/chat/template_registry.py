"""Finds chat templates by their names and by the path of a model: the known ones, and those that programs add."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import TemplateError, nearest
from .chat_turn_template import ChatTemplate
from .known_chat_templates import KNOWN, match_known_models

Matcher = Callable[[str], str | None]

chat_template_registry: dict[str, ChatTemplate] = {template.name: template for template in KNOWN}
matching_function_registry: list[Matcher] = [match_known_models]


def register_chat_template(template: ChatTemplate) -> None:
    """Make a template known by its name; a later one replaces an earlier one."""
    chat_template_registry[template.name] = template


def register_chat_template_matching_function(matcher: Matcher) -> Matcher:
    """Add a function from model path to template name (or None). Usable as a decorator."""
    matching_function_registry.append(matcher)
    return matcher


def get_chat_template(name: str) -> ChatTemplate:
    """The template of that name. Raises TemplateError (a KeyError)."""
    try:
        return chat_template_registry[name]
    except KeyError:
        raise TemplateError(f"no chat template {name!r}; {nearest(name, chat_template_registry)}") from None


def match_chat_template(model_path: str) -> ChatTemplate | None:
    """The template of the first matching function that knows the model path."""
    for matcher in matching_function_registry:
        if name := matcher(model_path):
            return get_chat_template(name)
    return None


def get_chat_template_by_model_path(model_path: str) -> ChatTemplate:
    """As `match_chat_template`, with `default` for models that none knows."""
    return match_chat_template(model_path) or get_chat_template("default")
