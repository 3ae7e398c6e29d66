"""`program.with_options(...)`: options that its runs have; and `program.item(...)`: arguments of a batch's run."""

from __future__ import annotations

import asyncio
import pickle

import pytest

import sgl
from sgl.lang.check import check_source
from sgl.lang.errors import ArgumentsError, BadValueError, UnknownOptionError


@sgl.function
def reply(s: sgl.State, question: str, most: int = 3) -> int:
    s += question + sgl.gen("x")
    return most


@sgl.function
def many(s: sgl.State, *words: str) -> int:
    return len(words)


BACKEND = sgl.Scripted({"x": "5"})
OTHER = sgl.Scripted({"x": "6"})
fixed = reply.with_options(backend=BACKEND)


def test_runs_have_them_and_those_that_a_run_is_given_win():
    assert fixed.run("a").text() == "a5" and fixed.run("a", backend=OTHER).text() == "a6"
    assert fixed(question="a").text() == "a5"
    assert asyncio.run(fixed.arun(question="a", most=4)).ret_value == 4
    assert [s.text() for s in fixed.run_batch([("a",), ("b",)])] == ["a5", "b5"]
    assert [s.text() for s in fixed.run_batch([("a",)], backend=OTHER)] == ["a6"]
    assert asyncio.run(fixed.arun_batch([("a",)]))[0].text() == "a5"
    assert fixed.compile(backend=BACKEND).run("a").text() == "a5"
    assert fixed.compile(backend=BACKEND).run_batch([("a",)])[0].text() == "a5"


def test_the_program_itself_stays_as_it_was():
    assert reply.run_options == {} and fixed.run_options == {"backend": BACKEND}
    assert reply.run("a", backend=OTHER).text() == "a6"


def test_they_add_up_also_with_bound_arguments():
    program = fixed.with_options(seed=1).bind(question="a").with_options(seed=2, stream=True)
    assert program.run_options == {"backend": BACKEND, "seed": 2, "stream": True}
    assert "".join(program.run().text_iter()) == "a5"


def test_sampling_options_reach_the_gens():
    state = reply.with_options(temperature=0.25, seed=9).run("a", backend=BACKEND)
    assert (state.stream_executor.options.temperature, state.stream_executor.options.seed) == (0.25, 9)


def test_pickles_by_name():
    again = pickle.loads(pickle.dumps(reply.with_options(seed=1).bind(most=2)))
    assert again.run_options == {"seed": 1} and again.run("a", backend=BACKEND).ret_value == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"temprature": 0}, UnknownOptionError, "run has no option 'temprature'; did you mean 'temperature'?"),
        ({"temperature": "0"}, BadValueError, "temperature is '0'"),
        ({"num_threads": 3}, UnknownOptionError, "num_threads"),
    ],
)
def test_what_is_no_option_is_refused_at_once(options, error, message):
    with pytest.raises(error, match=message):
        reply.with_options(**options)


def test_a_batch_has_no_stream():
    with pytest.raises(UnknownOptionError, match="generator_style"):
        fixed.with_options(stream=True).run_batch([("a",)])


def test_a_call_has_no_options():
    @sgl.function
    def around(s: sgl.State) -> None:
        s.call(fixed, "a")

    with pytest.raises(ArgumentsError, match=r"s.call\(reply\): backend of with_options is for a whole run"):
        around.run(backend=BACKEND)
    with pytest.raises(ArgumentsError, match="without with_options"):
        around.trace()


# --- items -------------------------------------------------------------------------------------------------


def test_items_are_arguments_of_a_run():
    items = [reply.item("a"), reply.item("b", 4), reply.item(most=5, question="c")]
    states = reply.run_batch(items, backend=BACKEND)
    assert [(s.text(), s.ret_value) for s in states] == [("a5", 3), ("b5", 4), ("c5", 5)]
    states = reply.compile(backend=BACKEND).run_batch([reply.item("a"), reply.item(question="b")], backend=BACKEND)
    assert [s.text() for s in states] == ["a5", "b5"]
    assert next(iter(reply.run_batch([reply.item("a")], backend=BACKEND, generator_style=True))).text() == "a5"


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), (("a", 1, 2), {}), (("a",), {"mots": 1}), (("a",), {"question": "b"})]
)
def test_arguments_that_do_not_fit_are_refused_where_the_item_is_made(args, kwargs):
    with pytest.raises(ArgumentsError, match=r"reply\(s, question, most\)"):
        reply.item(*args, **kwargs)


def test_items_of_other_programs_and_other_forms_are_refused():
    @sgl.function
    def other(s: sgl.State, text: str) -> None: ...

    with pytest.raises(ArgumentsError, match="no parameter 'text'"):
        reply.run_batch([other.item(text="a")], backend=BACKEND)
    with pytest.raises(ArgumentsError, match=r"made by reply\.item, but there is also"):
        reply.run_batch([reply.item("a"), ("b",)], backend=BACKEND)
    with pytest.raises(ArgumentsError, match="arguments without names"):
        many.run_batch([many.item("a", "b")], backend=BACKEND)


def test_the_checks_know_both():
    text = """
import sgl
@sgl.function
def p(s, a):
    s += a + sgl.gen("x")
p.with_options(temperatur=0)
p.with_options(temperature="0")
p.with_options(seed=1).run()
p.with_options(seed=1).run("a")["x"]
p.run_batch([p.item("a"), p.item(), p.item("a", b=1)])
"""
    assert [(p.line, p.rule) for p in check_source(text, "p.py")] == [
        (6, "SGL603"),
        (7, "SGL402"),
        (8, "SGL603"),
        (10, "SGL603"),
        (10, "SGL603"),
    ]
