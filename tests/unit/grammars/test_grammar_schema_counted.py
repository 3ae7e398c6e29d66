"""Formats and patterns with bounds of length that are too large for one automaton, against plain judges."""

import json
import random
import re

import pytest
from grammar_support import CORES, accepts, allowed, byte_vocabulary, many, tokens_by_bytes, walk
from pydantic import BaseModel, HttpUrl

from sgl.grammars import Grammar, InvalidGrammarError, compile_json_schema
from sgl.grammars.algebra.counted_texts import CountedTexts
from sgl.grammars.algebra.expr import NEVER, CharClass
from sgl.grammars.algebra.language_operations import determined, matches
from sgl.grammars.regex import parse_regex
from sgl.grammars.schema.string_formats import format_expr, generated

VOCABULARY = byte_vocabulary([b"http", b"://", b"example.org", b"ab", b"aab", b"2020-", b'a"', b'"}'])
SAMPLES = {
    "uri": ["https://example.org/a?b=c#d", "a:", "urn:isbn:0451450523", "http://[::1]:80/", "not a uri", "//a"],
    "email": ["a@b", "john.doe@example.org", "a@b.c.d.e.f", "@b", "a b@c"],
    "date-time": ["2020-02-29T12:00:00Z", "2020-02-29T12:00:00.123456+01:00", "2021-02-29T12:00:00Z"],
    "hostname": ["a", "example.org", "a-b.c", "-a", "a" * 63 + ".b"],
    "iri": ["https://例え.jp/ü", "a:", "http://a/😀"],
}
BOUNDS = [(0, 10), (5, 100), (12, None), (1, 2083), (30, 33), (3, 25)]


def _inside(text, least, most):
    return least <= len(text) and (most is None or len(text) <= most)


def _schema(name, least, most):
    return {"type": "string", "format": name, "minLength": least, **({} if most is None else {"maxLength": most})}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("least, most", BOUNDS)
def test_formats_with_bounds_allow_exactly_their_texts(name, least, most):
    if name == "date-time" and most == 10:
        with pytest.raises(InvalidGrammarError, match="no value"):
            compile_json_schema(_schema(name, least, most), VOCABULARY)
        return
    grammar = compile_json_schema(_schema(name, least, most), VOCABULARY, digits=None)
    for text in SAMPLES[name]:
        right = matches(generated(format_expr(name)), text) and _inside(text, least, most)
        assert accepts(grammar, json.dumps(text, ensure_ascii=False)) == right, text


@pytest.mark.parametrize("name", SAMPLES)
def test_walks_stay_inside(name):
    rng = random.Random(name)
    for least, most in BOUNDS[1:]:
        grammar = compile_json_schema(_schema(name, least, most), VOCABULARY)
        for _ in range(2):
            text = json.loads(walk(grammar.matcher(), rng, 25))
            assert _inside(text, least, most) and matches(generated(format_expr(name)), text)


@pytest.mark.parametrize("core", CORES)
def test_masks_are_those_of_the_bytes(core):
    counted = _counted(parse_regex("(ab|aab|b{3})*(é|http://)?"), 7, 19)
    matcher, rng = Grammar(counted, VOCABULARY, core).matcher(), random.Random(2)
    for _ in range(8):
        assert allowed(matcher.mask()) == tokens_by_bytes(matcher.automaton, matcher.state)
        if not (choices := sorted(allowed(matcher.mask()) - set(VOCABULARY.eos_ids))):
            break
        assert matcher.accept(rng.choice(choices))


def _counted(language, least, most):
    graph = determined([language])
    return NEVER if graph is None else CountedTexts(graph, least, most, CharClass, _first).expr("text")


def _first(chars):
    return chr(chars[0][0]).encode()


def _random_pattern(rng, deep=3):
    kind = rng.randrange(4) if deep else 0
    if kind == 0:
        return rng.choice(["a", "b", "ab", "[ab]"])
    inner = [_random_pattern(rng, deep - 1) for _ in range(2)]
    return ["", f"({inner[0]}|{inner[1]})", inner[0] + inner[1], f"({inner[0]}){rng.choice(['*', '?', '{2}', '+'])}"][
        kind
    ]


def test_random_languages_within_bounds():
    rng = random.Random(8)
    texts = [""] + [format(i, f"0{n}b").translate({48: "a", 49: "b"}) for n in range(1, 8) for i in range(2**n)]
    for _ in range(many(60)):
        pattern, least = _random_pattern(rng), rng.randrange(5)
        most = rng.choice([None, least + rng.randrange(4)])
        right = {t for t in texts if re.fullmatch(pattern, t) and _inside(t, least, most)}
        expr = _counted(parse_regex(pattern), least, most)
        if expr == NEVER:
            assert not right
            continue
        grammar = Grammar(expr, VOCABULARY)
        assert {t for t in texts if accepts(grammar, t)} == right, (pattern, least, most)
        matcher = grammar.matcher()
        if right:
            assert len(matcher.shortest_end()) == min(map(len, right))


def test_ends_are_found_again_in_the_middle():
    grammar = compile_json_schema(
        {"type": "object", "properties": {"u": _schema("uri", 5, 2083)}, "required": ["u"]}, VOCABULARY
    )
    matcher = grammar.matcher()
    for start in (b"", b'{"u":', b'"http://', b"a"):
        assert all(matcher.accept(byte) for byte in start)
        end = matcher.shortest_end()
        twin = matcher.copy()
        assert all(twin.accept(byte) for byte in end) and twin.can_end and len(end) < 40


def test_ends_are_written_in_ascii():
    grammar = compile_json_schema(
        {"type": "string", "pattern": "^(é|ü)*$", "minLength": 9000, "maxLength": 9003}, VOCABULARY, ascii=True
    )
    matcher = grammar.matcher()
    end = matcher.shortest_end()
    assert end.isascii() and len(json.loads(end)) == 9000 and accepts(grammar, end.decode())


def test_models_of_pydantic():
    class Page(BaseModel):
        url: HttpUrl

    grammar = compile_json_schema(Page, VOCABULARY)
    assert accepts(grammar, '{"url": "https://example.org/"}')
    assert not accepts(grammar, '{"url": "https://example.org/' + "a" * 2064 + '"}')
    assert accepts(grammar, '{"url": "https://example.org/' + "a" * 2063 + '"}')


def test_bounds_that_leave_nothing():
    graph = determined([parse_regex(r"[^a]*a\n?[^a]*")])
    assert graph is not None and all(isinstance(chars, CharClass) for out in graph.edges for chars, _ in out)
    assert CountedTexts(graph, 3, 2, CharClass, lambda chars: b"x").expr("none") == NEVER


HOST, PUNYCODE = {"format": "hostname"}, "xn--X"
UNSURE = {
    "plain": (HOST, [PUNYCODE, "a b"], ["a.b", "a" * 63]),
    "not": ({"not": HOST}, [PUNYCODE, "a.b"], ["a b", "a." * 127]),
    "not not": ({"not": {"anyOf": [{"not": HOST}]}}, [PUNYCODE, "a b"], ["a.b"]),
    "one of": ({"oneOf": [HOST, {"pattern": "^xn"}]}, [PUNYCODE, "xn"], ["xn b", "ab"]),
    "if": ({"if": HOST, "then": {"maxLength": 1}}, [PUNYCODE, "ab"], ["a", "a b"]),
    "enum": ({"enum": [PUNYCODE, "ab", 1], **HOST}, [PUNYCODE], ["ab"]),
    "not enum": ({"not": {"enum": [PUNYCODE, "ab"], **HOST}}, [PUNYCODE, "ab"], ["a b", "abc"]),
    "not a regex": ({"anyOf": [{"not": {"format": "regex"}}, {"type": "integer"}]}, ["a", "((((((", "(?<n>a)"], []),
    "not an address": ({"not": {"format": "idn-email"}}, ["a@b", "@"], ["ab"]),
}


@pytest.mark.parametrize("name", UNSURE)
def test_what_no_grammar_can_tell_is_neither_in_a_format_nor_outside(name):
    schema, refused, accepted = UNSURE[name]
    grammar = compile_json_schema({"type": ["string", "integer"], **schema}, VOCABULARY)
    assert [t for t in refused if accepts(grammar, json.dumps(t))] == []
    assert [t for t in accepted if not accepts(grammar, json.dumps(t))] == []


def test_names_of_a_format():
    grammar = compile_json_schema({"type": "object", "propertyNames": HOST}, VOCABULARY)
    assert (
        accepts(grammar, '{"a.b": 1}') and not accepts(grammar, '{"xn--X": 1}') and not accepts(grammar, '{"a b": 1}')
    )
