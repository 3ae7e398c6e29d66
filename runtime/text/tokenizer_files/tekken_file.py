"""Mistral's tekken.json: ranks of bytes after a block of special tokens, and the pattern that splits words."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from sgl.runtime.errors import ConfigError, brief

from .tiktoken_file import ranked_backend
from .tokenizer_file_checks import LONGEST, wrong

NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
BEFORE_LISTS = ("v1", "v2", "v3", "v7")  # versions whose files may leave their special tokens out: they are these
WITHOUT_LIST = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)


def tekken_file(folder: Path) -> Path | None:
    """tekken.json, else the one file whose name begins like that."""
    found = [folder / "tekken.json", *sorted(folder.glob("tekken*.json"))]
    return next((file for file in found if file.is_file()), None)


def tekken_backend(file: Path, values: Mapping[str, Any]) -> tuple[Backend, dict[str, str]]:
    """The tokenizer of a tekken.json, and its `bos_token` and the like.

    values: what the file holds. Ids are those of mistral-common: special tokens come first, unnamed ones as
    `<SPECIAL_n>`, and then the first ranks, as many as the vocabulary has room for. Raises ConfigError for anything
    else, naming key and value.
    """
    config = _of(file, values, "config", dict)
    pattern, size = _of(file, config, "pattern", str), _of(file, config, "default_vocab_size", int)
    special = _special(file, values, config)
    words = _of(file, values, "vocab", list)
    if not len(special) < size <= len(special) + len(words):
        raise wrong(
            file, "default_vocab_size", size, f"above {len(special):,} special tokens, and at most {len(words):,} more"
        )
    ranks = {_word(file, i, entry): i for i, entry in enumerate(words[: size - len(special)])}
    if len(ranks) < size - len(special):
        raise ConfigError(f"{file}: two entries of 'vocab' have the same bytes; download it again")
    try:
        backend = ranked_backend(ranks, pattern, first=special)
        spelled = next((token for token in special if token.encode() in ranks or _is_word(backend, token)), None)
    except Exception as error:
        raise ConfigError(
            f"{file}: the tokenizers library does not take it ({brief(error)}); download it again"
        ) from None
    if spelled is not None:
        raise ConfigError(
            f"{file}: plain text that spells the special token {spelled[:80]!r} would become it; download it again"
        )
    return backend, {name: token for name, token in NAMES.items() if token in special}


def _is_word(backend: Backend, token: str) -> bool:
    """Words that are tokens are taken whole."""
    return len(backend.pre_tokenizer.pre_tokenize_str(token)) == 1


def _of(file: Path, values: Mapping[str, Any], key: str, kind: type) -> Any:
    if type(value := values.get(key)) is not kind:
        raise wrong(file, key, value, "an object" if kind is dict else "a list" if kind is list else kind.__name__)
    return value


def _special(file: Path, values: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """By id."""
    listed, count = _listed(file, values, config), _of(file, config, "default_num_special_tokens", int)
    if not len(listed) <= count <= len(listed) + 2**16:
        raise wrong(
            file, "default_num_special_tokens", count, f"at least the {len(listed):,} special tokens that are named"
        )
    found = listed + [f"<SPECIAL_{i}>" for i in range(len(listed), count)]
    if len(set(found)) < len(found):
        raise ConfigError(f"{file}: a token stands twice in 'special_tokens'; download it again")
    return found


def _listed(file: Path, values: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    if values.get("special_tokens") is None:
        if (version := config.get("version")) not in BEFORE_LISTS:
            raise wrong(file, "special_tokens", None, f"a list, in version {version!r}")
        return list(WITHOUT_LIST)
    by_rank = {}
    for entry in _of(file, values, "special_tokens", list):
        token, rank = (entry.get("token_str"), entry.get("rank")) if isinstance(entry, dict) else (None, None)
        if not isinstance(token, str) or not 0 < len(token) <= LONGEST or type(rank) is not int:
            raise wrong(file, "special_tokens", entry, "objects with token_str and rank")
        by_rank[rank] = token
    if sorted(by_rank) != list(range(len(values["special_tokens"]))):
        raise ConfigError(
            f"{file}: the ranks of 'special_tokens' are not 0 to {len(values['special_tokens']) - 1}, each once; "
            "download it again"
        )
    return [by_rank[rank] for rank in range(len(by_rank))]


def _word(file: Path, place: int, entry: Any) -> bytes:
    try:
        word = base64.b64decode(entry["token_bytes"], validate=True)
    except (TypeError, KeyError, ValueError):
        word = b""
    if not 0 < len(word) <= LONGEST or entry.get("rank", place) != place:
        raise wrong(
            file, "vocab", entry, f"words in the order of their ranks, here {place:,}, with token_bytes in base64"
        )
    return word
