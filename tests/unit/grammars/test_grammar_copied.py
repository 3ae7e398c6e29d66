"""Strings that are pieces of a text: every piece and nothing else, against all pieces written out."""

import json
import random

import pytest
from grammar_support import CORES, JSON_PIECES, allowed, automaton, byte_vocabulary, many, random_vocabulary

from sgl.grammars import GrammarError, InvalidGrammarError, UnsupportedGrammarError, compile_json_schema, explain
from sgl.grammars.algebra.grammar_core_extension import extension
from sgl.grammars.automaton.grammar_matcher import Matcher
from sgl.grammars.copied.text_boundaries import CHARACTERS, WORDS, boundaries
from sgl.grammars.copied.text_pieces import TextPieces, text_pieces
from sgl.grammars.schema.schema_builder import SchemaOptions, canonical_schema, schema_expr

# few of each kind, so that pieces come again: letters, digits, points, an apostrophe, escapes, blanks, a combining
# mark and the letter with it, letters without spaces, beyond the first plane, a joiner and flags
ALPHABETS = (
    "ab",
    "ab ",
    "a1.,' ",
    'a"\\\n\t ',
    "e\u0301\u00e9 a",
    "\u4e2d\u6587a. ",
    "\U0001f600\U0001f44d\U0001f3fd\u200d\U0001f1e9\U0001f1ea ",
    "a\x00\x1f\x7f\u2028\u00e9",
    "1.2'b\u2019 ",
)


def random_text(rng):
    return "".join(rng.choice(rng.choice(ALPHABETS)) for _ in range(rng.randint(0, 14)))


def text_of_few(rng):
    alphabet = rng.choice(ALPHABETS)
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 16)))


def pieces_of(text, unit, ascii=False):
    """All pieces as JSON spells them, written out."""
    starts, ends, _ = boundaries(text, unit)
    whole = range(len(text) + 1)
    found = {text[i:j] for i in whole if starts[i] for j in whole[i + 1 :] if ends[j]}
    return {json.dumps(piece, ensure_ascii=ascii).encode() for piece in found}


def matcher_of(core, schema, vocabulary, **options):
    options = SchemaOptions.of(options)
    return Matcher(automaton(schema_expr(canonical_schema(schema)[0], options), vocabulary, core))


def string_of(text, unit):
    return {"type": "string", "x-copied": unit, "x-copied-from": text}


def expected(texts, written, vocabulary):
    """The tokens that may follow, by all the texts."""
    rest = [text[len(written) :] for text in texts if text.startswith(written)]
    heads = {text[:size] for text in rest for size in range(1, len(text) + 1)}
    found = {i for i in vocabulary.text_ids if vocabulary.tokens[i] in heads}
    return found | (set(vocabulary.eos_ids) if b"" in rest else set())


def check_walk(rng, core, matcher, texts, vocabulary):
    """Masks, forced texts and ends along a random way are what the texts say."""
    written = b""
    for _ in range(60):
        wanted = expected(texts, written, vocabulary)
        assert allowed(matcher.mask()) == wanted, (core, written)
        rest = [text[len(written) :] for text in texts if text.startswith(written)]
        assert len(matcher.shortest_end()) == min(map(len, rest))
        assert written + matcher.shortest_end() in texts
        forced = matcher.forced()
        assert all(text.startswith(forced) for text in rest)
        refused = set(vocabulary.text_ids) - wanted
        if refused:
            assert not matcher.accept(rng.choice(sorted(refused)))
        chosen = sorted(wanted - set(vocabulary.eos_ids))
        if not chosen:
            return
        token = rng.choice(chosen)
        assert matcher.accept(token)
        written += vocabulary.tokens[token]


@pytest.mark.parametrize("unit", [WORDS, CHARACTERS])
@pytest.mark.parametrize("core", CORES)
def test_masks_allow_every_piece_and_nothing_else(core, unit):
    rng = random.Random(f"{core} {unit}")
    for case in range(many(60)):
        text = (text_of_few if case % 2 else random_text)(rng)
        ascii = case % 5 == 4
        texts = pieces_of(text, unit, ascii)
        if not texts:
            with pytest.raises(InvalidGrammarError, match="allows no value"):
                matcher_of(core, string_of(text, unit), byte_vocabulary())
            continue
        vocabulary = random_vocabulary(rng, [text, *(piece.decode() for piece in sorted(texts)[:5])])
        matcher = matcher_of(core, string_of(text, unit), vocabulary, ascii=ascii)
        for _ in range(3):
            check_walk(rng, core, matcher.copy(), texts, vocabulary)


@pytest.mark.parametrize("core", CORES)
def test_pieces_in_objects_and_lists_with_other_values(core):
    """Two fields share the text; a token may end one value and begin the next."""
    rng = random.Random(core)
    for _ in range(many(12)):
        text, unit = text_of_few(rng)[:5], rng.choice([WORDS, CHARACTERS])
        piece = {"type": "string", "x-copied": unit}
        word = text[:2] if text.isascii() else "none"
        optional = {"anyOf": [piece, {"type": "null"}, {"enum": ["none", word]}]}
        schema = {
            "type": "object",
            "properties": {"a": optional, "b": {"type": "array", "items": optional, "maxItems": 2}},
            "required": ["a", "b"],
            "additionalProperties": False,
            "x-copied-from": text,
        }
        one = [*pieces_of(text, unit), b"null", b'"none"', json.dumps(word).encode()]
        lists = [b"[]", *(b"[%s]" % x for x in one), *(b"[%s,%s]" % (x, y) for x in one for y in one)]
        texts = {b'{"a":%s,"b":%s}' % (x, y) for x in rng.sample(one, min(len(one), 6)) for y in lists}
        whole = {b'{"a":%s,"b":%s}' % (x, y) for x in one for y in lists}
        joints = [x[-2:] + y[:2] for x in one for y in (b',"b":[', b",", b"]}")]
        vocabulary = byte_vocabulary([*JSON_PIECES, b'":"', b'","', b'["', *joints, *(x[:3] for x in one)])
        matcher = matcher_of(core, schema, vocabulary, whitespace="compact")
        assert texts <= whole
        check_walk(rng, core, matcher, whole, vocabulary)


@pytest.mark.skipif("C" not in CORES, reason="there is no C core")
def test_both_automata_read_the_same():
    rng = random.Random(5)
    for case in range(many(60)):
        text = (text_of_few if case % 2 else random_text)(rng)[:8]
        pieces = TextPieces(text, rng.choice([WORDS, CHARACTERS]), case % 3 == 0)
        spelled = pieces_of(text, pieces.key[1], pieces.key[2])
        reached = {piece[1:size] for piece in spelled for size in range(1, len(piece))}
        for written in reached:
            state = 0
            for byte in written:
                state = pieces.python.step(state, byte)
            assert state >= 0
            assert pieces.python.ends(state) == (b'"' + written + b'"' in spelled)
            assert {byte for byte in range(256) if pieces.python.live(state) >> byte & 1} == {
                other[len(written)] for other in reached if other.startswith(written) and len(other) > len(written)
            }
        if spelled:
            assert b'"' + pieces.shortest + b'"' in spelled
            assert len(extension().piece_end(pieces.native, 0)) == len(pieces.shortest) == len(pieces.python.end(0))


@pytest.mark.skipif("C" not in CORES, reason="there is no C core")
def test_the_automaton_is_linear_in_the_text():
    """Twice as many states as symbols; those within a character, and one for each point that may be in a word, more."""
    rng = random.Random(3)
    for alphabet in ("a", "ab", "ab ", "a1. ", "abcdefghijklmnopqrstuvwxyz ", "\u4e2d\u6587\u5b57"):
        text = "".join(rng.choice(alphabet) for _ in range(20_000))
        for unit in (WORDS, CHARACTERS):
            states, _ = extension().pieces_size(TextPieces(text, unit).native)
            assert states <= (2 + max(len(char.encode()) for char in alphabet) * 3) * len(text)
    states, _ = extension().pieces_size(TextPieces("ab" * 20_000, CHARACTERS).native)
    assert states <= 2 * 40_000


def test_what_is_no_border_of_a_word():
    text = "Don't pay $1,299.50, ok. e\u0301a \u4e2d\u6587 end.Next a_b \U0001f44d\U0001f3fd"
    pieces = pieces_of(text, WORDS)
    whole = ("Don't", "$1,299.50", "1,299.50", "ok", "e\u0301a", "\u4e2d", "\u6587", "end", "Next", "a_b", "pay $")
    for piece in whole:
        assert json.dumps(piece, ensure_ascii=False).encode() in pieces, piece
    for piece in ("Don", "t", "299.50", "1,299", "e", "\u0301a", "a_", " ok", "ok ", "e\u0301", "\U0001f44d", ""):
        assert json.dumps(piece, ensure_ascii=False).encode() not in pieces, piece
    assert b'"e"' not in pieces_of("e\u0301", CHARACTERS)  # a piece cuts no character from its marks
    assert pieces_of("e\u0301", CHARACTERS).isdisjoint(pieces_of("\u00e9", CHARACTERS))  # forms are as in the text


def test_what_cannot_be_copied_is_refused_by_name():
    vocabulary = byte_vocabulary()

    def refused(schema, match, kind=UnsupportedGrammarError):
        with pytest.raises(kind, match=match):
            compile_json_schema({"x-copied-from": "a b", **schema}, vocabulary)

    piece = {"type": "string", "x-copied": WORDS}
    for keyword in ({"maxLength": 3}, {"minLength": 1}, {"pattern": "a"}, {"format": "date"}):
        refused({**piece, **keyword}, "x-copied.*other keywords")
    refused({"type": "object", "propertyNames": piece}, "x-copied.*names")
    refused({"type": "array", "items": piece, "uniqueItems": True}, "uniqueItems")
    refused({"not": piece}, "not.*piece of a text")
    refused({"type": "string", "x-copied": "lines"}, "words, characters", InvalidGrammarError)
    refused({**piece, "x-copied-from": 3}, "must be a text", InvalidGrammarError)
    refused({**piece, "x-copied-from": "\ud800"}, "surrogate", InvalidGrammarError)
    refused({**piece, "x-copied-from": " \n"}, "no value", InvalidGrammarError)
    held = {"type": "string", "contentMediaType": "application/json", "contentSchema": piece}
    refused({**held, "x-content": "enforced"}, "x-copied.*JSON in a string")
    with pytest.raises(UnsupportedGrammarError, match="no text to copy from"):
        compile_json_schema(piece, vocabulary)
    with pytest.raises(GrammarError, match="copied_from=3"):
        compile_json_schema(piece, vocabulary, copied_from=3)


def test_the_text_may_be_an_option_and_constants_are_judged_by_it():
    vocabulary = byte_vocabulary()
    grammar = compile_json_schema({"type": "string", "x-copied": WORDS}, vocabulary, copied_from="one two")
    matcher = grammar.matcher()
    assert all(map(matcher.accept, b'"one two"'))
    schema = {"type": "string", "x-copied": WORDS, "enum": ["one", "on", "two"], "x-copied-from": "one two"}
    matcher = compile_json_schema(schema, vocabulary).matcher()
    assert allowed(matcher.mask()) == {ord('"')} and matcher.accept(ord('"'))
    assert allowed(matcher.mask()) == {ord("o"), ord("t")}
    assert [f.verdict for f in explain(schema) if f.keyword.startswith("x-")] == ["exact", "exact"]


def test_the_same_text_is_read_once():
    assert text_pieces("some text", WORDS) is text_pieces("some " + "text", WORDS)
    piece = {"type": "string", "x-copied": WORDS}
    schema = {"type": "array", "items": piece, "prefixItems": [piece, piece], "x-copied-from": "some text"}
    grammar = compile_json_schema(schema, byte_vocabulary())
    matcher = grammar.matcher()
    assert all(map(matcher.accept, b'["text","some","some text","te'))
    assert [pieces.key for pieces in grammar._automaton.network.texts] == [("some text", WORDS, False)]
