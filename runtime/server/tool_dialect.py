"""Which dialect a server's model speaks: by its name and template, or as the settings say."""

from __future__ import annotations

from pathlib import Path

from sgl.grammars import Vocabulary
from sgl.runtime.dialects import Dialect, dialect_for, dialect_named, reasoning_named, reasoning_of
from sgl.runtime.engine import Engine

from .settings import ServerSettings


def dialect_of(engine: Engine, settings: ServerSettings) -> Dialect:
    """Raises ConfigError for a format in the settings that nobody knows."""
    name, template = model_name(engine.model_path), engine.tokenizer.chat_template
    if settings.tool_format is None:
        dialect = dialect_for(name, template)
    else:
        dialect = dialect_named(settings.tool_format).thinking(reasoning_of(name, template))
    dialect = dialect.templated("\n".join(engine.tokenizer.chat_sources))
    return dialect if settings.reasoning_format is None else dialect.thinking(reasoning_named(settings.reasoning_format))


def calls_vocabulary(engine: Engine, dialect: Dialect) -> Vocabulary:
    """The engine's vocabulary, in which the special tokens among the marks of calls are text that grammars may write."""
    text = dialect.spelled.encode()
    special = [index for index in engine.vocabulary.special_ids if (mark := engine.vocabulary.tokens[index]) and mark in text]
    return engine.vocabulary.spelling(special)


def model_name(path: str) -> str:
    """The part of a model's path that names it: the hub id of a cached snapshot, else the last two folders."""
    parts = Path(path).parts
    hub = [part for part in parts if part.startswith("models--")]
    return hub[-1].removeprefix("models--").replace("--", "/") if hub else "/".join(parts[-2:])
