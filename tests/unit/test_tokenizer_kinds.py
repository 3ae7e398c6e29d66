"""Every kind of tokenizer: ids, text, bytes and masks, against transformers on random texts."""

from __future__ import annotations

import atexit
import json
import re
import shutil
import unicodedata
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizer_kinds import KINDS, TokenizerKind
from tokenizers import Tokenizer as Backend

from sgl.grammars import Vocabulary, compile_regex
from sgl.runtime.text.tokenizer import Tokenizer

PARTS = [
    "The quick",
    " brown",
    "  ",
    "    ",
    " ",
    "\n\n",
    "\t",
    "0123",
    "42",
    "naïve",
    "e\u0301",
    "日本語",
    "👍🏽",
    "▁",
    "▁▁",
    "<tool>",
    " <tool> ",
    "[R] x",
    "word",
    "words",
    "Ａ",
    "<|im_start|>",
    "</s>",
    "<|user|>  y",
    "<start_of_turn>",
    "don't",
    "…",
    "!?",
    '{"a": 1}',
    "def f():\r\n",
]
texts = st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=6)), max_size=8).map("".join)
every = pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
by_library = [kind for kind in KINDS if kind.library]
exact = [kind for kind in KINDS if not kind.lossy]


@cache
def folder_of(kind: TokenizerKind) -> Path:
    folder = Path(mkdtemp(prefix="sgl-tokenizers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    kind.write(folder)
    return folder


@cache
def ours(kind: TokenizerKind) -> Tokenizer:
    return Tokenizer.load(folder_of(kind))


@cache
def theirs(kind: TokenizerKind) -> Any:
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(str(folder_of(kind)))


@pytest.mark.few(10)
@pytest.mark.parametrize("kind", by_library, ids=[kind.name for kind in by_library])
@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_ids_are_those_of_transformers(kind: TokenizerKind, text: str) -> None:
    tokenizer, expected = ours(kind), theirs(kind)(text).input_ids
    if kind.name == "tekken":  # mistral-common puts BOS before a text, transformers alone does not
        expected = [*tokenizer.prefix_ids, *expected]
    if text.startswith(tuple(theirs(kind).all_special_tokens)):
        expected = (
            expected[len(tokenizer.prefix_ids) :]
            if expected[:1] == expected[1:2] and tokenizer.prefix_ids
            else expected
        )
    assert tokenizer.encode(text, special_prefix=True).tolist() == expected


@pytest.mark.few(10)
@pytest.mark.parametrize("kind", by_library, ids=[kind.name for kind in by_library])
@settings(max_examples=30, deadline=None)
@given(text=texts, skip=st.booleans())
def test_text_is_that_of_transformers(kind: TokenizerKind, text: str, skip: bool) -> None:
    tokenizer = ours(kind)
    ids = [*tokenizer.prefix_ids, *tokenizer.encode("x" + text, parse_special=False).tolist()]
    if set(ids) & added_in_letters(tokenizer):
        return
    assert tokenizer.decode(ids, skip_special_tokens=skip) == theirs(kind).decode(ids, skip_special_tokens=skip)


def added_in_letters(tokenizer: Tokenizer) -> set[int]:
    """Added tokens such as "é", which the library reads as the stand-in of a byte when it decodes."""
    added = tokenizer._backend.get_added_tokens_decoder()
    return {
        i for i, token in added.items() if tokenizer._backend.decode([i], skip_special_tokens=False) != token.content
    }


@pytest.mark.few(10)
@pytest.mark.parametrize("kind", exact, ids=[kind.name for kind in exact])
@settings(max_examples=40, deadline=None)
@given(segments=st.lists(texts, max_size=3))
def test_the_bytes_of_segments_are_the_text(kind: TokenizerKind, segments: list[str]) -> None:
    tokenizer = ours(kind)
    ids = [int(i) for text in segments for i in tokenizer.encode(text, parse_special=False)]
    expected = "".join(unicodedata.normalize("NFC", text) if kind.composes else text for text in segments)
    found = b"".join(tokenizer.token_bytes[i] for i in ids).decode()
    if "▁" in expected:  # where it stands for a space it comes back as one
        assert found.replace("▁", " ") == expected.replace("▁", " ")
    else:
        assert found == expected
    follower = tokenizer.detokenizer(False)
    assert (
        "".join([*map(follower.push, ids), follower.flush()])
        == found
        == tokenizer.decode(ids, skip_special_tokens=False)
    )


@pytest.mark.few(10)
@pytest.mark.parametrize("kind", by_library, ids=[kind.name for kind in by_library])
@settings(max_examples=20, deadline=None)
@given(said=st.text(max_size=20), prompt=st.booleans())
def test_conversations_have_the_ids_of_transformers(kind: TokenizerKind, said: str, prompt: bool) -> None:
    tokenizer = ours(kind)
    template = "".join(tokenizer.token_bytes[i].decode() for i in tokenizer.prefix_ids) + TEMPLATE
    chatting, talk = (
        conversing(kind, template),
        [{"role": "user", "content": said}, {"role": "assistant", "content": "fox"}],
    )
    assume(not chatting.marks.spelled(said))  # what texts spell of marks stays text here
    expected = theirs(kind).apply_chat_template(talk, chat_template=template, add_generation_prompt=prompt)
    assert chatting.encode_chat(talk, add_generation_prompt=prompt).tolist() == expected["input_ids"]


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if "
    "add_generation_prompt %}<|im_start|>{% endif %}"
)


@cache
def conversing(kind: TokenizerKind, template: str) -> Tokenizer:
    return Tokenizer.load(folder_of(kind), template)


@every
def test_what_a_tokenizer_says_of_itself(kind: TokenizerKind) -> None:
    tokenizer = ours(kind)
    assert tokenizer.exact_bytes
    assert len(set(tokenizer.prefix_ids)) == len(tokenizer.prefix_ids)
    assert all(i < tokenizer.vocab_size for i in (*tokenizer.prefix_ids, *tokenizer.eos_ids))
    written = "".join(tokenizer.token_bytes[i].decode() for i in tokenizer.prefix_ids)
    ids = tokenizer.encode(written + "The fox", special_prefix=True)
    assert tuple(ids[: len(tokenizer.prefix_ids)]) == tokenizer.prefix_ids
    assert not set(ids[len(tokenizer.prefix_ids) :].tolist()) & set(tokenizer.prefix_ids)


WALKS = [
    r'\{"name": "[a-z ]{1,8}", "n": \d{1,4}\}',
    r"(日本|naïve|👍🏽| the quick){1,3}\n\n",
    r"    return a \+ b|  \w{3}",
]


@pytest.mark.few(12)
@every
@pytest.mark.parametrize("pattern", WALKS)
def test_constrained_walks_end_in_the_language(kind: TokenizerKind, pattern: str) -> None:
    tokenizer = ours(kind)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    rng = np.random.default_rng(len(kind.name))
    for _ in range(5):
        matcher = compile_regex(pattern, vocabulary).matcher()
        output: list[int] = []
        while not matcher.finished and len(output) < 200:
            bits = np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little"))
            token = int(rng.choice(bits))
            assert matcher.accept(token)
            output.append(token)
        output = [i for i in output if i not in tokenizer.eos_ids]
        text = tokenizer.decode(output)
        assert re.fullmatch(pattern, text), text
        follower = tokenizer.detokenizer()
        assert "".join([*map(follower.push, output), follower.flush()]) == text


@pytest.mark.few(10)
@every
def test_variants_are_those_of_a_changed_tokenizer_json(kind: TokenizerKind) -> None:
    """They share the model. The library's reader of JSON changes the last bit of some scores of unigram models."""
    tokenizer = ours(kind)
    for key in product((False, True), repeat=3):
        continuation, parse_special, parse_marks = key
        parts = json.loads(tokenizer._backend.to_str()) | (tokenizer._bare_parts if continuation else {})
        for token in parts["added_tokens"]:
            token["special"] |= not parse_marks and token["id"] in tokenizer.marks.ids
        expected, found = Backend.from_str(json.dumps(parts)), tokenizer._make_variant(*key)
        assert without_model(found) == without_model(expected)
        assert found.get_vocab(with_added_tokens=True) == expected.get_vocab(with_added_tokens=True)
        assert json.loads(found.to_str())["model"] == json.loads(tokenizer._backend.to_str())["model"]
        assert found.encode_special_tokens is not parse_special


def without_model(backend: Backend) -> dict[str, Any]:
    return {name: part for name, part in json.loads(backend.to_str()).items() if name != "model"}
