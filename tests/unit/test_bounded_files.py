"""What files hold is counted before it is made: each bound is a number, and these files are just beyond it."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import tokenizer_kinds as kinds
import torch

from sgl.runtime.common import argument_checks
from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.loading.gguf_files import gguf_file
from sgl.runtime.loading.gguf_files.gguf_file import read_parts
from sgl.runtime.loading.model_files import choose_weight_files
from sgl.runtime.loading.model_files.bounded_json import parse_object
from sgl.runtime.loading.tensor_files import safetensors_header
from sgl.runtime.loading.tensor_files.pickle_tensors import pickle_source
from sgl.runtime.loading.tensor_files.safetensors_header import read_header
from sgl.runtime.text.tokenizer import Tokenizer
from sgl.runtime.text.tokenizer_files import bpe_merges, sentencepiece_file, tiktoken_file, tokenizer_files
from sgl.runtime.text.tokenizer_files.bpe_merges import all_pairs

PIECES = [
    ("<unk>", 0.0, 2),
    *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)),
    *(("a" * i, -float(i), 1) for i in range(1, 9)),
]


def safetensors(file: Path, head: bytes) -> Path:
    file.write_bytes(struct.pack("<Q", len(head)) + head)
    return file


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"a": [' + b"[]," * 20 + b"[]]}", "up to 43 values, at most 40"),
        (b'{"a": "\xc3\xa9' + b"x" * 200 + b'"}', "text beyond ASCII"),
        (b'{"a": "\\u00e9' + b"x" * 200 + b'"}', "text beyond ASCII"),
        (b'{"a": ' + b"9" * 60 + b"}", "a row of 50 digits"),
    ],
)
def test_json_is_counted_before_it_is_read(data: bytes, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argument_checks, "MOST_DIGITS", 50)
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(ValueError, match=words):
        argument_checks.require_little_json(data, 40, 100)
        parse_object(data)


def test_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_header, "MOST_TENSORS", 3)
    named = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(5)}
    with pytest.raises(CheckpointError, match="names 5 tensors, at most 3"):
        read_header(safetensors(tmp_path / "a", json.dumps(named).encode()))
    monkeypatch.setattr(safetensors_header, "MOST_VALUES", 20)
    with pytest.raises(CheckpointError, match="values, at most 20"):
        read_header(safetensors(tmp_path / "a", json.dumps(named).encode()))


def test_pairs_are_those_of_every_cut() -> None:
    words = ["a", "b", "ab", "aa", "aab", "abb", "aabb"]
    slow = [
        (word[:cut], word[cut:])
        for word in words
        for cut in range(1, len(word))
        if word[:cut] in words and word[cut:] in words
    ]
    assert all_pairs(words, words) == slow
    assert sorted(all_pairs(words, words, lambda pair: pair[::-1])) == sorted(slow)


@pytest.mark.parametrize(
    ("bound", "value", "words"), [("MOST_PAIRS", 5, "more than 5 pairs"), ("MOST_SQUARES", 100, "too long to be cut")]
)
def test_pairs_are_bounded(bound: str, value: int, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bpe_merges, bound, value)
    (tmp_path / "sp").mkdir()
    (tmp_path / "sp" / "tokenizer.model").write_bytes(kinds.model_proto(PIECES, {3: 2}, {}))
    (tmp_path / "ranks").mkdir()
    lines = [b"YQ== 0", b"YWE= 1", b"YWFh 2", b"YWFhYQ== 3", b"YWFhYWE= 4", b"YWFhYWFhYWFhYWFhYQ== 5"]
    (tmp_path / "ranks" / "x.tiktoken").write_bytes(b"\n".join(lines) + b"\n")
    for folder in ("sp", "ranks"):
        with pytest.raises(ConfigError, match=words):
            Tokenizer.load(tmp_path / folder)


@pytest.mark.parametrize(
    ("module", "bound", "value", "words"),
    [
        (sentencepiece_file, "MOST_BYTES", 100, "bytes, at most 100"),
        (sentencepiece_file, "MOST_PIECES", 10, "more than 10 pieces"),
        (sentencepiece_file, "MOST_FIELDS", 300, "more than 300 fields"),
        (sentencepiece_file, "MOST_CHARACTERS", 100, "too long to be cut"),
        (sentencepiece_file, "MOST_IN_TRIE", 100, "bytes, at most 100"),
    ],
)
def test_sentencepiece_models(
    module: Any, bound: str, value: int, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, bound, value)
    (tmp_path / "tokenizer.model").write_bytes(kinds.model_proto(PIECES, {3: 1}, {}))
    with pytest.raises(ConfigError, match=words):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(("bound", "words"), [("MOST_BYTES", "bytes, at most 3"), ("MOST_RANKS", "lines, at most 3")])
def test_ranks(bound: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tiktoken_file, bound, 3)
    (tmp_path / "x.tiktoken").write_bytes(b"QQ== 0\n\n\n\n\n")
    with pytest.raises(ConfigError, match=words):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("bound", "value", "words"),
    [
        ("MOST_JSON", 100, "bytes, at most 100"),
        ("MOST_VALUES", 5, "values, at most 5"),
        ("MOST_NAMED", 9, "tokens and keys, at most 9"),
        ("MOST_CHARACTERS", 3, "characters, at most 3"),
    ],
)
def test_tokenizer_json(bound: str, value: int, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tokenizer_files, bound, value)
    model = {"type": "BPE", "vocab": {f"t{i}": i for i in range(20)}, "merges": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    with pytest.raises(ConfigError, match=rf"tokenizer.json.*{words}"):
        Tokenizer.load(tmp_path)


def test_a_pickle_is_looked_through_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.pt"
    for data, words in (
        (
            b"\x80\x02cbuiltins\nbytearray\nK\x07\x85R.",
            "it would run builtins.bytearray",
        ),  # seven bytes; the number may be any
        (b"\x80\x02})" + b"q\x00h\x00\x86" * 15 + b"K\x01s.", "a tuple of more than 10,000 parts"),
        (b"\x80\x02](e.", "cannot be read"),
        (b"\x80\x02\x87.", "takes a value where there is none"),
    ):
        file.write_bytes(data)
        with pytest.raises(CheckpointError, match=words):
            pickle_source(file)
    torch.save({f"t{i}": torch.zeros(2) for i in range(50)}, file)
    assert len(pickle_source(file).tensors) == 50
    monkeypatch.setattr("sgl.runtime.loading.tensor_files.pickle_tensors.MOST_STEPS", 500)
    with pytest.raises(CheckpointError, match="more than 500 steps"):
        pickle_source(file)
    assert pickle.loads(b"\x80\x02N.") is None


def test_parts_that_name_a_tensor_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    for number in (0, 1):
        keys = text("split.no") + struct.pack("<IH", 2, number) + text("split.count") + struct.pack("<IH", 2, 2)
        tensors = b"".join(
            text(name) + struct.pack("<IQIQ", 1, 1, 0, 32 * i) for i, name in enumerate(("same", f"own{number}"))
        )
        head = b"GGUF" + struct.pack("<IQQ", 3, 2, 2) + keys + tensors
        (tmp_path / f"m-{number + 1:05}-of-00002.gguf").write_bytes(head + bytes(-len(head) % 32 + 64))
    with pytest.raises(CheckpointError, match="tensor 'same' is in two of its 2 parts"):
        read_parts(tmp_path / "m-00001-of-00002.gguf")
    monkeypatch.setattr(gguf_file, "MOST_TENSORS", 3)
    with pytest.raises(CheckpointError, match="hold 4 tensors and more, at most 3"):
        read_parts(tmp_path / "m-00001-of-00002.gguf")


def test_sizes_are_asked_before_a_file_is_fetched() -> None:
    for name, most in (
        ("config.json", 4 * 2**20),
        ("model.safetensors.index.json", choose_weight_files.MOST_INDEX),
        ("tokenizer.json", choose_weight_files.MOST_SMALL),
    ):
        choose_weight_files.require_small(name, most, "there")
        choose_weight_files.require_small(name, None, "there")
        with pytest.raises(CheckpointError, match=rf"there/{name} has .* at most {most:,} are read"):
            choose_weight_files.require_small(name, most + 1, "there")
