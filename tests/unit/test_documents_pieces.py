"""Pieces of documents: limits, overlap, borders, and that each character is in a piece."""

from __future__ import annotations

import re

import pytest
from document_files import pdf, shown
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sgl
from sgl.documents import Document, Piece, pieces, read
from sgl.lang.errors import BadValueError

LETTERS = st.sampled_from(list("ab .!?\n\u3002\u6f22\u00e9\f") + ["\n\n", "one ", "Two. ", "\U0001f600"])
TEXTS = st.lists(LETTERS, max_size=80).map("".join)


def words(text: str) -> int:
    """A tokenizer: a token for each word, for each mark, and for each run of white space but a space."""
    return len(re.findall(r" ?\w+|[^\w\s]|\s+", text))


def greedy_ends(text: str, tokens: int) -> int:
    """How few pieces could cover the text if they might end anywhere."""
    count = start = 0
    while start < len(text):
        end = start + 1
        while end < len(text) and words(text[start : end + 1]) <= tokens:
            end += 1
        start, count = end, count + 1
    return count


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(TEXTS, st.integers(2, 12), st.integers(0, 11))
def test_pieces_cover_the_text_within_the_limit(text, tokens, overlap):
    made = pieces(text, tokens, min(overlap, tokens - 1), tokenizer=words)
    done = 0
    for i, piece in enumerate(made):
        start, end = piece.span
        assert piece.index == i and piece.exact and piece.text == text[start:end]
        assert piece.tokens == words(piece.text) <= tokens
        assert start + piece.overlap == done < end
        assert words(text[start:done]) <= overlap or not piece.overlap
        done = end
    assert done == len(text) and (made or not text)
    assert len(made) <= 6 * max(1, greedy_ends(text, tokens)) or overlap


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(["a", "b c", "d e f", "g. h"]), min_size=1, max_size=20), st.integers(6, 9))
def test_pieces_end_at_paragraphs_where_these_fit(paragraphs, tokens):
    text = "\n\n".join(paragraphs)
    ends = {0, len(text)} | {found.end() for found in re.finditer("\n\n", text)}
    for piece in pieces(text, tokens, 3, tokenizer=words):
        assert set(piece.span) <= ends and piece.span.start + piece.overlap in ends


def test_long_paragraphs_are_cut_between_sentences_then_lines_then_words():
    def cut(text, tokens):
        return [piece.text for piece in pieces(text, tokens, tokenizer=words)]

    assert cut("One two. Three four. Five!", 4) == ["One two. ", "Three four. ", "Five!"]
    assert cut("a b\nc d\ne f", 3) == ["a b\n", "c d\n", "e f"]
    assert cut("a b c d e", 2) == ["a b", " c d", " e"]
    assert cut("\u6f22\u5b57\u3002\u6f22\u5b57\u3002", 2) == ["\u6f22\u5b57\u3002", "\u6f22\u5b57\u3002"]
    assert [len(one.text) for one in pieces("x" * 10, 4, tokenizer=len)] == [4, 4, 2]
    with pytest.raises(BadValueError, match="the character '\U0001f600' at 1 has more tokens than a piece"):
        pieces("a\U0001f600", 3, tokenizer=lambda text: len(text.encode()))


def test_overlap_is_whole_paragraphs():
    text = "a b c\n\nd\n\ne f g\n\nh"
    assert [one.text for one in pieces(text, 6, 3, tokenizer=words)] == ["a b c\n\nd\n\n", "d\n\ne f g\n\n", "h"]


def test_texts_whose_tokens_are_more_together_than_one_by_one():
    def crowd(text):
        return len(text) if len(text) < 5 else 2 * len(text)

    made = pieces("abc\n\ndef\n\n" * 5, 8, tokenizer=crowd)
    assert all(crowd(one.text) <= 8 for one in made) and "".join(one.text for one in made) == "abc\n\ndef\n\n" * 5


def test_a_long_text_is_counted_in_linear_time():
    for unit in ("word ", "x", "Short.\n\n", "A sentence of words. ", "\u6f22", " "):
        counted = []
        for size in (20_000, 200_000):
            seen = 0

            def count(text):
                nonlocal seen
                seen += len(text)
                return len(text) // 4 + 1

            text = unit * (size // len(unit))
            assert "".join(one.text for one in pieces(text, 100, tokenizer=count)) == text
            counted.append(seen)
        assert counted[1] < 11 * counted[0] and counted[1] < 4 * 200_000, unit


@pytest.fixture(scope="module")
def nano():
    with sgl.Engine() as engine:
        yield engine


def test_tokens_are_the_engines_or_estimated(nano):
    text = "We are four and would love a room in Rome. <|im_end|>\n\n" * 30
    exact = pieces(text, 100, 20, backend=nano)
    assert all(one.exact and one.tokens == len(nano.tokenizer.encode(one.text, parse_special=False)) for one in exact)
    estimated = pieces(text, 100, 20, backend=sgl.Scripted({}))
    assert all(not one.exact and one.tokens == -(-len(one.text) // 3) for one in estimated)
    assert pieces(text, 100, tokenizer=nano.tokenizer)[0].tokens <= 100


def test_pieces_of_a_document_have_places():
    document = read(pdf(*(shown((72, 700, f"Page {i} has words.")) for i in range(1, 6))))
    made = pieces(document, 12, tokenizer=words)
    assert [(one.place.page, one.place.last_page) for one in made] == [(1, 2), (3, 4), (5, 5)]
    assert isinstance(made[0], Piece) and made[0].document is document and "Document" not in repr(made[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"tokens": 2.5}, "tokens is 2.5"),
        ({"tokens": 5, "overlap": -1}, "overlap is -1"),
        ({"tokens": 5, "overlap": 5}, "must be longer"),
        ({"tokens": 5, "tokenizer": 7}, "tokenizer is 7"),
        ({"tokens": 5, "tokenizer": lambda text: None}, "tokenizer gave None"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(BadValueError, match=message):
        pieces("a b", **{"tokenizer": words, **arguments})
    with pytest.raises(BadValueError, match=r"sgl\.documents\.read\(path\)"):
        pieces(b"a", 5, tokenizer=words)
    assert pieces("", 5, tokenizer=words) == [] and pieces(Document(""), 5, tokenizer=words) == []
