"""What the keys of a tokenizer's files may hold, checked before anything is made of them."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sgl.runtime.errors import ConfigError

KINDS: dict[str, tuple[type, ...]] = {
    "auto_map": (dict, list),
    "tokenizer_class": (str,),
    "added_tokens_decoder": (dict,),
    "chat_template": (str, list, dict),
    "add_bos_token": (bool,),
    "add_eos_token": (bool,),
    "legacy": (bool,),
}
LISTS = ("additional_special_tokens", "extra_special_tokens")  # of tokens, in the latter by name too
LONGEST = 4096  # characters of a token
MOST_GROWTH = 1000
SHOWN = reprlib.Repr()
SHOWN.maxstring = SHOWN.maxother = SHOWN.maxlong = 80


def require_kinds(file: Path, values: Mapping[str, Any]) -> None:
    """Of tokenizer_config.json, or of special_tokens_map.json. Raises ConfigError naming file, key and value."""
    for key, value in values.items():
        if value is None:
            continue
        if key in KINDS and not isinstance(value, KINDS[key]):
            raise wrong(file, key, value, " or ".join(kind.__name__ for kind in KINDS[key]))
        if key in LISTS:
            _require_tokens(file, key, value)
        elif key.endswith("_token") and not key.startswith("add_") and not _is_token(value):
            raise wrong(
                file, key, value, f"a token: text of at most {LONGEST:,} characters, or an object with its content"
            )


def _require_tokens(file: Path, key: str, value: Any) -> None:
    tokens = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(tokens, list) or not all(map(_is_token, tokens)):
        raise wrong(file, key, value, "a list of tokens, each a text or an object with its content")


def _is_token(value: Any) -> bool:
    """Flags such as `add_prefix_token: true` end in the same way."""
    content = value.get("content") if isinstance(value, dict) else value
    return isinstance(content, bool) or (isinstance(content, str) and len(content) <= LONGEST and _is_text(content))


def _is_text(content: str) -> bool:
    """JSON can hold halves of characters."""
    try:
        content.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_model_kinds(file: Path, values: Mapping[str, Any]) -> None:
    """Of config.json, what a tokenizer needs of it."""
    text = values.get("text_config")
    if text is not None and not isinstance(text, dict):
        raise wrong(file, "text_config", text, "an object")
    for part in (values, text or {}):
        for key, kind in (("model_type", str), ("vocab_size", int)):
            if part.get(key) is not None and (not isinstance(part[key], kind) or isinstance(part[key], bool)):
                raise wrong(file, key, part[key], kind.__name__)


def require_little_growth(file: Path, normalizer: Any) -> None:
    """Raises ConfigError for a normalizer that makes long texts of short ones, step by step."""
    steps = [] if normalizer is None else [json.loads(normalizer.__getstate__())]
    growth = 1
    while steps:
        step = steps.pop()
        steps += step.get("normalizers") or []
        growth *= 1 + _growth(step)
        if growth > MOST_GROWTH:
            raise wrong(file, "normalizer", step, f"one that makes texts at most {MOST_GROWTH:,} times as long")


def _growth(step: Mapping[str, Any]) -> int:
    """How many characters a step puts in the place of each, beyond one."""
    if step["type"] == "Prepend":
        return len(step["prepend"])
    if step["type"] != "Replace":
        return 0
    pattern = step["pattern"]
    found = len(pattern["String"]) if "String" in pattern else 1
    return max(0, len(step["content"]) - found) if found else len(step["content"])


def wrong(file: Path, key: str, value: Any, kind: str) -> ConfigError:
    return ConfigError(f"{file}: key {key[:80]!r} must be {kind}, not {SHOWN.repr(value)}; mend it")


def own_class(config: Mapping[str, Any]) -> str | None:
    """The class that a checkpoint brings for its tokenizer, as `auto_map` names it."""
    said = config.get("auto_map")
    found = said.get("AutoTokenizer") if isinstance(said, dict) else said
    return str(found)[:200] if found is not None and (found or isinstance(said, dict)) else None
