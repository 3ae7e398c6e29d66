"""What the core makes of a vocabulary, against the plain code: tries, families, and when they are made."""

import random

import numpy as np
import pytest

from sgl.grammars import Vocabulary
from sgl.grammars.automaton.automaton_core_selection import core_name, prepare_vocabulary
from sgl.grammars.tokens import character_families, token_texts, token_trie
from sgl.grammars.tokens.character_families import FAMILIES, MOST_CHARS, CharacterFamily
from sgl.grammars.tokens.token_texts import TokenTexts
from sgl.grammars.tokens.token_trie import TokenTrie

PARTS = [
    b"a",
    b"b",
    b"\0",
    b"\xff",
    b'"',
    b"\\",
    b" ",
    b"\n",
    "é".encode(),
    "日".encode(),
    "\u2028".encode(),
    b"\xe2\x80",
    b"7",
]

pytestmark = pytest.mark.skipif(core_name() != "C", reason="the C core is not built")


def random_texts(seed: int) -> TokenTexts:
    """Of scattered tokens, some of them equal, some very long."""
    rng = random.Random(seed)
    count = rng.choice([0, 1, 2, 50, 400])
    texts = [b"".join(rng.choices(PARTS, k=rng.choice([1, 1, 2, 3, 9, 200]))) for _ in range(count)]
    ids = rng.sample(range(10 * count + 1), count)
    return TokenTexts.of(dict(zip(ids, texts, strict=True)), ids)


@pytest.mark.parametrize("seed", range(40))
def test_tries_are_those_of_the_plain_code(seed: int) -> None:
    texts = random_texts(seed)
    nodes, ids = token_trie.plain_trie(texts)
    found = TokenTrie(texts)
    assert found.nodes.dtype == nodes.dtype and (found.nodes == nodes).all() and (found.ids == ids).all()
    held = texts.as_dict()
    for node in range(len(found)):  # each token ends where the path spells it
        for token in found.ids[found.first[node] : found.first[node + 1]].tolist():
            assert len(held[token]) == found.depth[node] and held[token][-1] == found.byte[node]


@pytest.mark.parametrize("seed", range(40))
def test_families_are_those_of_the_plain_code(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = random_texts(seed)
    words = int(texts.ids.max(initial=0)) // 32 + 1
    made = [CharacterFamily(chars, texts, words) for chars in FAMILIES]
    for module in (character_families, token_trie):
        monkeypatch.setattr(module, "token_tables", lambda: None)
    for chars, found in zip(FAMILIES, made, strict=True):
        plain = CharacterFamily(chars, texts, words)
        assert (found.rows == plain.rows).all() and found.rows.shape == plain.rows.shape
        assert (found.exits.nodes == plain.exits.nodes).all() and (found.exits.ids == plain.exits.ids).all()


def test_rows_hold_the_tokens_up_to_a_length() -> None:
    tokens = [b"a", b"ab", b"abc", b'"', b"z" * (MOST_CHARS + 1)]
    family = CharacterFamily(FAMILIES[1], TokenTexts.of(tokens, range(5)), 1)
    assert family.rows[:, 0].tolist() == [0, 0b1, 0b11, 0b111]
    assert sorted(family.exits.ids.tolist()) == [3, 4]


def test_a_vocabulary_is_prepared_once() -> None:
    vocabulary = Vocabulary.from_bytes([b"a", b"ab", b""], [2])
    assert vocabulary.native is None
    prepare_vocabulary(vocabulary)
    made = vocabulary.native
    prepare_vocabulary(vocabulary)
    assert made is not None and vocabulary.native is made
    unreadable = Vocabulary.from_bytes([b"a", b""], [1])
    unreadable.exact = False
    prepare_vocabulary(unreadable)
    assert unreadable.native is None


def test_without_the_core_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_texts, "extension", lambda: None)
    token_texts.token_tables.cache_clear()
    assert token_texts.token_tables() is None
    token_texts.token_tables.cache_clear()


def test_texts_by_token() -> None:
    texts = TokenTexts.of({7: b"x", 3: b"yz"}, [7, 3])
    assert texts.as_dict() == {7: b"x", 3: b"yz"} and texts.starts.tolist() == [0, 1, 3]
    assert texts.data.tobytes() == b"xyz" and texts.ids.dtype == np.int32
