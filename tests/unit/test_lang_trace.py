"""Tracing: graphs of the whole language, prefixes, and the worked example of the specification."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest
from lang_rules import RuleBackend

import sgl
from sgl.lang.errors import StateEndedError, TraceError
from sgl.lang.nodes.ir import SglConstantText
from sgl.lang.nodes.traced_nodes import SglArgument, SglVariable

pytestmark = pytest.mark.filterwarnings("ignore::sgl.lang.chat.DefaultTemplateWarning")

EXPECTED = """\
%a = Constant('Ex: E1\\n')
%b = %a + Constant('USER:')
%c = %b + Constant('Q: ')
%d = %c + Argument(name=q, value=None)
%e = %d + Constant('\\n')
%f = %e + Constant('ASSISTANT:')
%g = %f + Gen('a')
%h = %g + Constant('\\n')
%i = %h + Constant('Done ')
%j = Fork(%h, number=2, position_ids_offset=None)
%k = GetForkItem(%j, index=0)
%l = %k + Constant('tip 0:')
%m = %l + Gen('t')
%n = %i + Variable('t', source=%m)
%o = %n + Select(c, choices=['x', 'y'], choices_method=<TokenLengthNormalized>)
"""


@sgl.function
def example(s, ex, q):
    s += "Ex: " + ex + "\n"
    s += sgl.user("Q: " + q)
    s += sgl.assistant(sgl.gen("a"))
    forks = s.fork(2)
    forks += lambda i: f"tip {i}:" + sgl.gen("t")
    s += "Done " + forks[0]["t"] + sgl.select("c", ["x", "y"])
    return 5


def shape(graph: str) -> str:
    """The graph with its nodes named in the order of their appearance, and adjacent constants as they are."""
    names: dict[str, str] = {}
    return re.sub(r"%(\d+)", lambda found: "%" + names.setdefault(found[1], chr(97 + len(names))), graph)


def test_worked_example():
    @sgl.function
    def bound(s, ex, q):
        s += f"Ex: {ex}\n"
        s += sgl.user("Q: " + q)
        s += sgl.assistant(sgl.gen("a"))
        forks = s.fork(2)
        forks += lambda i: f"tip {i}:" + sgl.gen("t")
        s += "Done " + forks[0]["t"] + sgl.select("c", ["x", "y"])
        return 5

    tracer = bound.bind(ex="E1").trace()
    assert shape(tracer.last_node.print_graph_dfs()) == EXPECTED
    assert tracer.ret_value == 5 and len(tracer.child_states) == 2 and set(tracer.variables) == {"a", "c"}


def test_prefix_goes_to_the_cache():
    backend = RuleBackend()
    example.bind(ex="E" * 70).cache(backend)
    example.cache(backend)
    assert backend.prefixes == ["Ex: " + "E" * 70 + "\nUSER:Q: "]


@sgl.function
def nasty(s, table, key):
    s += "A prefix that is longer than sixty-four characters, as it has to be, to be worth it. "
    while s["x"] != "Finish":
        s += sgl.gen("x")


@sgl.function
def reader(s, key):
    s += "A prefix that is longer than sixty-four characters, as it has to be, to be worth it. "
    s += {"a": 1}[key]


@pytest.mark.parametrize("program", [nasty, reader])
def test_prefixes_of_programs_that_cannot_be_traced(program):
    backend = RuleBackend()
    program.cache(backend)
    assert len(backend.prefixes) == 1


def test_the_whole_language_can_be_traced():
    @sgl.function
    def program(s, topic, *, loud=False):
        s += sgl.system("be brief")
        with s.user():
            s += "About " + topic
        with s.assistant(), s.var_scope("answer"):
            s += sgl.gen() + sgl.gen_int("n") + sgl.select(choices=["a", "b"])
        forks = s.fork(2)
        forks += sgl.gen("tips")
        forks.join()
        more = s.fork(2)
        more += "x" + sgl.gen("y")
        more.join("concate_and_append")
        with s.copy() as c:
            c += sgl.gen("copied")
        s["set"] = 1
        s += s.user("again")
        return s.messages(), s.text(), s["answer"], "set" in s, s.error()

    tracer = program.trace(topic="cats")
    assert {"gen_0", "select_0", "n", "answer", "tips", "copied", "set"} <= set(tracer.variables)
    assert len(tracer.variables["tips"]) == 2 and len(tracer.flatten_nodes()) > len(tracer.nodes)
    messages, text, answer, known, error = tracer.ret_value
    assert messages[1] == {"role": "user", "content": "About cats"} and isinstance(text, SglVariable)
    assert isinstance(answer, SglVariable) and known and error is None
    assert "ConcatenateAndAppend(" in tracer.last_node.print_graph_dfs()
    assert sum(isinstance(n, SglConstantText) and n.value == "again" for n in tracer.nodes) == 1
    assert "TracerProgramState" in repr(tracer)


def test_placeholders():
    @sgl.function
    def formatted(s, a):
        s += f"{a}"

    @sgl.function
    def joined(s, a):
        s += a + " and " + a

    with pytest.raises(TypeError, match="join it with"):
        formatted.trace()
    nodes = joined.trace().nodes
    assert [type(node) for node in nodes] == [SglArgument, SglConstantText, SglArgument]
    assert formatted.trace(a="x").nodes[0].value == "x"
    for use in (len, int, bool, list, lambda a: a[0], lambda a: a < 1):
        with pytest.raises(TypeError):
            use(SglArgument("a"))


def test_nested_programs_are_traced():
    @sgl.function
    def inner(s, x):
        s += "inner " + x + sgl.gen("v")

    @sgl.function
    def outer(s, x):
        s += inner(x)["v"] + inner(x=x, temperature=0)["v"]

    tracer = outer.trace()
    assert len(tracer.child_states) == 2 and len(tracer.nodes) == 2
    assert "inner" in tracer.last_node.print_graph_dfs()


def test_a_trace_does_not_catch_programs_of_other_threads():
    backend = RuleBackend()
    results = []

    @sgl.function
    def other(s):
        s += "run"

    @sgl.function
    def program(s):
        thread = threading.Thread(target=lambda: results.append(other.run(backend=backend).text()))
        thread.start()
        thread.join()
        s += "x"

    program.trace()
    assert results == ["run"]


def test_shared_nodes_are_not_changed():
    node = sgl.gen("a")

    @sgl.function
    def program(s):
        s += "x" + node + "y" + node

    graph = program.trace().last_node.print_graph_dfs()
    assert graph.count("Gen('a')") == 2 and node.prev_node is None


def test_endless_loops_end():
    @sgl.function
    def program(s):
        while s["x"] != "Finish" if "x" in s else True:
            s += sgl.gen("x")

    with pytest.raises(TraceError, match="loop"):
        program.trace()


def test_everything_that_can_be_appended_can_be_traced():
    @sgl.function
    def inner(s, x):
        s += "inner " + x + sgl.gen("v", int)
        return s.get("v")

    @sgl.function
    def program(s, picture):
        s += sgl.image(picture) + sgl.video("film.mp4", 4) + s.user("u")
        s += sgl.separate_reasoning("t" + sgl.gen("r"), "qwen3") + sgl.gen("many", n=3)
        called = s.call(inner, "y")
        for fork in s.fork(2, position_ids_offset=[1, 2]):
            fork.fork(2).join()
        s += s["r_reasoning_content"] + s["many"][2] + called["v"]
        s.sync()
        s.end()
        return called.ret_value, s["many"]

    tracer = program.trace()
    assert {"r", "r_reasoning_content", "many"} == set(tracer.variables)  # v belongs to the called program
    value, many = tracer.ret_value
    assert isinstance(value, SglVariable) and len(many) == 3
    graph = tracer.last_node.print_graph_dfs()
    assert "SglVideo('film.mp4', 4)" in graph and "SglImage(Argument(name=picture" in graph
    assert "Variable('many[2]'" in graph and "Variable('r_reasoning_content'" in graph
    assert len(tracer.child_states) == 2 and len(tracer.child_states[0].child_states) == 2
    with pytest.raises(StateEndedError):
        tracer += "more"
    with pytest.raises(AttributeError, match=r"test_lang_trace.py:\d+: .*use run"):
        tracer.stream_executor  # noqa: B018


def test_async_programs_can_be_traced_inside_and_outside_of_a_loop():
    @sgl.function
    async def program(s, x):
        s += "a" + x + sgl.gen("v")
        forks = s.fork(2)
        forks += sgl.gen("f")
        await forks.join()
        async with s.copy() as c:
            c += sgl.gen("c")
        s += await s.get("v")
        await s.sync()
        return await s.text(), await s.messages(), await s.error()

    async def inside():
        return program.trace()

    for tracer in (program.trace(), asyncio.run(inside())):
        assert {"v", "f", "c"} == set(tracer.variables) and tracer.ret_value[1:] == ([], None)


def test_nodes_know_their_line_and_joins_stand_in_the_graph():
    @sgl.function
    def program(s):
        s += "a"
        forks = s.fork(1)
        forks += sgl.gen("x")
        forks.join()

    tracer = program.trace()
    first, fork, gather = tracer.nodes
    assert (fork.where.line, gather.where.line) == (first.where.line + 1, first.where.line + 3)
    assert first.where.file == __file__ and repr(gather) == f"Gather(%{tracer.child_states[0].last_node.node_id})"
    with pytest.raises(ValueError, match="Invalid join mode"):
        tracer.fork(1).join("sideways")


def test_programs_called_by_run_are_traced_too():
    ran = []

    @sgl.function
    def inner(s):
        ran.append(type(s).__name__)
        s += "x" + sgl.gen("v")

    @sgl.function
    def program(s):
        s += "a" + inner.run()["v"]

    assert len(program.trace().child_states) == 1 and ran == ["TracerProgramState"]
