"""Mistakes that newcomers make: each is answered by an error that says what to
write, and its traceback ends in their own line.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import sgl
from sgl import tracebacks

BEGIN = """
import enum
from dataclasses import dataclass
import sgl
@dataclass
class Booking:
    city: str
class Color(enum.Enum):
    RED = "red"
class Plain:
    def __init__(self, a): self.a = a
@sgl.function
def helper(s, question):
    s += question + sgl.gen("h")
def plain(s):
    s += "x"
"""
BODIES = {  # of a program
    'sgl.gen("a", Booking("x"))': "gen('a'): Booking(city='x') is a value, not a type; give its class: Booking",
    'sgl.gen("a", Color.RED)': "is a value, not a type; give its class: Color",
    'sgl.gen("a", Plain)': "pydantic does not know its fields",
    'sgl.gen("a", "int")': "write int without quotes",
    'sgl.gen("a", ["x", "y"])': "to choose one of them write choices=['x', 'y']",
    'sgl.gen("a", "Booking")': "for a type write Booking without quotes",
    'sgl.gen("a", sgl.gen("b"))': "is an expression, not a type; join expressions with +",
    'sgl.gen("a", logit_bias=[1])': "give a dict of token ids",
    'sgl.gen("a", stop_token_ids="x")': "give a list of token ids",
    "sgl.system": "call it: system(...)",
    "sgl.gen(int)": "the first argument is the name of a variable, not int; write gen('answer', int)",
    'sgl.gen("a", temprature=0)': "did you mean 'temperature'?",
    'sgl.gen("a", grammar="x")': "give ebnf= for a grammar",
    'sgl.gen("a", response_format={})': "give json_schema=, or a type: gen(name, Model)",
    'sgl.gen("a", guided_choice=["x"])': "give choices=",
    'sgl.gen("a", stream=True)': "it belongs to the run",
    'sgl.gen("a", temperature="0")': "temperature is '0'; give a number",
    'sgl.gen("a", max_tokens="10")': "give a whole number",
    'sgl.gen("a", stop=3)': "stop is 3; give a string or a list of strings",
    'sgl.gen("a", regex="(x")': "is not a regular expression",
    'sgl.gen("a", int, regex="x")': "has both regex and type",
    'sgl.select(["x", "y"])': "write select('answer', ['x', 'y'])",
    'sgl.select("a", "yes")': "give a list of strings, a dict of definitions, an Enum or a Literal",
    'sgl.select("a", [])': "choices is []; give a list of strings",
    'sgl.select("a", [1, 2])': "give a list of strings: '1', not 1",
    'sgl.select("a", ["x"], choices_method="greedy")': "give a method, such as sgl.greedy_token_selection",
    "sgl.user(None)": "a turn needs a text or an expression",
    "sgl.user(3)": "3 cannot be appended to a state",
    'sgl.user(["x", sgl.gen("a")])': "join the parts with +",
    'sgl.user("x" + sgl.assistant("y"))': "Nested roles are not allowed",
    "sgl.user_end()": "no turn is open; user_begin() opens one",
    "f\"{sgl.gen('a')}\"": "Append it with + instead",
    '[{"role": "user", "content": "x"}]': "s += sgl.messages([...])",
    "None": "Tried to append None to state",
    "helper": "write s.call(helper, ...)",
    'helper(s, "x")': "in a program, s.call(helper, ...) runs it on the same state",
    "s": "append its text, state.text()",
    'sgl.gen("a") + 3': "join strings and nodes only",
    'sgl.generate("a")': "did you mean 'gen'?",
    'sgl.tools("x")': "give a list",
    's["nothing"]': "no variable 'nothing'",
}
LINES = {
    's.append("x")': "append with s += ...",
    's.gen("a")': "s += sgl.gen(...)",
    's + "x"': "append with s += ...",
    's = s + sgl.gen("a")': "append with s += ...",
    "s.call(plain)": "put @sgl.function above it",
    "with sgl.user(): pass": "with s.user(): or with s.assistant():",
    's.fork(2)["tip"]': "forks[0]['tip']; after forks.join() the parent has them all",
    "s.fork(2)[2]": "the group has 2 states",
    's.fork(2).get("tip")': "each fork is a separate state: forks[0].get",
    's.fork(2).append("x")': "append to all forks with +=",
    "for part in s: pass": "for a stream state.text_iter()",
    's.fork(2).join("all")': "give 'gather_variable' or 'concate_and_append'",
    's.fork("2")': "give a whole number",
    's += sgl.gen("a"); s.answer': "no attribute 'answer'",
    's += sgl.gen("a"); s.a': "the text of the variable is state['a']",
    's += sgl.gen("a"); s.probs("a")': "or gen of a Literal, Enum or bool",
    's.fork(2)\n    fork = s.fork(1)[0]\n    fork += sgl.gen("tip")\n    s["tip"]': "is a variable of the forks; "
    "join first",
}
CALLS = {  # outside of a program
    "helper.run()": "helper(s, question): missing a required argument: 'question'",
    'helper.run("a", "b")': "helper(s, question): too many positional arguments",
    'helper.run(qestion="x")': "did you mean 'question'?",
    'helper.run("x", temprature=0)': "did you mean 'temperature'?",
    'helper.run_batch(["a"])': "give ('a',) or {'question': 'a'}",
    'helper.run_batch({"question": "a"})': "put it into a list",
    'helper.run_batch(x for x in "ab")': "make it a list: list(...)",
    'helper.run_batch([{"q": "a"}])': "helper has no parameter 'q'",
    'helper.run_batch([{"question": "a"}], progress=True)': "did you mean 'progress_bar'?",
    'helper.run_batch([{"question": "a"}], stream=True)': "generator_style=True gives the states one after another",
    'helper.run("x", backend=sgl.Scripted(lambda prompt: "x"))["h"]': "the script's function is called with "
    "(prompt, request)",
    'helper.run("x", backend=BACKEND, journal=3)': "give the path of a file",
    'helper.run("x", budget=sgl.Budget("x"))': "give a whole number from 0",
    'helper.run("x", backend="http://localhost:1")': "give sgl.RuntimeEndpoint('http://localhost:1')",
    'helper.run("x", backend="openai")': "for a model give sgl.Engine('openai')",
    'helper.run("x", backend=sgl.Scripted)': "it is a class: give an instance",
    'helper.run("x", backend=BACKEND).end(); state = helper.run("x", backend=BACKEND); state += "x"': "put it into "
    "the program",
    "sgl.function(3)": "give a function whose first parameter is `s`",
    'sgl.function(lambda q: "x")': "must be `s`",
    'print(sgl.gen("a"))': "it has no text before the program runs",
    'sgl.RuntimeEndpoint("http://localhost:9")': "no server answers at http://localhost:9",
}


def program(line: str) -> str:
    return f"{BEGIN}@sgl.function\ndef program(s):\n    {line}\nprogram.run(backend=BACKEND).sync()\n"


MISTAKES = (
    [(program(f"s += {body}"), message) for body, message in BODIES.items()]
    + [(program(line), message) for line, message in LINES.items()]
    + [(f"{BEGIN}{call}\n", message) for call, message in CALLS.items()]
)


@pytest.mark.parametrize(("source", "message"), MISTAKES, ids=[*BODIES, *LINES, *CALLS])
@pytest.mark.filterwarnings("ignore")
def test_a_mistake_is_answered(source, message, capsys):
    names = {"BACKEND": sgl.Scripted(lambda prompt, request: "x", chat_template="chatml"), "__name__": "__main__"}
    sys.modules["__main__"].__dict__.setdefault("__file__", "main.py")
    try:
        exec(compile(source, "/tmp/mistake.py", "exec"), names)
    except Exception as error:
        tracebacks.show(error)
    else:
        raise AssertionError("no error")
    said = capsys.readouterr().err
    places = [line for line in said.splitlines() if line.startswith("  File ")]
    assert message in said
    assert '"/tmp/mistake.py"' in places[-1] and said.count("Traceback") == 1
    assert len(said.splitlines()) < 20, said


@pytest.mark.parametrize("full", ["", "1"])
def test_python_prints_it_so(tmp_path, full):
    file = tmp_path / "mistake.py"
    file.write_text(
        "import sgl\n@sgl.function\ndef f(s):\n    s += sgl.gen('a', temprature=0)\nf.run(backend=sgl.Scripted([]))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), tracebacks.FULL_VARIABLE: full}
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, env=env, timeout=120)
    places = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert done.returncode == 1 and "did you mean 'temperature'?" in done.stderr
    assert all(str(file) in place for place in places) is not bool(full)
    assert (f"calls inside sgl are left out; {tracebacks.FULL_VARIABLE}=1 shows them" in done.stderr) is not bool(full)


def test_an_error_of_sgl_itself_is_shown_whole(capsys, monkeypatch):
    monkeypatch.setattr("sgl.lang.program.program_run.new_executor", len)
    ask = sgl.function(lambda s: None)
    try:
        ask.run(backend=sgl.Scripted([]))
    except TypeError as error:
        tracebacks.show(error)
    said = capsys.readouterr().err
    assert "/program_run.py" in said and "left out" not in said


def test_a_hook_of_somebody_else_stays():
    code = (
        "import sys; mine = lambda *a: None; sys.excepthook = mine; import sgl; sgl.gen; assert sys.excepthook is mine"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        timeout=120,
    )
    code = "import sys, sgl; assert sys.excepthook is sys.__excepthook__"
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        timeout=120,
    )
