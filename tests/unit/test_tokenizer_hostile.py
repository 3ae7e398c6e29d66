"""Tokenizer files that would take the time, the memory or the process end in an error that says what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tiny_tokenizers as tiny
import tokenizer_kinds as kinds

from sgl.runtime.errors import ConfigError
from sgl.runtime.text.tokenizer import Tokenizer

PIECES = [("<unk>", 0.0, 2), *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)), ("a", -1.0, 1)]
FAR = json.dumps({"added_tokens_decoder": {"1048575": {"content": "<x>"}}}).encode()


def replaced(text: str, by: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": by}


def template(token: int) -> dict[str, Any]:
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [token], "tokens": ["<s>"]}},
    }


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "cannot be used.*charsmap"),
        (
            "normalizer",
            {"type": "Prepend", "prepend": "x" * 5_000_000},
            "'normalizer' must be one that makes texts at most 1,000 times",
        ),
        ("normalizer", {"type": "Sequence", "normalizers": [replaced("a", "aa")] * 40}, "at most 1,000 times as long"),
        ("normalizer", replaced("", "x" * 100_000), "at most 1,000 times as long"),
        ("post_processor", template(4_000_000_000), "puts the token 4,000,000,000 before texts"),
    ],
)
def test_parts_of_tokenizer_json(tmp_path: Path, part: str, value: dict[str, Any], words: str) -> None:
    whole = json.loads(tiny.byte_level_backend())
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole | {part: value}))
    with pytest.raises(ConfigError, match=words) as caught:
        Tokenizer.load(tmp_path)
    assert len(str(caught.value)) < 1000 and "tokenizer.json" in str(caught.value)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            {"tokenizer.model": kinds.model_proto([*PIECES, ("a" * 200_000, -3.0, 1)], {3: 2}, {})},
            "tokenizer.model: its pieces are too long.*200,000",
        ),
        (
            {"tokenizer.model": kinds.model_proto(PIECES, {3: 2}, {}), "tokenizer_config.json": FAR},
            "1,048,575 is far beyond the pieces of tokenizer.model",
        ),
        (
            {"x.tiktoken": b"QUJD 0\n", "tokenizer_config.json": FAR},
            "1,048,575 is far beyond the pieces of x.tiktoken",
        ),
        (
            {"tokenizer_config.json": b'{"bos_token": "\\ud800"}'},
            r"tokenizer_config.json: key 'bos_token' must be a token",
        ),
        (
            {"added_tokens.json": b'{"<x>": [0]}', "tokenizer.model": kinds.model_proto(PIECES, {3: 2}, {})},
            r"added_tokens.json: \[0\] is not a token id.*<x>",
        ),
    ],
)
def test_other_files(tmp_path: Path, files: dict[str, bytes], words: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        Tokenizer.load(tmp_path)


def test_a_template_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tiny.byte_level_backend())
    (tmp_path / "additional_chat_templates").mkdir()
    os.mkfifo(tmp_path / "additional_chat_templates" / "rag.jinja")
    with pytest.raises(ConfigError, match=r"rag\.jinja.*not a regular file"):
        Tokenizer.load(tmp_path)
