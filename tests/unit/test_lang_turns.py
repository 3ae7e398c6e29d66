"""Gens outside of all turns are said, once for a line; None is no content of a turn."""

from __future__ import annotations

import warnings
from contextlib import contextmanager

import pytest

import sgl
from sgl.lang.check import check_source
from sgl.lang.errors import BadValueError, LanguageError
from sgl.lang.interpreter.node_handlers import OutsideTurnWarning

OUTSIDE = {
    "after user": 's += sgl.user(q); s += sgl.gen("a")',
    "in one line": 's += sgl.user(q) + sgl.gen("a")',
    "after text": 's += sgl.user(q); s += "Answer: " + sgl.gen("a")',
    "a select": 's += sgl.user(q); s += sgl.select("a", ["x", "y"])',
    "after assistant": 's += sgl.assistant("x"); s += sgl.gen("a")',
    "by s.user": 's.user(q); s += sgl.gen("a")',
    "a with block": 'with s.user():\n        s += q\n    s += sgl.gen("a")',
    "begin and end": 's += sgl.user_begin() + q + sgl.user_end() + sgl.gen("a")',
    "messages": 's += sgl.messages([{"role": "user", "content": "x"}]); s += sgl.gen("a")',
    "a fork": 's += sgl.user(q)\n    for one in s.fork(2):\n        one += sgl.gen("a")',
    "a loop": 'for _ in range(3):\n        s += sgl.user(q)\n        s += sgl.gen("a")',
}
INSIDE = {
    "no roles": 's += q + sgl.gen("a")',
    "assistant": 's += sgl.user(q) + sgl.assistant(sgl.gen("a"))',
    "left open": 's += sgl.user(q) + sgl.assistant_begin() + sgl.gen("a") + sgl.gen("b")',
    "a with block": 's.user(q)\n    with s.assistant():\n        s += sgl.gen("a")\n        s += "x" + '
    'sgl.select("b", ["x", "y"])',
    "another role": 's += sgl.user(sgl.gen("a"))',
    "before the first": 's += sgl.gen("a"); s += sgl.user(q)',
    "own marks": 's += sgl.user(q); s += "<|im_start|>assistant\\n" + sgl.gen("a")',
    "a fork": 's += sgl.user(q) + sgl.assistant_begin()\n    for one in s.fork(2):\n        one += sgl.gen("a")',
    "a subprogram": "s += sgl.user(q)\n    with s.assistant():\n        s.call(inner)",
    "a set value": 's += sgl.user(q); s["a"] = "x"',
}
SOURCE = 'import sgl\n@sgl.function\ndef inner(s):\n    s += sgl.gen("i")\n@sgl.function\ndef program(s, q):\n    '


def outside(body: str) -> list[str]:
    """The warnings of a batch of two runs."""
    names: dict = {}
    exec(compile(SOURCE + body, "program.py", "exec"), names)
    backend = sgl.Scripted(lambda prompt, request: "x", chat_template="chatml")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for state in names["program"].run_batch([{"q": "1"}, {"q": "2"}], backend=backend):
            assert state.error() is None
    return [f"{one.filename} {one.message}" for one in said if one.category is OutsideTurnWarning]


@pytest.mark.parametrize("case", OUTSIDE)
def test_outside(case):
    (said,) = outside(OUTSIDE[case])
    assert said.startswith("program.py ") and "s += sgl.assistant(...)" in said
    assert "SGL206" in {problem.rule for problem in check_source(SOURCE + OUTSIDE[case], "x.py")}


@pytest.mark.parametrize("case", INSIDE)
def test_inside(case):
    assert outside(INSIDE[case]) == []
    assert check_source(SOURCE + INSIDE[case], "x.py") == []


@pytest.mark.parametrize("compiled", [False, True])
def test_a_python_filter_decides_about_it(compiled):
    @sgl.function
    def ask(s):
        s += sgl.user("x")
        s += sgl.gen("a")

    backend = sgl.Scripted({"a": "x"})
    program = ask.compile(backend) if compiled else ask
    with pytest.warns(OutsideTurnWarning):
        program.run(**({} if compiled else {"backend": backend})).sync()


@contextmanager
def refused(role: str):
    with pytest.raises((BadValueError, LanguageError), match=rf"{role}\(None\): a turn needs a text or an expression"):
        yield


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_none_is_no_content(role):
    with refused(role):
        getattr(sgl, role)(None)
    for program in map(sgl.function, (lambda s: getattr(s, role)(None), lambda s: getattr(s, role)(expr=None))):
        with refused(role):
            program.run(backend=sgl.Scripted([]))
        with refused(role):
            program.trace()
    assert [type(node).__name__ for node in getattr(sgl, role)().expr_list] == ["SglRoleBegin", "SglRoleEnd"]
