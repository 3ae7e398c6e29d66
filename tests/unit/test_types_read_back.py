"""`gen("x", T)` promises a text that T reads: random texts of each type's grammar are read, or the type is refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from grammar_walks import WalkBackend, compile_grammar_argument
from typed_kinds import READABLE, REFUSED, kind_of, needs

from sgl.grammars import Grammar
from sgl.lang.errors import BadValueError
from sgl.lang.sampling.options import SamplingOptions
from sgl.lang.typed import reading_of

BACKEND = WalkBackend()
CODES = [code for rows in READABLE.values() for code, _ in rows]
STRUCTURE = frozenset(b'",:[{}]')


def wander(grammar: Grammar, rng: random.Random) -> str:
    """A text that a grammar allows: long ones and short ones, some that open much and come to an end late."""
    matcher, text = grammar.matcher(), bytearray()
    most, end = rng.choice([3, 20, 60, 200]), rng.choice([0.02, 0.1, 0.4])
    structure, beyond = rng.choice([0.0, 0.3, 0.6]), rng.choice([0.02, 0.3])
    while len(text) < most and not matcher.finished:
        if matcher.can_end and rng.random() < end:
            return text.decode()
        allowed = np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")[:256])
        plain = allowed[(allowed >= 32) & (allowed < 127)]
        marks = [byte for byte in plain if int(byte) in STRUCTURE]
        pool = (
            marks if marks and rng.random() < structure else plain if len(plain) and rng.random() > beyond else allowed
        )
        byte = int(rng.choice(pool))
        assert matcher.accept(byte)
        text.append(byte)
    return (bytes(text) + matcher.shortest_end()).decode()


def kind_or_skip(code: str) -> Any:
    if library := needs(code):
        pytest.importorskip(library)
    return kind_of(code)


def read_walks(code: str, count: int) -> None:
    reading = reading_of(kind_or_skip(code))
    grammar = compile_grammar_argument(reading.constrain(SamplingOptions(), BACKEND))
    if grammar is None:  # of str
        assert code == "str"
        return
    rng = random.Random(code)
    for _ in range(count):
        reading.read(wander(grammar, rng), BACKEND)


@pytest.mark.few(60)
@pytest.mark.parametrize("code", CODES)
def test_what_the_grammar_of_a_type_allows_is_read(code):
    read_walks(code, 12)


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.parametrize("code", CODES)
def test_long_walks_are_read(code):
    read_walks(code, 500)


@pytest.mark.parametrize("code", [code for codes in REFUSED.values() for code in codes])
def test_what_cannot_be_promised_is_refused_by_name(code):
    kind = kind_or_skip(code)
    with pytest.raises(BadValueError, match=r"cannot be (enforced|written as JSON)"):
        reading_of(kind).constrain(SamplingOptions(), BACKEND)
