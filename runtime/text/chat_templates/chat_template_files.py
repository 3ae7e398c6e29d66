"""The chat templates of a checkpoint: its own, the one that the user gives, or its family's known format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from sgl.runtime.errors import ConfigError

from ..tokenizer_files.tokenizer_files import read_json
from .family_chat_formats import CHAT_FORMATS, ChatFormat
from .hf_chat_template import MOST_SOURCE, ChatTemplate

FILE, MORE_FILES, OLD_FILE = "chat_template.jinja", "additional_chat_templates", "chat_template.json"


def templates_for(
    folder: Path, config: Mapping[str, Any], added: Iterable[AddedToken], given: str | Path | None = None
) -> dict[str, str] | None:
    """Jinja sources by name; "default" is for conversations without tools.

    Args:
        config: of tokenizer_config.json.
        added: tokens of the vocabulary by which known formats are recognised.
        given: instead of what the checkpoint has, see `given_source`.
    """
    tokens = {token.content for token in added}
    if given is not None:
        return {"default": given_source(given, tokens)}
    known = _own(folder, config)
    if not known and (found := _of_family(folder, tokens)):
        known = {"default": found.source}
    return known or None


def origin(folder: Path, given: str | Path | None = None) -> str:
    """What to correct about the templates of `templates_for`."""
    if given is not None:
        return "Engine(chat_template=...)"
    there = [file for file in (folder / FILE, folder / MORE_FILES, folder / OLD_FILE) if file.exists()]
    return f"key 'chat_template' of {folder / 'tokenizer_config.json'}" if not there else str(there[0])


def named_templates(config: Mapping[str, Any]) -> dict[str, str]:
    """`hf_chat_template` of a tokenizer's config: one, a list of named ones, or by name."""
    said = config.get("chat_template")
    if isinstance(said, list) and all(isinstance(entry, dict) for entry in said):
        said = {entry.get("name"): entry.get("template") for entry in said}
    if isinstance(said, str):
        said = {"default": said}
    if said is None:
        return {}
    if not isinstance(said, dict) or not all(isinstance(text, str) for pair in said.items() for text in pair):
        raise ConfigError(
            f"chat_template is neither a text nor named texts but {str(said)[:100]!r}; correct tokenizer_config.json"
        )
    return said


def given_source(given: str | Path, tokens: Iterable[str] | None = None) -> str:
    """The Jinja source of Engine(chat_template=...): itself, the text of a file, or a known format by name.

    Args:
        tokens: of the vocabulary, where it is known.

    Raises:
        ConfigError: it is none of these, does not compile, or is made of tokens that the vocabulary has not.
    """
    text = str(given)
    found = next((known for known in CHAT_FORMATS if known.name == text), None)
    if (
        found is not None
        and tokens is not None
        and (missing := [mark for mark in found.marks.split() if mark not in tokens])
    ):
        raise ConfigError(
            f"chat_template={text!r} is made of {', '.join(missing)}, which this vocabulary does not have; give another"
        )
    source = found.source if found else text if "{{" in text or "{%" in text else _read(Path(text))
    ChatTemplate(source, {})
    return source


def how_to_give_one(folder: Path) -> str:
    """What to do about a checkpoint without a template."""
    kind = read_json(folder / "config.json").get("model_type")
    return (
        f"no format is known for models of type {kind!r} with this vocabulary, as a base model has none; give one: "
        f"Engine(chat_template=...) takes the path of a .jinja file, Jinja text, or one of {', '.join(_names())}"
    )


def _names() -> list[str]:
    return [known.name for known in CHAT_FORMATS]


def _read(file: Path) -> str:
    try:
        if file.exists() and not file.is_file():
            raise ValueError("it is not a regular file")
        with file.open(encoding="utf-8") as stream:
            return stream.read(MOST_SOURCE + 1)  # more is refused as too long
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"chat_template={str(file)!r} is no Jinja text, no file that can be read ({error}), "
            f"and none of the known formats: {', '.join(_names())}"
        ) from None


def _own(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Files of templates come before those inside the tokenizer's config, as in transformers."""
    files = {file.stem: file for file in sorted((folder / MORE_FILES).glob("*.jinja"))}
    if (folder / FILE).is_file():
        files["default"] = folder / FILE
    read = {name: _read(file) for name, file in files.items()}
    return (
        read
        if "default" in read
        else {**(named_templates(config) or named_templates(read_json(folder / OLD_FILE))), **read}
    )


def _of_family(folder: Path, tokens: set[str]) -> ChatFormat | None:
    config = read_json(folder / "config.json")
    kinds = {config.get("model_type"), (config.get("text_config") or {}).get("model_type")}
    places = [part for part in folder.resolve().parts if part.startswith("models--")] or folder.resolve().parts[-2:]
    name = " ".join([*places, str(config.get("_name_or_path"))]).lower()
    for known in CHAT_FORMATS:
        called = bool(known.marks) if not known.called else re.search(known.called, name)
        if called and tokens.issuperset(known.marks.split()) and (not known.kinds or kinds & set(known.kinds.split())):
            return known
    return None
