"""Masks that begin with a family of characters: random grammars against brute force, and both cores step by step."""

import random

import pytest
from grammar_support import CORES, allowed, automaton, byte_vocabulary, tokens_by_bytes

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import Alt, ByteClass, CharClass, GrammarRule, Literal, Repeat, RuleCall, Seq, alt, seq
from sgl.grammars.regex import parse_regex
from sgl.grammars.schema.json_spelling import FREE_CHAR, FREE_TEXT, QUOTE
from sgl.grammars.schema.schema_builder import schema_expr
from sgl.grammars.schema.schema_document import SchemaOptions
from sgl.grammars.tokens.character_families import FAMILIES, MOST_CHARS, CharacterFamily

SETS = [
    charset.of("abc"),
    charset.of("éa"),
    charset.complement(charset.of("\n")),
    charset.complement(charset.of('"\\\n')),
    charset.minus(charset.ANY, charset.of(' "')),
    ((0x61, 0x7A),),
    ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)),
]
WORDS = [b'"', b"a", b"ab", b",", "é".encode(), b'": "', b" "]
PIECES = [
    b"a" * 5,
    b"ab" * 9,
    "éé".encode(),
    b"a" * 30,
    b'abc"',
    b'",',
    b'":',
    b'": "',
    b'ab"a',
    b"a\xc3",
    b"\xa9a",
    b"\\n",
    b"a\\n",
    b"\\u00",
    b"a\n",
    b'bca" ',
    b"zz",
    b"a1",
    b'"a"',
    b'""',
    b"()",
    b"((",
    b'aaaa"',
    b"ab,ab",
    "a日".encode(),
    "\u2028".encode(),
    b"\xe2\x80",
    b"a b c",
    b"b" * 12 + b'"',
]


class Grammars:
    """Random expressions with rules that may call themselves after a byte."""

    def __init__(self, rng):
        self.rng = rng
        self.rules = [GrammarRule(f"r{i}", lambda i=i: self.bodies[i]) for i in range(rng.randint(0, 3))]
        self.bodies = [self._body() for _ in self.rules]

    def _body(self):
        opening = Literal(self.rng.choice([b"(", b'"', b"a"]))
        return seq(opening, alt(self.expr(3), Literal(b")")))

    def expr(self, depth):
        kinds = [self._literal, self._chars] * 2
        if depth:
            kinds += [self._seq] * 2 + [self._alt, self._text, self._repeat, self._repeat]
            kinds += [self._call] * bool(self.rules)
        return self.rng.choice(kinds)(depth - 1)

    def _literal(self, _):
        return Literal(self.rng.choice(WORDS))

    def _chars(self, _):
        return CharClass(self.rng.choice(SETS))

    def _seq(self, depth):
        return seq(*(self.expr(depth) for _ in range(self.rng.randint(2, 3))))

    def _alt(self, depth):
        return alt(*(self.expr(depth) for _ in range(self.rng.randint(2, 3))))

    def _text(self, _):
        bounded = Repeat(FREE_CHAR, self.rng.choice([0, 3, 20]), self.rng.choice([20, 30, 60]))
        return seq(self.rng.choice([FREE_TEXT, bounded]), QUOTE)

    def _repeat(self, depth):
        item = self.expr(depth)
        least = self.rng.choice([0, 0, 1, 2, 9, 20])
        most = self.rng.choice([None, None, max(least, 1) + self.rng.randint(0, 4), least + 10, least + 60])
        return Repeat(CharClass(self.rng.choice(SETS)) if nullable(item) else item, least, most)

    def _call(self, _):
        return RuleCall(self.rng.choice(self.rules))


def nullable(expr):
    match expr:
        case Literal(data):
            return not data
        case Seq(items):
            return all(map(nullable, items))
        case Alt(items):
            return any(map(nullable, items))
        case Repeat(item, minimum, _):
            return minimum == 0 or nullable(item)
    return False


def random_case(seed):
    rng = random.Random(seed)
    expr = Grammars(rng).expr(4)
    extra = [bytes(rng.choices(b'abc" ,z1\xc3\xa9', k=rng.randint(2, 7))) for _ in range(30)]
    return rng, expr, byte_vocabulary([*PIECES, *extra])


def random_text(rng, machine, most, twin=None):
    """Byte after byte of a random text, those that families are made of preferred; yields the states.

    A twin goes the same way and must be in the same states.
    """
    state = machine.start
    for _ in range(most if state >= 0 else 0):
        yield state
        live = [b for b in range(256) if machine.live(state) >> b & 1]
        if not live:
            return
        usual = [b for b in live if b in b'abc"z ']
        byte = bytes([rng.choice(usual if usual and rng.random() < 0.85 else live)])
        assert twin is None or twin.advance(state, byte) == machine.advance(state, byte)
        state = machine.advance(state, byte)


@pytest.mark.few(2)
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("part", range(4))
def test_masks_of_random_grammars_are_those_of_brute_force(core, part):
    for seed in range(part * 40, part * 40 + (40 if core == "C" else 5)):
        rng, expr, vocabulary = random_case(seed)
        machine = automaton(expr, vocabulary, core)
        for _ in range(2):
            for state in random_text(rng, machine, 25):
                assert allowed(machine.mask(state)) == tokens_by_bytes(machine, state), seed


@pytest.mark.whole
@pytest.mark.skipif(len(CORES) < 2, reason="the C core is not built")
def test_both_cores_make_the_same_states_for_their_masks():
    for seed in range(30):
        rng, expr, vocabulary = random_case(seed)
        fast, slow = (automaton(expr, vocabulary, core) for core in CORES)
        for state in random_text(rng, fast, 20, slow):
            assert (fast.mask(state) == slow.mask(state)).all(), seed
            assert fast.core.size() == slow.core.size(), seed


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("pattern", [".{0,200}", "[a-z ]+", "[a-z]{3,40}x", r"[A-Za-z_]\w*", r"\S+\s?", "(a|[a-z]b)*"])
def test_dense_regexes(pattern, core):
    rng = random.Random(pattern)
    vocabulary = byte_vocabulary(PIECES)
    machine = automaton(parse_regex(pattern), vocabulary, core)
    for state in random_text(rng, machine, 30):
        assert allowed(machine.mask(state)) == tokens_by_bytes(machine, state)


@pytest.mark.parametrize("core", CORES)
def test_one_rule_called_from_many_places_is_walked_once(core):
    properties = {name: {"type": "string"} for name in ("one", "two", "three", "four")}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    vocabulary = byte_vocabulary(PIECES)
    machine = automaton(schema_expr(schema, SchemaOptions()), vocabulary, core)
    text, made = b"{", []
    for i, name in enumerate(properties):
        text += b", " * bool(i) + f'"{name}": "a'.encode()
        before = machine.core.size()
        machine.mask(machine.advance(machine.start, text))
        made.append(machine.core.size() - before - len(text))
        text += b'"'
    assert max(made[1:]) < made[0]


def test_a_family_splits_the_tokens():
    vocabulary = byte_vocabulary([*PIECES, b"x" * (MOST_CHARS + 5)])
    for chars in FAMILIES:
        family = CharacterFamily(chars, vocabulary.texts, vocabulary.words)
        pure = allowed(family.rows[-1].view("int32"))
        for i in vocabulary.text_ids:
            text = vocabulary.tokens[i].decode("utf-8", "replace")
            whole = all(charset.contains(chars, ord(c)) for c in text) and text.encode() == vocabulary.tokens[i]
            assert (i in pure) == (whole and len(text) <= MOST_CHARS)
        assert sorted(family.exits.ids.tolist()) == sorted(set(vocabulary.text_ids) - pure)


@pytest.mark.parametrize("core", CORES)
def test_counts_that_move_by_different_ways_are_kept_apart(core):
    """Bytes of two classes meet in one loop with different counts."""
    item = Alt((ByteClass(1 << 0x61), seq(ByteClass((1 << 0x7B) - (1 << 0x61)), Literal(b"y"))))
    expr = seq(Repeat(item, 2, 40), Literal(b'"'))
    rng, vocabulary = random.Random(1), byte_vocabulary([*PIECES, b"ay" * 6, b"ya" * 5])
    machine = automaton(expr, vocabulary, core)
    for _ in range(3):
        for state in random_text(rng, machine, 45):
            assert allowed(machine.mask(state)) == tokens_by_bytes(machine, state)
