"""What the grammar tests share: vocabularies, slow oracles, and walks through masks."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any

import numpy as np

from sgl.grammars import Grammar, Matcher, Vocabulary
from sgl.grammars.algebra.expr import Expr
from sgl.grammars.automaton import native_automaton_core
from sgl.grammars.automaton.grammar_automaton import Automaton
from sgl.grammars.network.transition_network import TransitionNetwork

CORES = ("C", "python") if native_automaton_core.library() else ("python",)
JSON_PIECES = [
    b'{"',
    b'": ',
    b'":',
    b'", "',
    b'"}',
    b'"]',
    b"}}",
    b"]}",
    b"[1",
    b"null",
    b"true",
    b"false",
    b"0.",
    b"10",
    b"-1",
    b"the",
    b" quick",
    b"name",
    b'"name"',
    b"\\u00",
    b"\\n",
    b"e+",
    "é".encode(),
    "日本".encode(),
    "😀".encode(),
    b"20",
    b"\xc3",
    b"\xa9a",
    b"\x97\xa5",
    b"\xf0\x9f",
    b"ab",
    b"abc",
    b"\n  ",
    b",\n",
]


def many(usual: int) -> int:
    """How many random cases a test tries; `SGL_MANY=20000 pytest --timeout 0 ...` asks for so many of each."""
    return int(os.environ.get("SGL_MANY", usual))


def byte_vocabulary(extra: Iterable[bytes] = ()) -> Vocabulary:
    """Every single byte (id = byte), the extra tokens, and the end of sequence last."""
    tokens = [bytes([b]) for b in range(256)] + list(dict.fromkeys(extra)) + [b"<eos>"]
    return Vocabulary.from_bytes(tokens, [len(tokens) - 1])


def random_vocabulary(rng: random.Random, texts: Iterable[str]) -> Vocabulary:
    """Single bytes and random pieces of some texts, cut inside characters as well."""
    pieces: list[bytes] = []
    for text in texts:
        data = text.encode()
        for _ in range(12):
            start = rng.randrange(len(data) + 1)
            pieces.append(data[start : start + rng.randint(2, 6)])
    return byte_vocabulary(p for p in pieces if len(p) > 1)


def allowed(row: np.ndarray) -> set[int]:
    """The ids whose bits are set in a mask row."""
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def automaton(expr: Expr, vocabulary: Vocabulary, core: str) -> Automaton:
    return Automaton(TransitionNetwork(expr), vocabulary, core)


def tokens_by_bytes(machine: Automaton, state: int) -> set[int]:
    """A mask the slow way: every token's bytes one by one."""
    vocabulary = machine.vocabulary
    found = {i for i in vocabulary.text_ids if machine.advance(state, vocabulary.tokens[i]) >= 0}
    return found | (set(vocabulary.eos_ids) if machine.final(state) else set())


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether a text passes byte by byte, masks and acceptance agreeing all the way."""
    matcher = grammar.matcher()
    for byte in text.encode("utf-8", "surrogatepass"):
        shown = byte in allowed(matcher.mask())
        assert matcher.accept(byte) == shown
        if not shown:
            return False
    eos = grammar.vocabulary.eos_ids[0]
    assert (eos in allowed(matcher.mask())) == matcher.can_end
    return matcher.can_end


def as_digits(value: Any) -> Any:
    """The value with its whole numbers as integers, which is how a grammar writes them unless `integers` is "json"."""
    if isinstance(value, dict):
        return {name: as_digits(member) for name, member in value.items()}
    if isinstance(value, list):
        return [as_digits(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def walk(matcher: Matcher, rng: random.Random, most: int = 60) -> bytes:
    """A random text: tokens drawn from the masks, completed by `shortest_end` when it grows long."""
    vocabulary = matcher.automaton.vocabulary
    text = bytearray()
    for _ in range(most):
        choices = sorted(allowed(matcher.mask()))
        assert choices, f"no token is allowed after {bytes(text)!r}"
        token = rng.choice(choices)
        assert matcher.accept(token)
        if token in vocabulary.eos_ids:
            return bytes(text)
        text += vocabulary.tokens[token]
    end = matcher.shortest_end()
    for byte in end:
        assert matcher.accept(byte), (bytes(text), end)
    assert matcher.can_end
    return bytes(text + end)
