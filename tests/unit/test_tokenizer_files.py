"""Tokenizers of other files than tokenizer.json, beside slow readings of the
same files; what cannot be read is named.
"""

from __future__ import annotations

import atexit
import json
import random
import shutil
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizer_kinds as kinds
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from sgl.lang.compat.local_backend import hugging_face_tokenizer
from sgl.runtime.errors import ConfigError
from sgl.runtime.text.tokenizer import Tokenizer
from sgl.runtime.text.tokenizer_files.sentencepiece_file import SentencePieceFile

KINDS = {kind.name: kind for kind in kinds.KINDS}
texts = st.text(
    alphabet=st.one_of(st.sampled_from("  \nThe quickbrown0123日本é👍▁"), st.characters(codec="utf-8")), max_size=30
)


@cache
def folder_of(name: str) -> Path:
    folder = Path(mkdtemp(prefix="sgl-tokenizers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    KINDS[name].write(folder)
    return folder


@cache
def loaded(name: str) -> Tokenizer:
    return Tokenizer.load(folder_of(name))


# sentencepiece, as its paper says


def slow_bpe(pieces: list[tuple[str, float, int]], text: str) -> list[int]:
    """Of all neighbours that make a piece, those of the highest score are joined, the leftmost first."""
    ids = {piece: i for i, (piece, _, kind) in enumerate(pieces) if kind in (1, 4)}
    symbols = list(text.replace(" ", "▁"))
    while True:
        pairs = [(-pieces[ids[a + b]][1], at) for at, (a, b) in enumerate(pairwise(symbols)) if a + b in ids]
        if not pairs:
            return [i for symbol in symbols for i in spelled(ids, pieces, symbol)]
        _, at = min(pairs)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


def slow_unigram(pieces: list[tuple[str, float, int]], text: str) -> list[int]:
    """The path of the highest score."""
    ids = {piece: i for i, (piece, _, kind) in enumerate(pieces) if kind in (1, 4)}
    unknown = min(score for _, score, _ in pieces) - 10
    text = text.replace(" ", "▁")
    best: list[tuple[float, list[str]]] = [(0.0, [])]
    for end in range(1, len(text) + 1):
        ways = [
            (best[at][0] + pieces[ids[text[at:end]]][1], [*best[at][1], text[at:end]])
            for at in range(end)
            if text[at:end] in ids
        ]
        if text[end - 1] not in ids:
            ways.append((best[end - 1][0] + unknown, [*best[end - 1][1], text[end - 1]]))
        best.append(max(ways))
    return [i for symbol in best[-1][1] for i in spelled(ids, pieces, symbol)]


def spelled(ids: dict[str, int], pieces: list[tuple[str, float, int]], symbol: str) -> list[int]:
    first = next(i for i, (_, _, kind) in enumerate(pieces) if kind == 6)
    return [ids[symbol]] if symbol in ids else [first + byte for byte in symbol.encode()]


@settings(max_examples=100, deadline=None)
@given(text=texts)
def test_sentencepiece_bpe_is_its_slow_twin(text: str) -> None:
    pieces = kinds.sentencepiece_bpe(("▁▁", "\n\n"))
    parts = [slow_bpe(pieces, part) for part in text.split("\n\n")]
    expected = parts[0] + [i for part in parts[1:] for i in [4, *part]]  # 4: the user's piece of two newlines
    assert loaded("spm-bpe-no-dummy").encode(text).tolist() == expected


@settings(max_examples=100, deadline=None)
@given(text=texts)
def test_sentencepiece_unigram_is_its_slow_twin(text: str) -> None:
    pieces = kinds.sentencepiece_unigram()

    def score(ids: list[int]) -> float:
        return sum(pieces[i][1] for i in ids)

    found, expected = loaded("spm-unigram").encode(text).tolist(), slow_unigram(pieces, text)
    assert found == expected or score(found) == pytest.approx(score(expected), abs=1e-4)


def test_the_dummy_space_stands_where_the_file_says() -> None:
    first, always, never = (loaded(name) for name in ("spm-bpe", "spm-bpe-always", "spm-bpe-no-dummy"))
    shown = [
        [t.token_bytes[i].decode() for i in t.encode("fox</s>fox", special_prefix=True)] for t in (first, always, never)
    ]
    assert ["".join(parts) for parts in shown] == ["<s> fox</s>fox", "<s> fox</s> fox", "<s>fox</s>fox"]


def test_sentencepiece_as_transformers_converts_it() -> None:
    convert = pytest.importorskip("transformers.convert_slow_tokenizer")
    if Version(pytest.importorskip("transformers").__version__) < Version("5.24"):
        pytest.skip("transformers merges pieces through user-defined ones until 5.24, sentencepiece does not")
    found = SentencePieceFile.read(folder_of("spm-bpe-no-dummy") / "tokenizer.model")
    spec = SimpleNamespace(
        precompiled_charsmap=found.charsmap,
        add_dummy_prefix=found.dummy_prefix,
        remove_extra_whitespaces=found.collapse_spaces,
        escape_whitespaces=found.escape_spaces,
    )
    proto = SimpleNamespace(
        trainer_spec=SimpleNamespace(byte_fallback=True, unk_piece="<unk>", unk_id=0),
        normalizer_spec=spec,
        pieces=[SimpleNamespace(piece=piece.text, score=piece.score, type=piece.kind) for piece in found.pieces],
    )
    vocab = {piece.text: i for i, piece in enumerate(found.pieces)}
    theirs = convert.SpmConverter.build_tokenizer_from_spm_proto(proto, vocab)
    ours = loaded("spm-bpe-no-dummy")
    for text in ("The quick brown fox", "  naïve  日本語 👍🏽", "def add(a, b):\n    return a + b"):
        assert ours.encode(text).tolist() == theirs.encode(text).ids


def test_what_a_sentencepiece_file_says(tmp_path: Path) -> None:
    pieces = [("<pad>", 0.0, 3), ("</s>", 0.0, 3), ("<unk>", 0.0, 2), ("a", -1.5, 1)]
    file = tmp_path / "tokenizer.model"
    file.write_bytes(kinds.model_proto(pieces, {3: 2, 35: 1, 40: 2, 41: -1, 42: 1}, {3: 0, 4: 1, 2: b"map"}))
    found = SentencePieceFile.read(file)
    assert [tuple(piece) for piece in found.pieces] == pieces
    assert (found.algorithm, found.byte_fallback, found.unk_id, found.bos_id, found.eos_id) == (2, True, 2, -1, 1)
    assert (found.dummy_prefix, found.collapse_spaces, found.charsmap) == (False, True, b"map")
    assert found.special_names() == {"eos_token": "</s>", "unk_token": "<unk>"}


def test_a_damaged_sentencepiece_file_is_an_error_or_a_tokenizer(tmp_path: Path) -> None:
    whole = (folder_of("spm-bpe") / "tokenizer.model").read_bytes()
    rng = random.Random(0)
    refused = 0
    for _ in range(60):
        data = bytearray(whole[: rng.choice([len(whole), rng.randrange(len(whole))])])
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / "tokenizer.model").write_bytes(bytes(data))
        try:
            Tokenizer.load(tmp_path).encode("The fox", special_prefix=True)
        except ConfigError as error:
            refused += 1
            assert "tokenizer.model" in str(error)
    assert refused > 10


# tiktoken


def test_tiktoken_as_transformers_converts_it() -> None:
    pytest.importorskip("tiktoken")
    convert = pytest.importorskip("transformers.convert_slow_tokenizer")
    file = folder_of("tiktoken") / "tokenizer.model"
    theirs = convert.TikTokenConverter(str(file), extra_special_tokens=["<|begin|>", "<|eot|>"]).converted()
    ours = loaded("tiktoken")

    @settings(max_examples=100, deadline=None)
    @given(text=texts)
    def same(text: str) -> None:
        text = f"{text}<|eot|>{text}"
        assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids

    same()


def test_qwen_1_has_its_tokens_behind_the_ranks() -> None:
    tokenizer = loaded("qwen1")
    first = len(kinds.ranked())
    assert [tokenizer.token_id(token) for token in ("<|endoftext|>", "<|im_start|>", "<|extra_204|>")] == [
        first,
        first + 1,
        first + 207,
    ]
    assert [tokenizer.token_bytes[i] for i in tokenizer.encode("2024")] == [b"2", b"0", b"2", b"4"]


def test_chatglm_puts_its_two_tokens_before_a_text(tmp_path: Path) -> None:
    kinds.sentencepiece(
        kinds.sentencepiece_unigram, 1, tokenizer_class="ChatGLMTokenizer", auto_map={"AutoTokenizer": ["x.Y", None]}
    )(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert [tokenizer.token_bytes[i] for i in tokenizer.prefix_ids] == [b"[gMASK]", b"sop"]
    assert tokenizer.prefix_ids[0] == len(kinds.sentencepiece_unigram()) + 1


# tokens that a checkpoint adds


def test_added_tokens_stand_at_their_ids(tmp_path: Path) -> None:
    KINDS["spm-bpe"].write(tmp_path)
    size = len(kinds.sentencepiece_bpe())
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|later|>": size + 2, "<a>": 300}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("<a>x<|later|>").tolist()[0] == 300
    assert tokenizer.encode("<|later|>").tolist() == [size + 2]


def test_tokens_behind_the_rows_of_the_model_stay_text(tmp_path: Path) -> None:
    KINDS["gpt2-added"].write(tmp_path)
    size = Tokenizer.load(tmp_path).vocab_size
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": size - 1}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.vocab_size == size - 1
    assert tokenizer.decode(tokenizer.encode("xＡx")) == "xＡx"


@pytest.mark.parametrize(
    "load", [Tokenizer.load, hugging_face_tokenizer, lambda path: hugging_face_tokenizer(path, trust_remote_code=None)]
)
def test_nobody_is_asked_whether_code_may_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    """transformers asks on the terminal where nothing is said, and runs it on "y"."""
    monkeypatch.setattr("builtins.input", lambda *words: pytest.fail("it asked"))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    (tmp_path / "config.json").write_text('{"model_type": "evil"}')
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", null]}}'
    )
    with pytest.raises(ValueError, match=r"which is never run|Please pass the argument `trust_remote_code=True`"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_code_of_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    KINDS["llama3"].write(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    about = kinds.GENERIC | {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    for name in ("tokenizer_config.json", "config.json"):
        (tmp_path / name).write_text(json.dumps(about | {"model_type": "evil"}))
    assert Tokenizer.load(tmp_path).encode("x").size == 1
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(
        ConfigError, match=r"tokenizer_config\.json: auto_map=.*evil\.Evil.*never run.*save tokenizer\.json"
    ):
        Tokenizer.load(tmp_path)
    assert not (tmp_path / "ran").exists()


# errors


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    for text, words in (("{}", "download it again"), ("version https://git-lfs.github.com/spec/v1\n", "git lfs pull")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=rf"tokenizer\.json.*{words}"):
            Tokenizer.load(tmp_path)
    file.unlink()
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json holds list"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"tokenizer.model": b"QUJD 0\nx\n"}, "line 2 is not 'base64 rank'"),
        ({"tokenizer.model": b"QUJD 7\n"}, "its 1 ranks are not 0 to 0"),
        ({"tokenizer.model": b""}, "it has no pieces"),
        ({"tokenizer.model": b"version https://git-lfs.github.com/spec/v1\n"}, "not a sentencepiece model"),
        ({"spiece.model": kinds.model_proto([("a", 0.0, 1)], {3: 4}, {})}, "model_type 4 is neither"),
        ({"spiece.model": kinds.model_proto([("a", 0.0, 1)], {3: 2, 24: 1}, {})}, "keeps spaces after words"),
        ({"spiece.model": kinds.model_proto([("a", 0.0, 1)], {3: 2, 40: 9}, {})}, "unk_id 9 is none of its 1 pieces"),
        ({"spiece.model": kinds.model_proto([("a", float("nan"), 1)], {3: 2}, {})}, "a score is nan"),
        (
            {"vocab.json": b'{"a": 0}', "config.json": b'{"model_type": "llama"}'},
            "no tokenizer that can be read.*vocab.json",
        ),
        (
            {
                "kimi.tiktoken": b"QUJD 0\n",
                "tokenizer_config.json": b'{"tokenizer_class": "T", "auto_map": {"AutoTokenizer": ["a.T", null]}}',
            },
            "how T cuts texts",
        ),
        (
            {
                "tokenizer.model": b"QUJD 0\n",
                "tokenizer_config.json": b'{"added_tokens_decoder": {"99999999999": {"content": "x"}}}',
            },
            "99999999999 is not a token id",
        ),
        (
            {"tokenizer.model": b"QUJD 0\n", "tokenizer_config.json": b'{"added_tokens_decoder": {"x": 1}}'},
            "added_tokens_decoder cannot be read",
        ),
    ],
)
def test_bad_files_are_errors_that_name_them(tmp_path: Path, files: dict[str, bytes], words: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=words) as found:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in str(found.value)
