"""What threads carry beside their node: frames of calls, counts of loops, subsets of lists in any order."""

import itertools
import random

import pytest
from grammar_support import CORES, allowed, automaton, byte_vocabulary, tokens_by_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl.grammars.algebra.expr import (
    EMPTY,
    GrammarRule,
    ListMember,
    Literal,
    RuleCall,
    SeparatedList,
    alt,
    repeat,
    seq,
    words,
)
from sgl.grammars.automaton.grammar_automaton import GUESSED, Automaton
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.network.transition_network import TransitionNetwork
from sgl.grammars.schema.unproductive_rules import unproductive_rules

VOCABULARY = byte_vocabulary([b"ab", b"a,", b",b", b",a,", b"]]"])
LONGEST = 6
_words = st.lists(st.sampled_from([b"a", b"b", b"ab", b"ba", b"aa"]), min_size=1, max_size=2).map(words)
_parts = st.lists(st.builds(ListMember, _words, st.booleans()), max_size=4).map(tuple)


def _lists(parts=_parts, extra=st.none() | _words):
    return st.builds(
        lambda p, e, least, most, opening, closing: SeparatedList(
            p, e, Literal(b","), least, most, Literal(opening), Literal(closing), ordered=False
        ),
        *(parts, extra, st.integers(0, 3), st.none() | st.integers(0, 4)),
        *(st.sampled_from([b"", b"["]), st.sampled_from([b"", b"]"])),
    )


def _spelled(item):
    return item.words if hasattr(item, "words") else (item.data,)


def _arrangements(joined, count):
    """Every order of so many members: each part at most once, the required ones among them, extras at will."""
    extra = len(joined.parts)
    items = [part.item for part in joined.parts] + ([] if joined.extra is None else [joined.extra])
    required = {i for i, part in enumerate(joined.parts) if part.required}
    for order in itertools.product(range(len(items)), repeat=count):
        used = [i for i in order if i != extra]
        if len(set(used)) == len(used) and required <= set(used):
            yield [items[i] for i in order]


def _language(joined):
    """All texts of a list of at most LONGEST bytes, by brute force."""
    found = set()
    for count in range(
        joined.minimum, 1 + min(LONGEST // 2 + 1, LONGEST if joined.maximum is None else joined.maximum)
    ):
        around = (joined.opening.data, joined.closing.data) if count else (b"", b"")
        for items in _arrangements(joined, count):
            for members in itertools.product(*map(_spelled, items)):
                found.add(around[0] + b",".join(members) + around[1])
    return {text for text in found if len(text) <= LONGEST}


def _texts(machine):
    """Every viable text of at most LONGEST bytes with its state."""
    found = {b"": machine.start} if machine.start >= 0 else {}
    for text, state in (queue := list(found.items())):
        for byte in range(256) if len(text) < LONGEST else ():
            if machine.live(state) >> byte & 1:
                longer = text + bytes([byte])
                found[longer] = machine.advance(state, bytes([byte]))
                queue.append((longer, found[longer]))
    return found


def _check_ends(machine, texts, language):
    """Every viable text can be completed, by a shortest text."""
    for text, state in texts.items():
        end = machine.shortest_end(state)
        assert machine.final(machine.advance(state, end)), (text, end)
        known = [len(t) - len(text) for t in language if t.startswith(text)]
        assert len(end) == min(known, default=len(end)), (text, end)
        assert text + end in language or len(text + end) > LONGEST


@pytest.mark.parametrize("core", CORES)
@settings(max_examples=60, deadline=None)
@given(joined=_lists())
def test_lists_in_any_order_are_those_of_brute_force(core, joined):
    machine = automaton(joined, VOCABULARY, core)
    language = _language(joined)
    texts = _texts(machine)
    assert {text for text, state in texts.items() if machine.final(state)} == language
    _check_ends(machine, texts, language)


_nested = _lists(
    st.lists(
        st.builds(ListMember, _words | _lists().map(lambda inner: alt(inner, Literal(b"c"))), st.booleans()),
        min_size=1,
        max_size=3,
    ).map(tuple)
)


def _repeated(joined):
    return seq(repeat(seq(joined, Literal(b";")), 2, 5), joined)


@pytest.mark.skipif(len(CORES) < 2, reason="the C core is not built")
@settings(max_examples=60, deadline=None)
@given(_nested.map(_repeated), st.integers(0, 10**6))
def test_both_cores_keep_the_same_registers(expr, seed):
    """Threads, frames, subsets and masks, state by state, with lists in lists and in counted loops."""
    rng = random.Random(seed)
    fast, slow = (automaton(expr, VOCABULARY, core) for core in CORES)
    left, right = fast.start, slow.start
    for _ in range(25):
        assert left == right
        if left < 0:
            return
        assert fast.core.threads(left) == slow.core.threads(right)
        for _, _, frame in fast.core.threads(left):
            assert fast.core.frame(frame) == slow.core.frame(frame)
        assert allowed(fast.mask(left)) == allowed(slow.mask(right)) == tokens_by_bytes(fast, left)
        end = fast.shortest_end(left)
        assert end == slow.shortest_end(right) and fast.final(fast.advance(left, end))
        assert slow.final(slow.advance(right, end))
        choices = sorted(allowed(fast.mask(left)) - set(VOCABULARY.eos_ids))
        if not choices:
            break
        token = rng.choice(choices)
        left, right = fast.move(left, token), slow.move(right, token)
    subsets = len(slow.core.registers.subsets)
    assert [fast.core.subset(i) for i in range(subsets)] == [slow.core.subset(i) for i in range(subsets)]


def _nest(depth):
    """Rules that each call the next one in two ways which only the end of the text tells apart."""
    inner = RuleCall(GrammarRule("innermost", lambda: repeat(Literal(b"x"), 1, 9)))
    for _ in range(depth):
        body = alt(seq(Literal(b"("), inner, Literal(b")")), seq(Literal(b"("), inner, Literal(b"]")))
        inner = RuleCall(GrammarRule("level", lambda body=body: body))
    return inner


@pytest.mark.parametrize("core", CORES)
def test_callers_at_one_place_share_a_frame(core):
    machine = automaton(seq(_nest(30), Literal(b".")), VOCABULARY, core)
    inside = machine.advance(machine.start, b"(" * 30 + b"xx")
    assert len(machine.core.threads(inside)) <= 3
    ends = bytes(random.Random(5).choice(b")]") for _ in range(30))
    assert machine.final(machine.advance(inside, ends + b"."))
    assert machine.advance(inside, ends + b")") < 0
    assert machine.shortest_end(inside) == b")" * 30 + b"."


def test_left_recursion_is_refused_with_a_reason():
    rule = GrammarRule("sum", lambda: alt(seq(RuleCall(rule), Literal(b"+1")), Literal(b"1")))
    for core in CORES:
        with pytest.raises(GrammarLimitError):
            automaton(RuleCall(rule), VOCABULARY, core)


_symbols = st.sampled_from(["a", "b", 0, 1, 2, (0, 1, 2), (1, 0, 1), (2, 1, None), (0, 4, 5), ("a", 2, 5)])
_alternatives = st.lists(st.tuples(st.sampled_from("ab"), st.lists(_symbols, max_size=3)), min_size=1, max_size=3)
_recursive = st.lists(_alternatives, min_size=3, max_size=3)


def _rules(bodies):
    """Three rules; an alternative is a letter, then letters, calls (their numbers) and repeats of either."""
    rules = [
        GrammarRule(f"r{i}", lambda i=i: alt(*(seq(*map(item, (a, *rest))) for a, rest in bodies[i]))) for i in range(3)
    ]

    def item(symbol):
        if isinstance(symbol, tuple):
            return repeat(item(symbol[0]), *symbol[1:])
        return RuleCall(rules[symbol]) if isinstance(symbol, int) else Literal(symbol.encode())

    return RuleCall(rules[0])


def _short(texts):
    return {text for text in texts if len(text) <= LONGEST}


def _spell(symbol, known):
    """The short texts of a symbol, of what is known of the rules."""
    if not isinstance(symbol, tuple):
        return known[symbol] if isinstance(symbol, int) else {symbol}
    item, least, most = symbol
    found, power = set(), {""}
    for count in range(LONGEST + 1 if most is None else most + 1):
        found |= power if count >= least else set()
        power = _short(left + right for left in power for right in _spell(item, known))
    return found


def _derived(bodies):
    """All short texts of the first rule, as a least fixed point."""
    known = [set(), set(), set()]
    while True:
        before = [set(texts) for texts in known]
        for texts, alternatives in zip(known, bodies, strict=True):
            for first, rest in alternatives:
                row = {first}
                for symbol in rest:
                    row = _short(left + right for left in row for right in _spell(symbol, before))
                texts |= row
        if known == before:
            return {text.encode() for text in known[0]}


@settings(max_examples=150, deadline=None)
@given(_recursive)
def test_recursive_rules_are_those_of_brute_force(bodies):
    """Ambiguous callers that share frames, last calls and counted loops, against the derivations; and both cores."""
    left, *right = (automaton(_rules(bodies), VOCABULARY, core) for core in CORES)
    accepted = set()
    for text, state in _texts(left).items():
        if left.final(state):
            accepted.add(text)
        for other in right:
            twin = other.advance(other.start, text)
            assert left.core.threads(state) == other.core.threads(twin) and left.final(state) == other.final(twin)
    assert accepted == _derived(bodies)


@settings(max_examples=60, deadline=None)
@given(_recursive)
def test_recursive_rules_end_soonest(bodies):
    machine = automaton(_rules(bodies), VOCABULARY, CORES[0])
    language = _derived(bodies)
    for text, state in _texts(machine).items():
        known = [t for t in language if t.startswith(text)]
        if known:
            end = machine.shortest_end(state)
            assert text + end in language and len(text + end) == min(map(len, known))


def _keys(count, required=0, extra=None, most=None):
    parts = tuple(ListMember(Literal(b'"key%d": 1' % i), i < required) for i in range(count))
    return SeparatedList(parts, extra, Literal(b", "), 0, most, Literal(b"{"), Literal(b"}"), ordered=False)


@pytest.mark.parametrize("core", CORES)
def test_a_hundred_optional_keys_in_any_order(core):
    machine = automaton(_keys(100), VOCABULARY, core)
    order = list(range(100))
    random.Random(3).shuffle(order)
    members = [b'"key%d": 1' % i for i in order]
    state = machine.advance(machine.start, b"{" + b", ".join(members))
    assert machine.live(state) == 1 << ord("}")
    assert machine.core.size() < 2000
    assert machine.advance(machine.start, b'{"key7": 1, "key7"') < 0


def test_the_last_free_place_is_kept_for_a_required_key():
    machine = automaton(_keys(6, required=2, extra=Literal(b'"x": 1'), most=3), VOCABULARY, CORES[0])
    assert machine.advance(machine.start, b'{"key5": 1, "') >= 0
    assert machine.advance(machine.start, b'{"key5": 1, "x') < 0
    full = machine.advance(machine.start, b'{"key5": 1, "key1": 1, "key0": 1')
    assert machine.live(full) == 1 << ord("}")


@pytest.mark.parametrize("most", (None, 3))
def test_shortest_end_takes_the_cheapest_members(most):
    parts = tuple(ListMember(Literal(b"m" * (9 - i)), i == 0) for i in range(4))
    joined = SeparatedList(
        parts, Literal(b"eeeeeee"), Literal(b","), 3, most, Literal(b"["), Literal(b"]"), ordered=False
    )
    machine = automaton(joined, VOCABULARY, CORES[0])
    assert machine.shortest_end(machine.start) == b"[mmmmmmmmm,mmmmmm,eeeeeee]"


def _items(last):
    """A list by right recursion: one item, a comma, and the list again."""
    rule = GrammarRule(
        "list", lambda: alt(seq(Literal(b"ab"), Literal(b","), RuleCall(rule)), seq(Literal(b"ab"), last))
    )
    return RuleCall(rule)


@pytest.mark.parametrize("core", CORES)
def test_right_recursion_runs_in_constant_space(core):
    machine = automaton(seq(Literal(b"<"), _items(EMPTY), Literal(b">")), VOCABULARY, core)
    state = machine.advance(machine.start, b"<" + b"ab," * 100_000 + b"ab")
    assert machine.live(state) == 1 << ord(",") | 1 << ord(">")
    assert machine.core.size() < 10
    assert machine.shortest_end(machine.advance(state, b",")) == b"ab>"


@pytest.mark.parametrize("core", CORES)
def test_a_last_call_within_a_counted_loop_returns_to_it(core):
    machine = automaton(repeat(seq(Literal(b"("), _items(EMPTY), Literal(b")")), 4, 9), VOCABULARY, core)
    text = b"(ab,ab,ab)" * 3
    assert not machine.final(machine.advance(machine.start, text))
    assert machine.final(machine.advance(machine.start, text + b"(ab)"))
    assert machine.shortest_end(machine.advance(machine.start, text)) == b"(ab)"
    assert machine.advance(machine.start, text * 3 + b"(") < 0


def test_lists_that_cannot_end_are_unproductive():
    crowded = GrammarRule(
        "crowded", lambda: SeparatedList(tuple(ListMember(Literal(x), True) for x in (b"a", b"b")), None, EMPTY, 0, 1)
    )
    looped = GrammarRule(
        "looped", lambda: SeparatedList((ListMember(RuleCall(looped), True),), None, EMPTY, ordered=False)
    )
    fine = GrammarRule(
        "fine", lambda: SeparatedList((ListMember(RuleCall(looped), False),), Literal(b"a"), EMPTY, 2, ordered=False)
    )
    assert unproductive_rules([crowded, looped, fine]) == {crowded, looped}


def test_a_list_that_nothing_satisfies_is_dead():
    network = TransitionNetwork(alt(_keys(3, required=2, most=1), Literal(b"x")))
    network.build(0)
    assert len(network) < 10


def _rooms(core, limit):
    """How many states an automaton makes of a long counted text before it gives up."""
    machine = Automaton(TransitionNetwork(repeat(Literal(b"ab"), 1, 10_000)), VOCABULARY, core, limit)
    with pytest.raises(GrammarLimitError):
        machine.advance(machine.start, b"ab" * 5000)
    return machine.core.size()


def test_states_are_limited():
    assert {_rooms(core, 500) for core in CORES} == {500 + 500 // GUESSED}


@pytest.mark.parametrize("core", CORES)
def test_the_work_of_one_closure_is_limited(core):
    crowd = SeparatedList(
        tuple(ListMember(Literal(b"x%d" % i), False) for i in range(25_000)), None, Literal(b","), ordered=False
    )
    with pytest.raises(GrammarLimitError, match="too many threads"):
        automaton(crowd, VOCABULARY, core)
    rules = [RuleCall(GrammarRule(f"r{i}", lambda: alt(*rules))) for i in range(600)]
    with pytest.raises(GrammarLimitError):
        automaton(alt(Literal(b"x"), *(seq(rule, Literal(b"y")) for rule in rules)), VOCABULARY, core)


@pytest.mark.parametrize("core", CORES)
def test_memory_is_known_and_grows_with_what_is_made(core):
    machine = automaton(repeat(words([b"ab", b"ac"]), 1, 10_000), VOCABULARY, core)
    before = machine.memory()
    machine.advance(machine.start, b"ab" * 1000)
    after = machine.memory()
    assert before < 100_000 and 200_000 < after - before < 10_000_000
    rows = len({id(machine.mask(machine.advance(machine.start, b"ab" * n))) for n in range(1, 5)})
    assert machine.memory() >= after + rows * 4 * VOCABULARY.words
