"""Chat templates: Jinja source to text, in the sandbox and with the helpers that Hugging Face gives them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import meta, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sgl.runtime.errors import ConfigError

REASONING = ("reasoning_content", "thinking", "reasoning")


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here its body is just text."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise TemplateError(message)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _with_reasoning(message: Any) -> Any:
    """Under all the names that templates read a message's reasoning by."""
    said = next((message[name] for name in REASONING if message.get(name) is not None), None) if isinstance(message, Mapping) else None
    return message if said is None else {"thinking": said, **message, "reasoning_content": said}


class ChatTemplate:
    """A compiled template; rendering is thread-safe. `variables` are the names that it reads from outside."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        environment = _environment()
        try:
            self._template = environment.from_string(source, globals=dict(special_tokens))
            self.variables = frozenset(meta.find_undeclared_variables(environment.parse(source)) - special_tokens.keys())
        except TemplateError as error:
            raise ConfigError(
                f"the chat template does not compile: {error}; correct chat_template"
            ) from error

    def render(
        self, messages: Iterable[Mapping[str, Any]], add_generation_prompt: bool, **variables: Any
    ) -> str:
        """The text of a conversation.

        Raises:
            ConfigError: the template refuses the messages.
        """
        try:
            return self._template.render(
                messages=[_with_reasoning(message) for message in messages], add_generation_prompt=add_generation_prompt, **variables
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise ConfigError(f"the chat template refuses these messages: {error}") from error
