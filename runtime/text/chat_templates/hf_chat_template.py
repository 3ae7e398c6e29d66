"""Chat templates: Jinja source to text, in the sandbox and with the helpers that Hugging Face gives them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from jinja2 import meta, nodes
from jinja2.exceptions import TemplateError

from sgl.runtime.errors import ConfigError

from .template_render_budget import TemplateOverBudget
from .template_sandbox import TemplateSandbox

REASONING = ("reasoning_content", "thinking", "reasoning")
MOST_SOURCE, MOST_WORDS = 2**17, 10_000  # characters of a template; words, signs and texts between tags


class BadTemplate(ConfigError):
    """A chat template that cannot be used for any messages."""


class TemplateTooCostly(ConfigError):
    """A chat template whose rendering takes too long or makes too much."""

    hopeless = True  # it is not worth while to try other messages


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    if len(form) > 1000:
        raise TemplateOverBudget("strftime_now is given more than 1,000 characters")
    return datetime.now().strftime(form)


def _sandbox() -> TemplateSandbox:
    return TemplateSandbox({"tojson": _tojson}, {"raise_exception": _raise, "strftime_now": _now})


def _seen(message: Any) -> Any:
    """A message as transformers hands it on: without keys whose value is None, reasoning under all the names that
    templates read.
    """
    if not isinstance(message, Mapping):
        return message
    known = {key: value for key, value in message.items() if value is not None}
    said = next((known[name] for name in REASONING if name in known), None)
    return known if said is None else {"thinking": said, **known, "reasoning_content": said}


def require_short(sources: Iterable[str]) -> None:
    """Raises BadTemplate for templates that together are far longer than any that
    are known: they would take long to compile.
    """
    size = words = 0
    for source in sources:
        size += len(source)
        words += _words(source, MOST_WORDS - words) if size <= MOST_SOURCE else 0
        if size > MOST_SOURCE or words > MOST_WORDS:
            counted = (
                f"more than {MOST_SOURCE:,} characters"
                if size > MOST_SOURCE
                else f"more than {MOST_WORDS:,} words and signs"
            )
            raise BadTemplate(f"the chat template has {counted} and is not read; correct chat_template")


def _words(source: str, most: int) -> int:
    """How many, or one more than `most`."""
    try:
        found = (kind for _, kind, _ in _sandbox().lex(source) if kind != "whitespace")
        return sum(1 for _ in islice(found, most + 1))
    except (TemplateError, ValueError):  # it will be said when it is compiled
        return 0


class ChatTemplate:
    """A compiled template; rendering is thread-safe.

    Attributes:
        variables: the names that it reads from outside, in some branch at least.
        inputs: those of them that it does not set itself before it reads them.

    Raises:
        BadTemplate: it does not compile, or is longer than any that is known.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._sandbox = _sandbox()
        require_short([source])
        try:
            self._template = self._sandbox.from_string(source, globals=dict(special_tokens))
            parsed = self._sandbox.parse(source)
            self.variables = frozenset(meta.find_undeclared_variables(parsed) - special_tokens.keys())
            self.inputs = self.variables & read_first(parsed)
        except RecursionError:
            raise BadTemplate("the chat template does not compile: it nests too deep; correct chat_template") from None
        except (TemplateError, SyntaxError, ValueError, OverflowError, MemoryError) as error:
            raise BadTemplate(
                f"the chat template does not compile: {str(error)[:400]}; correct chat_template"
            ) from error

    def render(self, messages: Iterable[Mapping[str, Any]], add_generation_prompt: bool, **variables: Any) -> str:
        """The text of a conversation.

        Raises:
            ConfigError: the template refuses the messages.
            TemplateTooCostly: it takes more time or memory than a rendering of these messages may.
        """
        values = {
            "messages": [_seen(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
        } | variables
        try:
            with self._sandbox.spending(values):
                return self._template.render(values)
        except TemplateOverBudget as error:
            raise TemplateTooCostly(
                f"the chat template is stopped while it renders: {error}; correct chat_template"
            ) from error
        except RecursionError as error:
            raise ConfigError(
                "the chat template or the messages nest too deep; correct chat_template, or send flatter messages"
            ) from error
        except (
            TemplateError,
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
            AttributeError,
            MemoryError,
        ) as error:
            raise ConfigError(f"the chat template refuses these messages: {str(error)[:1000]}") from error


def read_first(template: nodes.Template) -> frozenset[str]:
    """The names whose first place in the text reads them.

    `{% set n = n + 1 %}` reads `n` first. A name that is set in one branch and read later counts as the template's own,
    although jinja finds it undeclared: the other branch does not set it.
    """
    first: dict[str, str] = {}
    for name in _names(template):
        first.setdefault(name.name, name.ctx)
    return frozenset(name for name, context in first.items() if context == "load")


def _names(node: nodes.Node) -> Iterator[nodes.Name]:
    """In the order in which they are run. A walk with its own stack: templates may nest deeper than Python does."""
    pending = [node]
    while pending:
        node = pending.pop()
        if isinstance(node, nodes.Name):
            yield node
        pending += reversed([*_children(node)])


def _children(node: nodes.Node) -> Iterator[nodes.Node]:
    """A target comes after what is put into it."""
    targets = [node.target] if isinstance(node, nodes.Assign | nodes.AssignBlock) else []
    if isinstance(node, nodes.For):
        yield node.iter
        yield node.target
        yield from node.iter_child_nodes(exclude=("iter", "target"))
        return
    yield from node.iter_child_nodes(exclude=("target",) if targets else ())
    yield from targets
