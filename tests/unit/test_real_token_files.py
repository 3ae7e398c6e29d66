"""Tokenizer files that Mistral and OpenAI publish, beside tiktoken and beside merging by hand."""

from __future__ import annotations

import base64
import json
import math
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from registry_files import MISTRAL_COMMON, WHISPER, unpacked
from test_real_vocabularies import random_texts

from sgl.runtime.errors import ConfigError
from sgl.runtime.text.tokenizer import Tokenizer
from sgl.runtime.text.tokenizer_files import tokenizer_files
from sgl.runtime.text.tokenizer_files.sentencepiece_file import SentencePieceFile
from sgl.runtime.text.tokenizer_files.tiktoken_file import DIGITS_IN_THREES

TEXTS = [*random_texts(11, 150), "", " ", "  a", "\n\n", "<s>[INST] hi [/INST]", "a<unk>"]


def published(name: str) -> Path:
    return unpacked(MISTRAL_COMMON) / "mistral_common" / "data" / name


def folder_with(tmp_path: Path, file: Path, name: str) -> Path:
    shutil.copy(file, tmp_path / name)
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "mistral", "architectures": ["MistralForCausalLM"]})
    )
    return tmp_path


def by_tiktoken(values: dict[str, Any]) -> tiktoken.Encoding:
    """As mistral-common has it: the first ranks, as many as there is room for beside the special tokens."""
    config = values["config"]
    words = values["vocab"][: config["default_vocab_size"] - config["default_num_special_tokens"]]
    ranks = {base64.b64decode(word["token_bytes"]): word["rank"] for word in words}
    return tiktoken.Encoding("tekken", pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={})


@pytest.mark.whole
def test_tekken_without_and_with_mistral_common(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers hands tekken.json to mistral-common where that is installed, so it is not asked at all."""
    monkeypatch.setattr(tokenizer_files, "_ask_transformers", lambda *_: pytest.fail("transformers was asked"))
    file = published("tekken_240911.json")
    ours = Tokenizer.load(folder_with(tmp_path, file, "tekken.json"))
    theirs = by_tiktoken(json.loads(file.read_text(encoding="utf-8")))
    assert ours.vocab_size == theirs.n_vocab + 1000 and ours.prefix_ids == (1,) and ours.eos_ids == (2,)
    for text in TEXTS:
        expected = [i + 1000 for i in theirs.encode(text, disallowed_special=())]
        assert ours.encode(text, parse_special=False).tolist() == expected, text
        assert ours.decode(expected) == text
    assert all(ours.token_bytes[i + 1000] == theirs.decode_single_token_bytes(i) for i in range(theirs.n_vocab))
    assert ours.encode("[INST]x</s><SPECIAL_999>").tolist() == [3, *ours.encode("x").tolist(), 2, 999]
    assert ours.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def small_tekken(**changes: Any) -> dict[str, Any]:
    words = [bytes([i]) for i in range(256)] + [b"ab", b"abc"]
    vocab = [
        {"rank": i, "token_bytes": base64.b64encode(word).decode(), "token_str": None} for i, word in enumerate(words)
    ]
    config = {"pattern": r"\p{L}+|\P{L}", "default_vocab_size": 262, "default_num_special_tokens": 5, "version": "v11"}
    special = [{"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(["<unk>", "<s>", "</s>"])]
    return {"config": config, "vocab": vocab, "special_tokens": special} | changes


def read(tmp_path: Path, values: dict[str, Any]) -> Tokenizer:
    (tmp_path / "tekken.json").write_text(json.dumps(values))
    return Tokenizer.load(tmp_path)


def test_ranks_without_room_are_left_out_and_special_tokens_without_a_name_get_one(tmp_path: Path) -> None:
    ours = read(tmp_path, small_tekken())
    assert ours.encode("abc<SPECIAL_4>").tolist() == [5 + 256, 5 + ord("c"), 4]
    assert ours.vocab_size == 262 and ours.special_ids == frozenset(range(5))


CONFIG = small_tekken()["config"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"config": None}, "'config' must be an object, not None"),
        ({"config": CONFIG | {"pattern": "("}}, "the tokenizers library does not take it"),
        (
            {"config": CONFIG | {"default_vocab_size": 300}},
            "'default_vocab_size' must be above 5 special tokens, and at most 258 more, not 300",
        ),
        (
            {"config": CONFIG | {"default_num_special_tokens": 2}},
            "must be at least the 3 special tokens that are named, not 2",
        ),
        ({"config": CONFIG | {"default_num_special_tokens": 10**9}}, "'default_num_special_tokens' must be"),
        ({"special_tokens": None}, "'special_tokens' must be a list, in version 'v11', not None"),
        ({"special_tokens": [{"rank": 1, "token_str": "<s>"}]}, "the ranks of 'special_tokens' are not 0 to 0"),
        (
            {"special_tokens": [{"rank": 0, "token_str": "pad"}]},
            "plain text that spells the special token 'pad' would become it",
        ),
        ({"special_tokens": ["<s>"]}, "must be objects with token_str and rank"),
        ({"vocab": [{"rank": 0, "token_bytes": "?"}] * 300}, "words in the order of their ranks, here 0"),
        (
            {"vocab": [{"rank": i, "token_bytes": "AA=="} for i in range(300)]},
            "two entries of 'vocab' have the same bytes",
        ),
    ],
)
def test_a_tekken_file_that_is_not_one_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, small_tekken(**changes))


@pytest.mark.parametrize("name", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def test_mistrals_sentencepiece_files_are_merged_as_by_hand(tmp_path: Path, name: str) -> None:
    """By scores, behind a dummy space; a text that begins with a space gets none, as the tokenizers library has it."""
    ours = Tokenizer.load(folder_with(tmp_path, published(name), "tokenizer.model.v3"))
    pieces = SentencePieceFile.read(published(name)).pieces
    ids, scores = {piece.text: i for i, piece in enumerate(pieces)}, {piece.text: piece.score for piece in pieces}
    for text in random_texts(5, 40):
        symbols = list(("" if text.startswith(" ") else "▁") + text.replace(" ", "▁"))
        while len(symbols) > 1:
            worst, place = min(
                (-scores.get(left + right, -math.inf), i) for i, (left, right) in enumerate(pairwise(symbols))
            )
            if worst == math.inf:
                break
            symbols[place : place + 2] = ["".join(symbols[place : place + 2])]
        expected = [
            i
            for symbol in symbols
            for i in ([ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()])
        ]
        assert ours.encode(text, special_prefix=True).tolist() == [1, *expected], text


@pytest.mark.parametrize(("name", "size"), [("multilingual", 50257), ("gpt2", 50256)])
def test_whispers_ranks_are_those_of_tiktoken(tmp_path: Path, name: str, size: int) -> None:
    """The last rank of the multilingual file is of no bytes: an id that no text has."""
    file = next(unpacked(WHISPER).rglob(f"{name}.tiktoken"))
    ours = Tokenizer.load(folder_with(tmp_path, file, file.name))
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, file.read_bytes().splitlines())}
    theirs = tiktoken.Encoding(name, pat_str=DIGITS_IN_THREES, mergeable_ranks=ranks, special_tokens={})
    assert ours.vocab_size == size == len(ranks)
    assert all(ours.token_bytes[rank] == token for token, rank in ranks.items())
    for text in TEXTS:
        assert ours.encode(text).tolist() == theirs.encode(text, disallowed_special=()), text


def test_a_rank_of_no_bytes_may_stand_there_once(tmp_path: Path) -> None:
    ranks = [b"%s %d\n" % (base64.b64encode(bytes([i])), i) for i in range(256)]
    for empty in (b"= 256\n", b" 256\n", b"==== 256\n"):
        (tmp_path / "a.tiktoken").write_bytes(b"".join([*ranks, empty]))
        assert Tokenizer.load(tmp_path).token_bytes[256] == b""
    for damaged, said in (
        (b"= 256\n= 257\n", "its 257 ranks are not 0 to 256"),
        (b"=A 256\n", "line 257 is not 'base64 rank'"),
        (b"= x\n", "line 257"),
    ):
        (tmp_path / "a.tiktoken").write_bytes(b"".join([*ranks, damaged]))
        with pytest.raises(ConfigError, match=said):
            Tokenizer.load(tmp_path)
