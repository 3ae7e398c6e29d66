"""What a newcomer writes that does not work: what is said leads on."""

from __future__ import annotations

import pickle
import traceback
import warnings

import pytest

import sgl
from sgl.lang.check import check_source
from sgl.lang.compat.generate_on_engine import sampling_options
from sgl.lang.errors import (
    ArgumentsError,
    BadValueError,
    LanguageError,
    TextOfNodeError,
    UnknownOptionError,
    UnknownVariableError,
)
from sgl.lang.nodes.unused_expression_warning import DroppedWarning
from sgl.lang.tools import ToolCall

HELLO = sgl.Scripted({"a": "hello"})


@sgl.function
def ask(s, q, end="."):
    s += "Q: " + q + "\nA: " + sgl.gen("a") + end


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"question": 1}, "did you mean 'q'"),
        ({"ned": 1}, "did you mean 'end'"),
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"max_token": 1}, "did you mean 'max_tokens'"),
        ({"flavour": 1}, "its parameters: q, end"),
    ],
)
def test_unknown_names_are_parameters_first_then_options(given, meant):
    with pytest.raises(UnknownOptionError, match=meant):
        ask.run(**given, backend=HELLO)


def test_a_parameter_that_is_given_is_not_meant():
    with pytest.raises(UnknownOptionError, match="its parameters"):
        ask.run(q="x", question="x", backend=HELLO)


def test_a_lone_argument_of_a_batch_is_shown_as_an_item():
    with pytest.raises(ArgumentsError, match=r"give \('a',\) or \{'q': 'a'\}"):
        ask.run_batch(["a"], backend=HELLO)
    with pytest.raises(ArgumentsError, match=r"\(1, 2, 3\) for ask\(q, end\)$"):
        ask.run_batch([(1, 2, 3)], backend=HELLO)


@pytest.mark.parametrize(
    ("text", "meant"),
    [(r"\d+", r"regex='\\\\d\+'"), ("16", "write 16 without quotes"), ("int", "write int without quotes")],
)
def test_text_in_the_second_place_of_a_gen(text, meant):
    with pytest.raises(BadValueError, match=rf"gen\('x'\): the second argument is a type or max_tokens.*{meant}"):
        sgl.gen("x", text)
    source = f"import sgl\n@sgl.function\ndef p(s):\n    s += sgl.gen('x', {text!r})\n"
    (problem,) = check_source(source, "p.py")
    assert problem.rule == "SGL402" and "the second argument is a type" in problem.message


def test_both_names_of_the_limit_are_taken_everywhere():
    assert sgl.gen("x", max_new_tokens=3).sampling_params.max_new_tokens == 3
    assert sgl.gen("x", min_new_tokens=3).sampling_params.min_new_tokens == 3
    assert sgl.gen_int("x", max_new_tokens=3).sampling_params.max_new_tokens == 3
    assert sgl.gen("x", 3, max_new_tokens=3).sampling_params.max_new_tokens == 3
    with pytest.raises(BadValueError, match=r"max_tokens is 3 and max_new_tokens is 4, but they are the same option"):
        sgl.gen("x", 3, max_new_tokens=4)
    assert sampling_options({"max_tokens": 5, "min_new_tokens": 2}) == sampling_options(
        {"max_new_tokens": 5, "min_tokens": 2}
    )
    with pytest.raises(BadValueError, match=r"max_tokens is 3 and max_new_tokens is 4, but they are the same option"):
        sampling_options({"max_tokens": 3, "max_new_tokens": 4})
    for states in (
        [ask.run(q="x", max_tokens=7, backend=HELLO)],
        ask.run_batch([("x",)], max_tokens=7, backend=HELLO),
        [ask.compile(HELLO).run(q="x", max_tokens=7, backend=HELLO)],
    ):
        assert states[0].stream_executor.options.max_new_tokens == 7
    source = (
        "import sgl\n@sgl.function\ndef p(s, q):\n    s += q + sgl.gen('x', max_new_tokens=4)\np.run(q='', "
        "max_tokens=3)\n"
    )
    assert check_source(source, "p.py") == []


def test_names_of_variables_in_their_order():
    @sgl.function
    def several(s):
        s += sgl.gen("b")
        s["c"] = 1
        s += sgl.gen("a") + sgl.gen()
        s["b"] = 2

    told = sgl.Scripted({"a": "x", "b": "y", None: "z"})
    for stream in (False, True):
        assert several.run(backend=told, stream=stream).variables() == ["b", "c", "a"]


def test_a_state_as_a_dict_says_how():
    state = ask.run(q="x", backend=HELLO)
    for read in (dict, list):
        with pytest.raises(KeyError, match=r"\{name: state\[name\] for name in state.variables\(\)\}"):
            read(state)
    assert {name: state[name] for name in state.variables()} == {"a": "hello"}


def test_a_variable_of_the_forks_is_read_after_join():
    @sgl.function
    def early(s, is_joined):
        forks = s.fork(2)
        forks += sgl.gen("a")
        if is_joined:
            forks.join()
        return s["a"]

    with pytest.raises(UnknownVariableError, match="'a' is a variable of the forks; join first") as caught:
        early.run(False, backend=HELLO)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert early.run(True, backend=HELLO).ret_value == ["hello", "hello"]
    with pytest.raises(UnknownVariableError, match="no variable 'b'; known: a"):
        ask.run("x", backend=HELLO)["b"]


@pytest.mark.parametrize(
    "read", [lambda s: s["b"], lambda s: s.get("b"), lambda s: s.get("a", int), lambda s: s.get_var("b")]
)
def test_a_failed_read_shows_the_users_line_and_one_of_ours(read):
    state = ask.run("x", backend=HELLO)
    with pytest.raises(LanguageError) as caught:
        read(state)
    ours = [entry for entry in caught.traceback if "lang/program" in str(entry.path)]
    assert len(caught.traceback) == 3 and len(ours) == 1
    assert "During handling" not in "".join(traceback.format_exception(caught.value))


def lines_that_drop(gen):
    gen("a")
    "text" + gen("a")
    sgl.user("x")
    sgl.select("a", ["x", "y"])


def lines_that_do_not(s, gen):
    s += "text" + gen("a")
    s.assistant(gen("b"))
    kept = [gen("c")]
    chosen = gen("d") if len(kept) > 1 else gen("e")
    with s.assistant():
        s += chosen
    gen("f").sampling_params  # noqa: B018
    with pytest.raises(TypeError):
        f"{gen('g')}"
    s["kept"] = len(kept)


def test_an_expression_that_is_dropped_warns_at_its_line():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        lines_that_drop(sgl.gen)
        first = lines_that_drop.__code__.co_firstlineno
    assert [(one.category, one.filename, one.lineno - first) for one in told] == [
        (DroppedWarning, __file__, line) for line in (1, 2, 3, 4)
    ]
    assert "Gen('a') was created but not appended" in str(told[0].message)


def test_expressions_that_are_used_or_kept_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = sgl.function(lines_that_do_not)
        program.run(sgl.gen, backend=sgl.Scripted(dict.fromkeys("abcdef", "x")))
        program.trace(gen=sgl.gen)
        ask.run(q="x", backend=HELLO)
        ask.run_batch([("x",)] * 3, backend=HELLO)


FORKED = """import sgl
@sgl.function
def p(s):
    forks = s.fork(2)
    for i, fork in enumerate(forks):
        fork += sgl.gen(f"tip{i}")
    %
"""


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("forks.join(); s += s['tip0']", "SGL107"),
        ("forks.join(); s += f\"{s['tip1']}\"", "SGL107"),
        ("forks.join(); s += s['tip0'][0]", None),
        ("forks.join(); s += ''.join(s['tip0'])", None),
        ("s += forks[0]['tip0']", None),
        ("s += s['tip0']", "SGL101"),
        ("'a' + sgl.gen('b')", "SGL303"),
        ("sgl.user('b')", "SGL303"),
        ("s.user(sgl.gen('b'))", None),
    ],
)
def test_traps_that_the_check_sees(line, rule):
    found = check_source(FORKED.replace("%", line), "p.py")
    assert [problem.rule for problem in found] == ([rule] if rule else [])
    if rule == "SGL101":
        assert "'tip0' is a variable of the forks; join first" in found[0].message


def test_a_list_of_forks_that_is_appended_says_so():
    @sgl.function
    def joined(s):
        forks = s.fork(2)
        forks += sgl.gen("a")
        forks.join()
        s += s["a"]

    with pytest.raises(BadValueError, match="a variable of joined forks is a list: append its items"):
        joined.run(backend=HELLO)


def test_a_variable_read_as_an_attribute_leads_to_the_right_way():
    state = ask.run(q="x", backend=HELLO)
    name = state.variables()[0]
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; the text of the variable is state\['{name}'\]"):
        getattr(state, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        state.nothing  # noqa: B018
    assert pickle.loads(pickle.dumps(state))[name] == state[name]


def test_long_items_are_cut_in_errors_and_a_key_error_of_a_tool_is_a_sentence():
    with pytest.raises(ArgumentsError) as caught:
        ask.run_batch(["word " * 200])
    assert len(str(caught.value)) < 400
    toolbox = sgl.tools([lookup])
    assert toolbox.run(ToolCall("lookup", {"article": "rake"})) == {"error": "'rake' was not found"}
    assert "toolbox.loop(question)" in str(toolbox)
    with pytest.raises(TextOfNodeError):
        f"Be brief. {toolbox}"


def lookup(article: str) -> int:
    """How many there are."""
    return {"spade": 1}[article]
