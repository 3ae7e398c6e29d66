"""Detokenizers: deltas are whole characters and add up to the whole text."""

from __future__ import annotations

import pytest
import tiny_tokenizers as tiny
from hypothesis import given
from hypothesis import strategies as st

from sgl.runtime.text.tokenizer import Tokenizer

EXACT = [
    pytest.param(tiny.byte_level(), id="byte-level"),
    pytest.param(tiny.metaspace(), id="byte-fallback"),
]
ALL = [*EXACT, pytest.param(tiny.wordpiece(), id="wordpiece")]

TRICKY = [
    "👩‍👩‍👧‍👦",
    "👍🏽",
    "日本語",
    "naïve",
    "\ufeff",
    "e\u0301",
    "\ud7ff",
    "\U0010ffff",
    " ",
    "\n",
    "abc",
    "\ufffd",
]
texts = st.one_of(st.lists(st.sampled_from(TRICKY), max_size=8).map("".join), st.text(max_size=20))
token_lists = st.lists(st.integers(0, 499), max_size=40)


def deltas(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> list[str]:
    follower = tokenizer.detokenizer(skip)
    found = [follower.push(i) for i in ids]
    return [*found, follower.flush()]


@pytest.mark.parametrize("tokenizer", EXACT)
@given(text=texts)
def test_text_comes_back_in_whole_characters(tokenizer: Tokenizer, text: str) -> None:
    pieces = deltas(tokenizer, tokenizer.encode(text, parse_special=False).tolist())
    assert "".join(pieces) == text
    assert pieces[-1] == ""
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("tokenizer", EXACT)
@given(ids=token_lists, skip=st.booleans())
def test_any_tokens_decode_as_a_whole(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    if tuple(ids[:1]) != tokenizer.prefix_ids:
        assert "".join(deltas(tokenizer, ids, skip)) == whole
    table = tokenizer.visible_bytes(skip)
    raw = b"".join(table[i] for i in ids).decode("utf-8", "replace")
    assert "".join(deltas(tokenizer, ids, skip)) == raw


@given(ids=token_lists)
def test_byte_level_agrees_with_the_library(ids: list[int]) -> None:
    tokenizer = tiny.byte_level()
    assert "".join(deltas(tokenizer, ids)) == tokenizer.backend_decode(ids, True)


@pytest.mark.parametrize("tokenizer", EXACT)
@given(text=texts)
def test_metaspace_agrees_with_the_library_on_whole_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode("x" + text, parse_special=False).tolist()
    assert "".join(deltas(tokenizer, ids)) == tokenizer.backend_decode(ids, True)


def test_an_unfinished_character_is_said_once() -> None:
    tokenizer = tiny.byte_level()
    ids = tokenizer.encode("a👍🏽").tolist()
    follower = tokenizer.detokenizer()
    while not follower.partial:
        follower.push(ids.pop(0))
    assert follower.flush() == "\ufffd"
    assert follower.flush() == ""
    assert not follower.partial


@pytest.mark.parametrize("tokenizer", ALL)
@given(text=texts, cut=st.integers(0, 30))
def test_copies_go_their_own_way(tokenizer: Tokenizer, text: str, cut: int) -> None:
    ids = tokenizer.encode(text, parse_special=False).tolist()
    first = tokenizer.detokenizer()
    head = "".join(first.push(i) for i in ids[:cut])
    twin = first.copy()
    tails = ["".join([*map(one.push, ids[cut:]), one.flush()]) for one in (first, twin)]
    assert tails[0] == tails[1]
    assert head + tails[0] == "".join(deltas(tokenizer, ids))


@given(
    words=st.lists(
        st.sampled_from(["the", "quick", "fox", "name", "John", "tags", "42", ",", ".", "unaffable"]),
        min_size=1,
    )
)
def test_inexact_vocabularies_follow_the_decoder(words: list[str]) -> None:
    tokenizer = tiny.wordpiece()
    ids = tokenizer.encode(" ".join(words)).tolist()
    assert "".join(deltas(tokenizer, ids)) == tokenizer.backend_decode(ids, True)


def test_special_tokens_are_skipped_or_shown() -> None:
    tokenizer = tiny.byte_level()
    ids = tokenizer.encode("a<|im_end|>b").tolist()
    assert deltas(tokenizer, ids) == ["a", "", "b", ""]
    assert deltas(tokenizer, ids, skip=False) == ["a", "<|im_end|>", "b", ""]
