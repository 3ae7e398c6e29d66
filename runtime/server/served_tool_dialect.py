"""Which dialect a server's model speaks: by its name and template, or as the settings say."""

from __future__ import annotations

from pathlib import Path

from sgl.grammars import Vocabulary
from sgl.runtime.dialects import Dialect, dialect_for, dialect_named, reasoning_named
from sgl.runtime.engine import Engine

from .server_settings import ServerSettings


def dialect_of(engine: Engine, settings: ServerSettings) -> Dialect:
    """Raises ConfigError for an unknown format in the settings."""
    name, tokenizer = model_name(engine.model_path), engine.tokenizer
    found = dialect_for(name, tokenizer.tools_template, response_template=tokenizer.response_template)
    dialect = found
    if settings.tool_format is not None and settings.tool_format != found.name:
        dialect = dialect_named(settings.tool_format).thinking(found.reasoning)
        dialect.single = found.single
    dialect = dialect.templated("\n".join(engine.tokenizer.chat_sources))
    return (
        dialect if settings.reasoning_format is None else dialect.thinking(reasoning_named(settings.reasoning_format))
    )


def calls_vocabulary(engine: Engine, dialect: Dialect) -> Vocabulary:
    """The engine's vocabulary, in which the special tokens among the marks of calls
    and thoughts are text that grammars may write.
    """
    calls, all_marks = dialect.spelled.encode(), "".join(dialect.marks).encode()
    ends = set(engine.tokenizer.eos_ids)  # what ends a thought and texts, too, still ends texts

    def spelled(index: int) -> bool:
        mark = engine.vocabulary.tokens[index]
        return bool(mark) and (mark in calls or (index not in ends and mark in all_marks))

    return engine.vocabulary.spelling([index for index in engine.vocabulary.special_ids if spelled(index)])


def model_name(path: str) -> str:
    """The part of a model's path that names it: the hub id of a cached snapshot, else the last two folders."""
    parts = Path(path).parts
    hub = [part for part in parts if part.startswith("models--")]
    return hub[-1].removeprefix("models--").replace("--", "/") if hub else "/".join(parts[-2:])
