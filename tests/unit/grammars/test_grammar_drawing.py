"""Pictures of automata: every character's move is drawn, small automata whole, large ones rule by rule."""

import random
import re
from xml.etree import ElementTree

import pytest

from sgl.grammars import Vocabulary, compile_choices, compile_json_schema, compile_regex
from sgl.grammars.algebra import charset
from sgl.grammars.drawing import draw
from sgl.grammars.drawing.automaton_exploration import moves
from sgl.grammars.drawing.automaton_folding import pictures
from sgl.grammars.drawing.charset_labels import describe

VOCABULARY = Vocabulary.from_bytes([bytes([i]) for i in range(256)] + [b""], [256])
PATTERNS = [r"[a-z]+\d?", r"[^\x00-\u07ff]x|y", r"[à-ÿ€-⛿😀-😏]{1,3}", r".", r"(ab|ac)*d", r"\w{2,4}é?"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_moves_are_those_of_every_character(pattern):
    automaton = compile_regex(pattern, VOCABULARY).automaton
    pick = random.Random(pattern)
    ends = [end for low, high in charset.ANY for end in (low, high)] + [0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x10000]
    codes = ends + [ord(c) for c in "az09éàÿ€⛿😀😏 \n"] + pick.choices(range(0xD800), k=300)
    state = automaton.start
    for _ in range(4):
        found = moves(automaton, state)
        for code in codes:
            target = automaton.advance(state, chr(code).encode())
            drawn = [t for t, chars in found.items() if charset.contains(chars, code)]
            assert drawn == ([target] if target >= 0 else [])
        if not found:
            break
        state = pick.choice(list(found))


def test_a_small_automaton_is_drawn_whole():
    (picture,) = pictures(compile_choices(["cat", "car", "dog"], VOCABULARY).automaton, 60)
    assert picture.boxes.count(True) == 1 and not picture.cut
    assert sorted(picture.arrows.values()) == ["ca", "dog", "r t"]


@pytest.mark.whole
def test_a_large_one_is_drawn_rule_by_rule():
    schema = {"type": "object", "properties": {f"key{i}": {"type": "string"} for i in range(30)}}
    found = pictures(compile_json_schema(schema, VOCABULARY).automaton, 60)
    assert len(found) > 1 and found[0].title == "root"
    assert "key" in found[1].arrows.values()
    assert any(label.startswith("‹") for p in found for label in p.arrows.values())


@pytest.mark.whole
@pytest.mark.parametrize("source", [".{0,2000}", "(a|b)*abb", r"[0-9]{4}-(0[1-9]|1[0-2])"])
def test_the_file_is_valid_and_names_all_arrows(source):
    grammar = compile_regex(source, VOCABULARY)
    root = ElementTree.fromstring(draw(grammar.automaton, f"regex {source} <&>"))
    arrows = sum(len(p.arrows) for p in pictures(grammar.automaton, 60))
    drawn = [e for e in root.iter() if e.tag.endswith("path") and "marker-end" in e.attrib]
    assert len(drawn) == arrows + len(pictures(grammar.automaton, 60))
    assert all(re.fullmatch(r"-?[\d.]+", e.attrib["x"]) for e in root.iter() if e.tag.endswith("text"))


def test_recursion_ends():
    schema = {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}
    assert "‹[ at #/$defs/t›" in draw(compile_json_schema(schema, VOCABULARY).automaton)


@pytest.mark.parametrize(
    ("chars", "words"),
    [
        (charset.ANY, "any"),
        (charset.complement(charset.of('"\\')), 'any but " \\\\'),
        (charset.normalise([(0x61, 0x7A), (0x20, 0x20)]), "␣ a-z"),
    ],
)
def test_labels(chars, words):
    assert describe(chars) == words
