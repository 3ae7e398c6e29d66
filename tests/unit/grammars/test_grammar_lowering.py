"""Lowering in C gives the tables of lowering in Python, byte for byte; names that are none of a schema's."""

import gc
import gzip
import itertools
import json
import random
from pathlib import Path

import pytest
from grammar_support import CORES, accepts, allowed, automaton, byte_vocabulary, many
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl.grammars import Grammar, compile_json_schema
from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import (
    EMPTY,
    NEVER,
    PLAIN_ALWAYS,
    PLAIN_REPEATED,
    Alt,
    AutomatonExpr,
    ByteClass,
    CharClass,
    Expr,
    GrammarRule,
    ListMember,
    Literal,
    LiteralSet,
    Repeat,
    RuleCall,
    SeparatedList,
    Seq,
    seq,
)
from sgl.grammars.algebra.grammar_core_extension import extension
from sgl.grammars.errors import GrammarError
from sgl.grammars.network.transition_network import TransitionNetwork
from sgl.grammars.regex.unicode_classes import general_category
from sgl.grammars.schema.json_spelling import FREE_TEXT, encode_chars, other_than
from sgl.grammars.schema.schema_builder import SchemaOptions, ascii_only, canonical_schema, schema_expr

BENCH = Path(__file__).parents[4] / "shared/data/jsonschemabench-dev.jsonl.gz"
VOCABULARY = byte_vocabulary()
needs_c = pytest.mark.skipif(extension() is None, reason="the C core is not built")


def _tables(network):
    """Everything of a network whose rules are all built; bodies are made once, so that expressions stay themselves."""
    rule = 0
    while rule < len(network.rules):
        body = network.rules[rule].build()
        network.rules[rule].build = lambda body=body: body
        network.build(rule)
        rule += 1
    tables = [list(network.nodes), list(network.edges), bytes(network.classes), list(network.entries)]
    return tables, network.rules


def _check_equal(expr):
    slow, fast = TransitionNetwork(expr, native=False), TransitionNetwork(expr)
    assert slow.native is None and fast.native is not None
    (tables, rules), (found, found_rules) = _tables(slow), _tables(fast)
    assert found == tables
    assert found_rules[1:] == rules[1:]


_code = st.one_of(
    st.integers(0, 0x80), st.integers(0x7F0, 0x810), st.integers(0, 0xD7FF), st.integers(0xE000, 0x10FFFF)
)
_charset = st.lists(st.tuples(_code, _code).map(lambda r: (min(r), max(r))), max_size=4).map(charset.normalise)
_bytes = st.builds(ByteClass, st.integers(0, 2**256 - 1), st.sampled_from([0, PLAIN_ALWAYS, PLAIN_REPEATED]))
_some = st.binary(max_size=6)
_words = st.lists(st.text("ab\x00é", max_size=5).map(str.encode), min_size=1, max_size=12)
_names = st.lists(st.text('ab\x7f"\\\n\x00/é日😀', max_size=4), min_size=1, max_size=6)
_few = st.integers(0, 5)
_bound = st.none() | st.integers(0, 6)
_leaf = st.one_of(
    _some.map(Literal),
    _bytes,
    _charset.map(CharClass),
    _words.map(lambda w: LiteralSet(tuple(sorted(set(w))))),
    _names.map(other_than),
    st.sampled_from([EMPTY, NEVER, FREE_TEXT]),
)


def _list_of(item):
    parts = st.lists(st.builds(ListMember, item, st.booleans()), max_size=5).map(tuple)
    return st.builds(SeparatedList, parts, st.none() | item, item, _few, _bound, item, item, st.booleans())


@st.composite
def _graph_of(draw, item):
    states = draw(st.integers(1, 4))
    edge = st.tuples(item, st.integers(0, states - 1))
    edges = draw(st.lists(st.lists(edge, max_size=3).map(tuple), min_size=states, max_size=states))
    return AutomatonExpr(tuple(edges), tuple(draw(st.lists(st.booleans(), min_size=states, max_size=states))))


def _inner(item):
    row = st.lists(item, max_size=4).map(tuple)
    return st.one_of(
        row.map(Seq),
        row.map(Alt),
        st.builds(Repeat, item, _few, _bound),
        _list_of(item),
        _graph_of(item),
        item.map(lambda body: RuleCall(GrammarRule("called", lambda: body))),
        item.map(lambda one: Seq((one, one, one))),
    )


_exprs = st.recursive(_leaf, _inner, max_leaves=12)


@needs_c
@settings(max_examples=many(400), deadline=None)
@given(_exprs)
def test_random_expressions(expr):
    _check_equal(expr)


@needs_c
@settings(max_examples=many(60), deadline=None)
@given(st.lists(st.integers(0, 0x110000), min_size=2, max_size=600))
def test_large_sets_of_characters(codes):
    pairs = zip(sorted(codes)[::2], sorted(codes)[1::2], strict=False)
    _check_equal(CharClass(charset.normalise(pairs)))


def test_a_class_of_characters_is_a_small_trie():
    """No node for each range, and none at all for a class that was there before."""
    letters = CharClass(general_category("L"))
    sizes = []
    for count in (1, 2):
        network = TransitionNetwork(Alt((letters, CharClass(general_category("L")))[:count]))
        network.build(0)
        sizes.append(len(network))
    assert sizes[0] < len(general_category("L")) and sizes[1] == sizes[0]


@needs_c
def test_many_words():
    rng = random.Random(5)
    words = {bytes(rng.choices(b"abcdefgh", k=rng.randint(0, 9))) for _ in range(3000)}
    _check_equal(LiteralSet(tuple(sorted(words | {bytes([b]) for b in range(256)}))))


@pytest.mark.whole
@needs_c
@pytest.mark.skipif(not BENCH.exists(), reason="the schemas are not here")
def test_schemas():
    with gzip.open(BENCH, "rt") as file:
        rows = list(itertools.islice((json.loads(line) for line in file), 0, 900, 8))
    compiled = 0
    for row in rows:
        try:
            expr = schema_expr(canonical_schema(row["schema"])[0], SchemaOptions.of({}))
        except GrammarError:
            continue
        _check_equal(expr)
        compiled += 1
    assert compiled > len(rows) // 2


@needs_c
def test_what_python_reads_follows_what_is_built():
    inner = GrammarRule("inner", lambda: Literal(b"xy"))
    network = TransitionNetwork(seq(Literal(b"a"), RuleCall(inner)))
    assert len(network) == 0 and list(network.entries) == [-1]
    network.build(0)
    before = len(network)
    assert before > 0 and list(network.entries)[1:] == [-1] and network.memory() > 20 * before
    network.build(1)
    assert len(network) == before + 3
    assert network.class_mask(network.node(network.entries[1])[1]) == 1 << ord("x")


@needs_c
@pytest.mark.parametrize(
    "expr,error",
    [
        (Literal("text"), TypeError),
        (Seq((None,)), TypeError),
        (Seq(7), TypeError),
        (ByteClass(1 << 256), OverflowError),
        (ByteClass(-1), OverflowError),
        (ByteClass("a"), TypeError),
        (CharClass(((0xD800, 0xD800),)), ValueError),
        (CharClass(((0, 0x110000),)), ValueError),
        (CharClass(((5, 9), (9, 11))), ValueError),
        (Repeat(Literal(b"a"), 2**40, None), OverflowError),
        (AutomatonExpr(((),), ()), ValueError),
        (AutomatonExpr((((EMPTY, 1),),), (True,)), IndexError),
        (SeparatedList((EMPTY,), None, EMPTY), TypeError),
        (LiteralSet((7,)), TypeError),
    ],
    ids=repr,
)
def test_what_is_malformed_raises(expr, error):
    with pytest.raises(error):
        TransitionNetwork(expr).build(0)


@needs_c
def test_what_is_nested_too_deeply_raises():
    expr = Literal(b"a")
    for _ in range(5000):
        expr = Seq((expr,))
    with pytest.raises(RecursionError):
        TransitionNetwork(expr).build(0)


@needs_c
def test_tables_are_given_back():
    """A rule that fails leaves the tables usable, and dropping networks in any state is safe."""
    flaky = GrammarRule("flaky", lambda: 1 / 0)
    for _ in range(50):
        network = TransitionNetwork(seq(Literal(b"a"), RuleCall(flaky)))
        network.build(0)
        with pytest.raises(ZeroDivisionError):
            network.build(1)
        flaky.build, broken = (lambda: Literal(b"b")), flaky.build
        network.build(1)
        flaky.build = broken
        assert network.entries[1] >= 0
        del network
    gc.collect()


def _other_than_by_graph(names):
    """The same language as a graph over characters, an edge for each."""
    trie, ends = [{}], set()
    for name in names:
        at = 0
        for char in name:
            at = trie[at].setdefault(char, len(trie))
            if at == len(trie):
                trie.append({})
        ends.add(at)
    sink = len(trie)
    edges = [
        (
            (seq(encode_chars(charset.complement(charset.of("".join(children))), PLAIN_ALWAYS), FREE_TEXT), sink),
            *((encode_chars(charset.single(char)), target) for char, target in children.items()),
        )
        for children in trie
    ]
    return AutomatonExpr((*edges, ()), (*(i not in ends for i in range(sink)), True))


_PIECES = [
    b"a",
    b"b",
    b"/",
    b"\x7f",
    b"\\",
    b'\\"',
    b"\\\\",
    b"\\n",
    b"\\/",
    b"\\u",
    b"000a",
    b"000A",
    b"00e9",
    b"00E9",
    b"0061",
    b"d83d",
    b"\\ude00",
    "é".encode(),
    "日".encode(),
    "😀".encode(),
    b"\xc3",
    b"\x0a",
]


@pytest.mark.few(1)
@pytest.mark.parametrize("core", CORES)
@settings(max_examples=many(120), deadline=None)
@given(_names, st.integers(0, 10**6))
def test_other_names_are_those_of_a_graph(core, names, seed):
    rng = random.Random(seed)
    found, wanted = (automaton(e, VOCABULARY, core) for e in (other_than(names), _other_than_by_graph(names)))
    spelled = [json.dumps(n, ensure_ascii=a)[1:-1].encode() for n in names for a in (True, False)]
    texts = [b"".join(rng.choices(_PIECES, k=rng.randint(0, 5))) for _ in range(40)] + spelled
    texts += [s + rng.choice(_PIECES) for s in spelled] + [s[:-1] for s in spelled]
    for text in texts:
        ends = [machine.advance(machine.start, text) for machine in (found, wanted)]
        assert (ends[0] < 0) == (ends[1] < 0), text
        if ends[0] >= 0:
            assert found.final(ends[0]) == wanted.final(ends[1]), text
            assert found.live(ends[0]) == wanted.live(ends[1]), text
            assert not (text in spelled and found.final(ends[0])), text


@pytest.mark.whole
@pytest.mark.parametrize("core", CORES)
@settings(max_examples=many(40), deadline=None)
@given(st.lists(st.text("abc", max_size=3), min_size=1, max_size=5, unique=True))
def test_other_names_by_brute_force(core, names):
    grammar = Grammar(other_than(names), VOCABULARY, core)
    for length in range(4):
        for name in map("".join, itertools.product("abcd", repeat=length)):
            assert accepts(grammar, name) == (name not in names), name


def test_other_names_without_characters_beyond_ascii():
    machine = automaton(ascii_only(other_than(["né", "a"])), byte_vocabulary(["né".encode(), b"xy"]), CORES[0])
    texts = {b"n": True, b"n\\u00e9": False, b"n\\u00E8": True, b"n\\u00e9x": True, b"a": False, b"xy": True}
    assert {t: machine.final(machine.advance(machine.start, t)) for t in texts} == texts
    assert {256, 257} & allowed(machine.mask(machine.start)) == {257}


def test_names_that_many_schemas_have():
    names = ["type", "title", "naïve", 'a"b', "tab\there", "", "日本", "日", "x" * 300]
    schema = {"properties": {n: {"type": "null"} for n in names}, "additionalProperties": {"type": "boolean"}}
    grammar = compile_json_schema({"type": "object", **schema}, VOCABULARY)
    for name in [*names, "typ", "types", "Ω", "日本語", "tab\n", 'a"', "naive", "x" * 299]:
        good, bad = ("null", "true") if name in names else ("true", "null")
        assert accepts(grammar, "{" + json.dumps(name) + ": " + good + "}"), name
        assert not accepts(grammar, "{" + json.dumps(name) + ": " + bad + "}"), name


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(("least", "levels"), [(1, 4), (0, 5), (2, 4), (3, 5)])
def test_repeats_of_repeats_beyond_some_copies_are_counted(core, least, levels):
    expr: Expr = Literal(b"a")
    for _ in range(levels):
        expr = Repeat(expr, max(least, 1), 3)
    machine = automaton(Alt((expr, EMPTY)) if not least else Seq((expr, Literal(b"b"))), VOCABULARY, core)
    state, ends = machine.start, []
    for count in range(3**levels + 2):
        if state < 0:
            break
        after = machine.advance(state, b"b") if least else state
        if after >= 0 and machine.final(after):
            ends.append(count)
        state = machine.advance(state, b"a")
    assert ends == list(range(max(least, 1) ** levels if least else 0, 3**levels + 1))


@pytest.mark.parametrize("core", CORES)
def test_deep_repeats_of_repeats_make_few_nodes(core):
    expr = Literal(b"a")
    for _ in range(40):
        expr = Repeat(Seq((expr, Literal(b"b"))), 1, 3)
    network = TransitionNetwork(expr)
    machine = automaton(expr, VOCABULARY, core)
    assert machine.advance(machine.start, b"a" + b"b" * 40) >= 0
    network.build(0)
    assert len(network.nodes) < 40_000
