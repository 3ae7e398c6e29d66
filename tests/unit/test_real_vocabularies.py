"""Published GGUF vocabularies: their own tests, llama.cpp's table of names, and merging by hand.

The table is read out of llama.cpp's source, so a name or a pattern that it has and ours lacks fails here. Where the
source
keeps "the original regex from tokenizer.json" beside its own, the original counts.
"""

from __future__ import annotations

import ast
import hashlib
import math
import random
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import regex
from registry_files import LLAMA_CPP, SMOLLM2, unpacked, vocabularies
from tokenizers.pre_tokenizers import ByteLevel

from sgl.runtime.errors import ConfigError
from sgl.runtime.loading.gguf_files.gguf_file import read_parts
from sgl.runtime.text.tokenizer_files.gguf_pre_tokenizers import REFUSED, WORDS, normalizer, pre_tokenizer
from sgl.runtime.text.tokenizer_files.gguf_tokenizer import gguf_tokenizer

PARTED = "\n__ggml_vocab_test__\n"
TESTED = (
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
)
COMPOSED = {"qwen35": (46, 47, 48)}  # lines where llama.cpp does not compose (NFC) and transformers' own class does
HASHED_AS = {
    "mpt": "olmo",
    "qwen35": "qwen2",
    "gemma-4": "granite-embed-multi-311m",
    "llama-spm": None,
    "phi-3": None,
}  # the same ids; none for SPM
WITHOUT_NAME = {"aquila": "gpt-2", "gpt-neox": "mpt"}  # files from before the key tokenizer.ggml.pre, and how they cut
PARTS = [
    *"abcXYZ019 .,'\"\n\t-_/(|!é中文日本ßÄД½٣",
    "'s",
    "'LL",
    "  ",
    "   ",
    "\r\n",
    " the",
    "Hello",
    "camelCase",
    "ÀÉ",
    "123456",
    "12345678",
    "1234567x",
    "x",
    "。",
    "ไทย",
    "한국어",
    "e\u0301",
    "\u3000",
    "<sentinel:12>",
    "IMGIMGABCZ",
    "word ",
    " ?",
    "naïve",
    "ＡＢ",
    "🚀",
    "$5",
    "a b c",
    "...",
    " \n",
    "½1234½12",
]


def file_of(name: str) -> Path:
    return next(file for file in vocabularies() if file.name == f"ggml-vocab-{name}.gguf")


@cache
def keys_of(name: str) -> dict[str, Any]:
    return read_parts(file_of(name))[0].metadata


def random_texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(PARTS, k=rng.randint(1, 30))) for _ in range(count)]


# their own tests


@pytest.mark.few(1)
@pytest.mark.parametrize("name", TESTED)
def test_ids_are_those_of_the_vocabularys_own_test(name: str) -> None:
    file, ours = file_of(name), gguf_tokenizer(keys_of(name), name)
    texts = file.with_name(f"{file.name}.inp").read_bytes().decode().split(PARTED)
    lines = file.with_name(f"{file.name}.out").read_text().splitlines()
    assert len(lines) > 40 and texts[len(lines) :] in ([], [""])
    wrong = []
    for number, (text, line) in enumerate(zip(texts, lines, strict=False)):
        found = ours.encode(text, special_prefix=True).tolist()[len(ours.prefix_ids) :]
        if found != [int(i) for i in line.split()]:
            wrong.append(number)
        assert ours.decode(ours.encode(text).tolist(), False) == (normalized(name, text))
    assert tuple(wrong) == COMPOSED.get(name, ())
    assert hashed(ours.encode(long_text(), special_prefix=True).tolist()) == HASHED_AS.get(name, name)


def hashed(ids: list[int]) -> str | None:
    """The name that llama.cpp's converter gives a tokenizer: by a hash of what transformers makes of one long text."""
    return dict(re.findall(r'if chkhsh == "([0-9a-f]{64})":\n(?:\s*#.*\n)*\s*res = "([^"]+)"', converter())).get(
        hashlib.sha256(str(ids).encode()).hexdigest()
    )


def converter() -> str:
    return (unpacked(LLAMA_CPP) / "llama_cpp_python-0.3.36/vendor/llama.cpp/conversion/base.py").read_text(
        encoding="utf-8"
    )


def long_text() -> str:
    return ast.literal_eval(re.search(r"chktxt = ('.*')", converter())[1])  # type: ignore[index]


def test_ids_of_smollm2_are_those_of_transformers() -> None:
    ours = gguf_tokenizer(read_parts(next(unpacked(SMOLLM2).rglob("*.gguf")))[0].metadata, "SmolLM2")
    assert hashed(ours.encode(long_text(), special_prefix=True).tolist()) == "smollm"


def normalized(name: str, text: str) -> str:
    step = (
        normalizer(WORDS[keys_of(name)["tokenizer.ggml.pre"]])
        if keys_of(name).get("tokenizer.ggml.pre", "default") != "default"
        else None
    )
    return text if step is None else step.normalize_str(text)


def test_vocabularies_of_encoders_are_refused_by_name() -> None:
    for name, kind in (("bert-bge", "'bert' (WordPiece"), ("nomic-bert-moe", "'t5' (unigram")):
        with pytest.raises(ConfigError, match=re.escape(f"tokenizer.ggml.model={kind}")):
            gguf_tokenizer(keys_of(name), name)
    for name in WITHOUT_NAME:
        with pytest.raises(ConfigError, match=r"there is no key tokenizer\.ggml\.pre"):
            gguf_tokenizer(keys_of(name), name)


# merging by hand


class ByHand:
    """Added tokens first, the longest where several begin; words by the `regex` library and llama.cpp's own patterns,
    merged one
    pair after another."""

    def __init__(self, keys: dict[str, Any], patterns: list[str], whole: bool) -> None:
        self.ids = {token: i for i, token in enumerate(keys["tokenizer.ggml.tokens"])}
        pairs = [(merge[: (cut := merge.find(" ", 1))], merge[cut + 1 :]) for merge in keys["tokenizer.ggml.merges"]]
        self.ranks = {pair: rank for rank, pair in reversed(list(enumerate(pairs)))}
        self.patterns, self.whole = patterns, whole
        kinds = zip(keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"], strict=True)
        self.added = sorted((token for token, kind in kinds if kind in (2, 3, 4)), key=len, reverse=True)

    def encode(self, text: str) -> list[int]:
        parts = re.split(f"({'|'.join(map(re.escape, self.added))})", text) if self.added else [text]
        return [i for part in parts for i in ([self.ids[part]] if part in self.added else self.text(part))]

    def text(self, text: str) -> list[int]:
        return [self.ids[symbol] for word in cut(text, self.patterns) for symbol in self.merged(letters(word))]

    def merged(self, word: str) -> list[str]:
        symbols = [word] if self.whole and word in self.ids else list(word)
        while len(symbols) > 1:
            rank, place = min((self.ranks.get(pair, math.inf), i) for i, pair in enumerate(pairwise(symbols)))
            if rank == math.inf:
                break
            symbols[place : place + 2] = ["".join(symbols[place : place + 2])]
        return symbols


def letters(word: str) -> str:
    return "".join(piece for piece, _ in ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(word))


def cut(text: str, patterns: list[str]) -> list[str]:
    """Each pattern cuts the words of the one before: before and behind every match."""
    words = [text]
    for pattern in patterns:
        words = [part for word in words for part in _cut(word, pattern) if part]
    return words


def _cut(word: str, pattern: str) -> list[str]:
    edges = sorted({0, len(word), *(edge for match in regex.finditer(pattern, word) for edge in match.span())})
    return [word[start:end] for start, end in pairwise(edges)]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", ["aquila", "gpt-neox", "refact", "deepseek-coder", "deepseek-llm", "falcon", "llama-bpe"]
)
def test_ids_are_those_of_merging_by_hand(name: str) -> None:
    keys = keys_of(name)
    pre = keys.get("tokenizer.ggml.pre") or WITHOUT_NAME[name]
    ours, theirs = (
        gguf_tokenizer(keys | {"tokenizer.ggml.pre": pre}, name),
        ByHand(keys, table()[pre].patterns, table()[pre].whole),
    )
    for text in random_texts(7, 60):
        text = text if (step := normalizer(WORDS[pre])) is None else step.normalize_str(text)
        assert ours.encode(text).tolist() == theirs.encode(text), text


@pytest.mark.whole
def test_baichuans_pieces_are_merged_as_by_hand() -> None:
    """By scores alone: the pair that makes the piece of the highest score is joined first."""
    keys = keys_of("baichuan")
    ours, tokens = gguf_tokenizer(keys, "baichuan"), keys["tokenizer.ggml.tokens"]
    ids, scores = (
        {token: i for i, token in enumerate(tokens)},
        dict(zip(tokens, keys["tokenizer.ggml.scores"], strict=True)),
    )
    for text in random_texts(3, 40):
        symbols = list(text.replace(" ", "▁"))
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
        assert ours.encode(text).tolist() == expected, text


# llama.cpp's table


class Named(NamedTuple):
    """What llama.cpp's source says of a name."""

    patterns: list[str]
    whole: bool
    bos: bool


@cache
def table() -> dict[str, Named]:
    source = (unpacked(LLAMA_CPP) / "llama_cpp_python-0.3.36/vendor/llama.cpp/src/llama-vocab.cpp").read_text(
        encoding="utf-8"
    )
    patterns, found = patterns_of(source), {}
    for branch in source[source.index('tokenizer_pre == "default"') :].split("} else if ("):
        names, kind = (
            re.findall(r'tokenizer_pre == "([^"]+)"', branch),
            re.search(r"pre_type = LLAMA_VOCAB_PRE_TYPE_(\w+)", branch),
        )
        if names and kind:
            branch = branch.split("} else {")[0]
            found |= dict.fromkeys(
                names, Named(patterns[kind[1]], "ignore_merges = true" in branch, "add_bos = true" in branch)
            )
    return found


def patterns_of(source: str) -> dict[str, list[str]]:
    """By the name of the kind of words."""
    body = source[source.index("switch (vocab.get_pre_type())") : source.index("std::vector<std::string> regex_exprs;")]
    found: dict[str, list[str]] = {}
    for block in body.split("break;"):
        kinds = re.findall(r"case LLAMA_VOCAB_PRE_TYPE_(\w+):", block) or (["DEFAULT"] if "default:" in block else [])
        found |= dict.fromkeys(kinds, _patterns(block))
    return found


def _patterns(block: str) -> list[str]:
    found, original = [], None
    for line in map(str.strip, block.splitlines()):
        quoted = re.search(r'"((?:[^"\\]|\\.)*)"', line)
        if quoted and line.startswith("//"):
            original = quoted[1]
        elif quoted:
            found.append(ast.literal_eval(f'"{original or quoted[1]}"'))
            original = None
    return found


def test_every_name_is_known_with_its_flags() -> None:
    assert len(table()) > 75
    assert table().keys() == WORDS.keys() | REFUSED.keys()
    for name, said in table().items():
        if name not in REFUSED:
            always = WORDS[name].bos and WORDS[name].escaped  # llama.cpp sets it for Gemma 4 later on
            assert (WORDS[name].whole, WORDS[name].bos) == (said.whole, said.bos or always), name


THREES = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
UPPER, LOWER = r"(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])", r"(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PUBLISHED_AS = {"granite-embed-multi-97m": "gpt-4o"}  # where llama.cpp writes "a letter that is not a-z" for capitals
WRITTEN_IN_C = {  # patterns that llama.cpp keeps as code, in words of the `regex` library
    r"\p{AFMoE_digits}": THREES,
    r"\p{Han}+": rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}|\p{{N}}{{1,3}}|"  # noqa: E501
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


@pytest.mark.few(20)
@pytest.mark.parametrize("name", sorted(WORDS))
def test_words_are_those_of_llama_cpps_patterns(name: str) -> None:
    """Gemma's texts are one word for the tokenizers library: llama.cpp parts lines, which no token of it joins."""
    patterns = [WRITTEN_IN_C.get(pattern, pattern) for pattern in table()[PUBLISHED_AS.get(name, name)].patterns]
    ours = pre_tokenizer(WORDS[name])
    for text in random_texts(len(name), 150):
        text = (
            text.replace("½", "") if r"\b" in "".join(patterns) else text
        )  # whether a fraction belongs to words differs by library
        found = [text[start:end] for _, (start, end) in ours.pre_tokenize_str(text)]
        assert found == ([text] if WORDS[name].escaped else cut(text, patterns)), text


def test_long_runs_are_cut_in_linear_steps() -> None:
    """A word of 20,000 digits or spaces: the published patterns of some names take the square of that."""
    for name in ("tiny_aya", "afmoe", "superbpe", "deepseek-llm"):
        ours = pre_tokenizer(WORDS[name])
        assert [end - start for _, (start, end) in ours.pre_tokenize_str("1" * 20_000)][:2] == (
            [20_000] if name == "deepseek-llm" else [2, 3]
        )
        assert len(ours.pre_tokenize_str(" " * 20_000 + "a")) <= 2
