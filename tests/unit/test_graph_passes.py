"""What the passes report is what a backend sees, of the program as written and after each pass."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from lang_rules import RuleBackend
from lockstep import LockstepBackend, compiled, interpreted
from random_programs import operations, program_of

import sgl
from sgl.lang.errors import ProgramError
from sgl.lang.graph.compiled_program import compile_program
from sgl.lang.graph.plan_passes.pass_pipeline import AS_WRITTEN, PASSES

pytestmark = pytest.mark.filterwarnings("ignore::sgl.lang.chat.DefaultTemplateWarning")


@pytest.fixture
def backend():
    made = LockstepBackend()
    sgl.set_default_backend(made)
    yield made
    sgl.set_default_backend(None)
    made.rules.worker.shutdown()


@sgl.function
def tree(s, topic):
    s += sgl.system("You answer in one sentence, truthfully, and with the words that a child of ten would use.")
    s += sgl.user("Tell me about " + topic + ", " + "please" + ".")
    with s.assistant():
        s += sgl.gen("plan", max_tokens=8)
    forks = s.fork(3)
    for i, fork in enumerate(forks):
        fork += f"Part {i}: " + sgl.gen("part", max_tokens=8)
    for fork in forks:
        fork += "In short, " + fork["part"] + " is " + sgl.gen("short", max_tokens=4)
    forks[2] += " and " + forks[0]["short"] + sgl.gen("more")
    forks.join()
    s += "Parts: "
    for short in s["short"]:
        s += short + ", "
    s += "so: " + sgl.select("verdict", ["good", "bad"])


def test_each_pass_brings_what_it_says(backend):
    table = tree.compile(backend).passes
    written, branches = table[AS_WRITTEN], table["branches started together"]
    joined, hoisted = table["literals joined"], table["prefix hoisted"]
    assert table.before == written and table.after == table["grammars compiled ahead"] == hoisted
    # written: the parts, the first short, all that the join waits for
    assert (written.round_trips, branches.round_trips) == (3, 2)
    assert branches.operations == written.operations
    assert joined.operations < branches.operations and hoisted.operations == joined.operations - 4
    assert [str(table).count(name) for name in (AS_WRITTEN, *PASSES)] == [1] * (len(PASSES) + 1)


@sgl.function
def pairs(s, topic):
    """Four branches, each of which reads its own value before the next one starts."""
    forks = s.fork(4)
    for fork in forks:
        fork += "About " + topic + sgl.gen("a")
        fork += "so " + fork["a"] + sgl.gen("b")


def test_independent_branches_do_not_wait_for_each_other(backend):
    program = pairs.compile(backend)
    assert (program.passes.before.round_trips, program.passes.after.round_trips) == (4, 1)
    state, asked, trips = interpreted(pairs, backend, "cats")
    assert (asked, trips) == (program.passes.before.operations, 4)
    state, asked, trips = compiled(program, backend, "cats")
    assert (asked, trips) == (program.passes.after.operations, 1) and state.error() is None


@pytest.mark.parametrize("count", range(len(PASSES) + 1))
def test_counts_of_each_stage_are_those_of_real_runs(backend, count):
    names = list(PASSES)[:count]
    program = compile_program(tree, backend, passes=names)
    backend.answer()
    state, asked, trips = compiled(program, backend, "cats", seed=1)
    assert (asked, trips) == (program.passes.after.operations, program.passes.after.round_trips)
    other, asked, trips = interpreted(tree, backend, "cats", seed=1)
    assert (asked, trips) == (program.passes.before.operations, program.passes.before.round_trips)
    assert state.text() == other.text() and state["more"] == other["more"]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(ops=operations())
def test_counts_of_random_programs(backend, ops):
    program = program_of(ops)
    table = program.compile(backend).passes
    backend.answer()
    _, asked, trips = interpreted(program, backend, "eins")
    assert (asked, trips) == (table.before.operations, table.before.round_trips)
    made = program.compile(backend)
    backend.answer()
    _, asked, trips = compiled(made, backend, "eins")
    assert (asked, trips) == (table.after.operations, table.after.round_trips)
    assert table.after.round_trips <= table.before.round_trips


def test_the_body_runs_once_and_the_prefix_is_computed_once():
    backend, bodies = RuleBackend(), []

    @sgl.function
    def program(s, examples, question):
        bodies.append(1)
        s += "A long introduction, which every single run of this program has in common. " + examples
        s += "Q: " + question + sgl.gen("a")

    try:
        made = program.compile(backend)
        opened = backend.open_streams
        items = [{"examples": "E" * 100, "question": str(i)} for i in range(5)]
        states = made.run_batch(items, backend=backend, seed=3)
        assert bodies == [1]
        expected = program.run_batch(items, backend=backend, seed=3)
        assert [s.text() for s in states] == [s.text() for s in expected]
        # one stream more for the batch's own prefix, with the examples in it
        assert opened == 1 and backend.open_streams == 2
        made.run_batch([{**item, "examples": "F" * 100} for item in items], backend=backend)
        again = made.run("x", "y", backend=backend)
        assert len(made._pins) == 2 and again.error() is None
    finally:
        backend.worker.shutdown()


class Preparing(RuleBackend):
    def __init__(self) -> None:
        super().__init__()
        self.prepared = []

    def prepare(self, options):
        if options.regex == "bad":
            raise ValueError("no such grammar")
        self.prepared.append(options.pattern or options.json_schema)


def test_grammars_are_compiled_ahead():
    backend = Preparing()

    @sgl.function
    def program(s, regex):
        s += "a" + sgl.gen("a", regex="[ab]+") + sgl.gen("b") + sgl.gen("c", int)
        fork = s.fork(1)
        fork += sgl.gen("d", regex=regex)

    made = program.compile(backend, regex="x")
    assert len(set(backend.prepared)) == 3 and {"[ab]+", "x"} < set(backend.prepared)
    assert "3 grammars" in str(made.passes)
    with pytest.raises(ProgramError, match=r"test_graph_passes.py:\d+: .*no such grammar"):
        program.compile(backend, regex="bad")
    backend.worker.shutdown()
