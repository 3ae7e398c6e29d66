"""The words of commands that open a model: `[MODEL] [NAME=VALUE ...]`, before, between and after their options."""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Callable
from typing import Any

CONSTANTS = {"true": True, "false": False, "none": None}


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Have the parser put them into `words`."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[MODEL] [NAME=VALUE ...]",
        help="a model directory or hub id (default: the bundled one), and options of sgl.Engine",
    )
    setattr(parser, "parse_known_args", _in_any_order(parser.parse_known_args))  # noqa: B010


def _in_any_order(parse: Callable[..., Any]) -> Callable[..., Any]:
    """argparse takes words up to the first option only; those after it are words too."""

    def parse_all(*args: Any, **options: Any) -> tuple[argparse.Namespace, list[str]]:
        found, left = parse(*args, **options)
        found.words += [word for word in left if not word.startswith("-")]
        return found, [word for word in left if word.startswith("-")]

    return parse_all


def model_and_options(words: list[str]) -> tuple[str | None, dict[str, Any]]:
    """The model, if one is named, and the engine's options out of `NAME=VALUE`.

    Raises ConfigError for a second model.
    """
    from sgl.runtime.errors import ConfigError

    options: dict[str, Any] = {}
    models: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            options[name] = _value(value)
        else:
            models.append(word)
    if len(models) > 1:
        raise ConfigError(f"give one model, not {' and '.join(models)}; write options as NAME=VALUE")
    return (models[0] if models else None), options


def _value(text: str) -> Any:
    """A number, True, False, None or other literal of Python, or an object of JSON; else the text itself."""
    if text.lower() in CONSTANTS:
        return CONSTANTS[text.lower()]
    readers: list[Callable[[str], Any]] = [ast.literal_eval, *([json.loads] if text.startswith("{") else [])]
    for read in readers:
        try:
            return read(text)
        except (ValueError, SyntaxError):
            pass
    return text
