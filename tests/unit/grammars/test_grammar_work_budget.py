"""Work on automata by a meter: it stops when it should, and what is asked again goes on to the same result."""

import threading

import pytest
from grammar_support import CORES, byte_vocabulary

from sgl.grammars import Grammar, compile_json_schema, fill_masks
from sgl.grammars.automaton.automaton_work_budget import WorkBudget, WorkUnfinished, metered
from sgl.grammars.regex import parse_regex
from sgl.grammars.schema.schema_builder import SchemaOptions, schema_expr

VOCABULARY = byte_vocabulary()
TEXTS = [("([ab]{1,40}c?){2,90}d", b"ababcab"), ("(x[0-9]{2,5}|y)*z", b"x123y"), (".{3,200}!", "né!".encode())]


def made(pattern, core):
    return Grammar(parse_regex(pattern), VOCABULARY, core).matcher()


def growing(stops):
    """A walk of what is known is work too: a slice must be longer than that."""
    return WorkBudget(10 + 20 * stops, hasty=False)


def again(work, meter_of):
    """The result of work that is asked for until it is done, and how often it stopped."""
    stops = 0
    while True:
        try:
            with metered(meter_of(stops)):
                return work(), stops
        except WorkUnfinished:
            stops += 1
            assert stops < 20_000


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(("pattern", "text"), TEXTS)
def test_what_stops_goes_on(core, pattern, text):
    free, slow, stops = made(pattern, core), made(pattern, core), 0
    for byte in text:
        row, times = again(slow.mask, growing)
        stops += times
        assert (row == free.mask()).all()
        assert again(lambda byte=byte: slow.accept(byte), growing)[0] == free.accept(byte)
        assert again(slow.forced, growing)[0] == free.forced()
    assert stops


def test_who_is_hasty_builds_no_rule_and_waits_for_nobody():
    matcher = compile_json_schema({"properties": {"a": {"type": "array"}}, "required": ["a"]}, VOCABULARY).matcher()
    text = b'{"a": ['
    with metered(WorkBudget(10**9, hasty=True)), pytest.raises(WorkUnfinished):
        for byte in text:
            matcher.accept(byte)
    matcher.mask()
    taken, done = threading.Event(), threading.Event()

    def hold():
        with matcher.automaton.lock:
            taken.set()
            done.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait(10)
    fresh = matcher.copy()
    with metered(WorkBudget(10**9, hasty=True)):
        found = fill_masks([matcher, fresh, None])
        with pytest.raises(WorkUnfinished):
            fresh.accept(ord("{")) and fresh.accept(ord(" "))
    done.set()
    holder.join()
    assert (found[0] == matcher.mask()).all() and found[2] is None


def test_a_batch_shares_what_is_left():
    matchers = [made(pattern, "C") for pattern, _ in TEXTS]
    with metered(meter := WorkBudget(40, hasty=True)):
        found = fill_masks(matchers)
    assert any(isinstance(each, WorkUnfinished) for each in found) and meter.spent > 40
    assert all(
        (a == b).all()
        for a, b in zip(fill_masks(matchers), [made(pattern, "C").mask() for pattern, _ in TEXTS], strict=True)
    )


@pytest.mark.parametrize("core", CORES)
def test_what_cannot_go_on_rests_between_slices(core):
    schema, rests = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, []

    class Resting(WorkBudget):
        def more(self):
            rests.append(1)
            self.left = 2000 if self.spent <= self.most else 0
            return self.left

    matchers = [
        Grammar(schema_expr(schema, SchemaOptions(), remember=True), VOCABULARY, core).matcher() for _ in range(2)
    ]

    for byte in b"[1, 2, 1":
        rows = [matchers[0].mask(), again(matchers[1].mask, lambda _: Resting(2000, False, 10**9))[0]]
        assert (rows[0] == rows[1]).all()
        for matcher in matchers:
            matcher.accept(byte)
    assert rests
    with pytest.raises(WorkUnfinished), metered(Resting(2000, False, 4000)):
        matchers[1].mask()
