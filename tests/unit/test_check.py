"""What the checks follow: paths, forks, helpers, aliases, notebooks, comments, live programs."""

from __future__ import annotations

import json
import textwrap

import pytest

import sgl
from sgl.lang.check import Problem, check_path, check_program, check_source


def found(body: str, head: str = "import sgl") -> list[str]:
    """`line:rule` of each problem in `head` and what follows it."""
    text = head + "\n" + textwrap.dedent(body).lstrip("\n")
    return [f"{problem.line}:{problem.rule}" for problem in check_source(text, "program.py")]


def program(body: str) -> list[str]:
    """`line:rule`; the first line of the body of the program is line 1."""
    text = "import sgl\n@sgl.function\ndef program(s, topic, flag):\n"
    text += textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    return [f"{problem.line - 3}:{problem.rule}" for problem in check_source(text, "program.py")]


# --- variables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        """
        s += sgl.gen("a") if flag else sgl.gen("b") + sgl.gen("a")
        s["a"]
        """,
        """
        for name in ["a", "b"]:
            s += sgl.gen(name)
        s["a"], s["b"]
        """,
        """
        for i in range(3):
            s += sgl.gen(f"tip_{i}")
        s["tip_1"]
        """,
        """
        for i in range(flag):
            if i > 0:
                s += s["last"]
            s += sgl.gen("last")
        s["last"]
        """,
        """
        s += sgl.gen(topic)
        s["anything"]
        """,
        """
        with s.var_scope("all"):
            s += sgl.gen("a")
        s["all"] + s["a"]
        """,
        """
        if "a" in s:
            s["a"]
        """,
        """
        try:
            s["a"]
        except KeyError:
            pass
        """,
        """
        while True:
            s += sgl.gen("a")
            if flag:
                break
        s["a"]
        """,
        """
        if flag:
            raise ValueError(topic)
        else:
            s += sgl.gen("a")
        s["a"]
        """,
        """
        s += sgl.separate_reasoning(sgl.gen("a"), model_type="qwen3")
        s["a"], s["a_reasoning_content"]
        """,
        """
        match topic:
            case "x":
                s += sgl.gen("a")
            case _:
                s += sgl.select("a", ["x"])
        s["a"]
        """,
        """
        s["a"] = topic
        s.set_var("b", 1)
        s["a"], s.get_var("b"), s.text_iter("a")
        """,
    ],
)
def test_made_before_it_is_read(body: str) -> None:
    assert program(body) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('s["a"]', ["1:SGL101"]),
        ('s += topic + s["a"] + sgl.gen("a")', ["1:SGL101"]),
        ('s.text_iter("a")', ["1:SGL101"]),
        ('s.get("a")', ["1:SGL101"]),
        ('for i in range(3):\n    s += s["a"]\n    s += sgl.gen("a")', ["2:SGL101"]),
        ('for i in range(3):\n    if i:\n        s += s["b"]\n    s += sgl.gen("a")', ["3:SGL101"]),
        ('if flag:\n    s += sgl.gen("a")\nelse:\n    s["a"]', ["4:SGL101"]),
        ('for i in range(3):\n    s += sgl.gen(f"tip_{i}")\ns["tap_1"]', ["3:SGL101"]),
        ('if flag:\n    s += sgl.gen("a")\nelif topic:\n    s += sgl.gen("a")\ns["a"]', ["5:SGL102"]),
    ],
)
def test_read_before_it_is_made(body: str, expected: list[str]) -> None:
    assert program(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        """
        forks = s.fork(2)
        forks += sgl.gen("a")
        forks.join()
        s["a"][0], forks[1]["a"]
        """,
        """
        forks = s.fork(flag)
        for i, f in enumerate(forks):
            f += sgl.assistant_begin() + sgl.gen("a") + sgl.assistant_end()
        for f in forks:
            s += f["a"]
        """,
        """
        states = [s.fork(1)[0] for _ in range(flag)]
        for f in states:
            f += sgl.gen("a")
        s += states[0]["a"]
        """,
        """
        s += sgl.gen("before")
        forks = s.fork(3)
        forks += lambda i: str(i) + sgl.gen("a")
        forks[2]["before"], forks[0]["a"]
        """,
        """
        forks = s.fork(2)
        for f, name in zip(forks, ["x", "y"]):
            f += sgl.gen(name)
        forks[0]["x"], forks[1]["y"]
        """,
        """
        with s.copy() as c:
            c += sgl.gen("a")
        s["a"][0]
        """,
        """
        waiting = []
        for _ in range(flag):
            f = s.fork(2)
            f += sgl.gen("a")
            waiting.append(f)
        for f in reversed(waiting):
            f.join()
        s["a"]
        """,
    ],
)
def test_forks_that_are_right(body: str) -> None:
    assert program(body) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('forks = s.fork(2)\nforks += sgl.gen("a")\ns["a"]', ["3:SGL101"]),
        ('forks = s.fork(2)\nforks[0] += sgl.gen("a")\nforks[1]["a"]', ["3:SGL101"]),
        ('forks = s.fork(2)\ns += sgl.gen("a")\nforks[1]["a"]', ["3:SGL101"]),
        ('forks = s.fork(2)\nforks += sgl.gen("a")\nforks.join("concate_and_append")\ns["a"]', ["4:SGL101"]),
        ('with s.copy() as c:\n    c += sgl.gen("a")\n    s["a"]', ["3:SGL101"]),
        ('for f in s.fork(3):\n    f += sgl.user_begin() + sgl.user("x")', ["2:SGL201"]),
    ],
)
def test_forks_that_are_wrong(body: str, expected: list[str]) -> None:
    assert program(body) == expected


def test_helpers_are_followed() -> None:
    body = """
    def propose(s, name, count=2):
        s += "Propose " + sgl.gen(name)
        forks = s.fork(count)
        forks += sgl.gen("score")
        return forks

    @sgl.function
    def search(s, task):
        s += task
        forks = propose(s, "plan")
        forks[0]["score"], s["plan"]
        s["score"]
    """
    assert found(body) == ["13:SGL101"]


def test_unknown_helpers_may_do_anything() -> None:
    body = """
    from elsewhere import ask, TURN

    @sgl.function
    def first(s, task):
        ask(s)
        s["anything"]

    @sgl.function
    def second(s, task):
        s += TURN
        s["anything"]

    @sgl.function
    def third(s, tasks):
        list(map(lambda task: ask(s, task), tasks))
        s["anything"]
    """
    assert found(body) == []


def test_recursion_ends() -> None:
    body = """
    def step(s, depth):
        s += sgl.gen("a")
        if depth:
            step(s, depth - 1)

    @sgl.function
    def loop(s, depth):
        step(s, depth)
        s["a"]
        loop.run(depth=depth - 1)["a"]
    """
    assert found(body) == []


def test_finished_states_are_known() -> None:
    body = """
    @sgl.function
    def qa(s, question):
        s += question + sgl.gen("answer")

    state = qa.run(question="x")
    state["answer"], state["anwser"]
    for state in qa.run_batch([{"question": "x"}]):
        state["answre"]
    qa("x")["nothing"]
    """
    assert found(body) == ["7:SGL101", "9:SGL101", "10:SGL101"]


# --- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "word"),
    [
        ("import sgl", "sgl."),
        ("import sglang as sgl", "sgl."),
        ("import sglang", "sglang."),
        ("from sgl import function, gen", ""),
        ("from sglang.lang.api import *", ""),
        ("from sglang.api import function, gen", ""),
    ],
)
def test_ways_to_import(head: str, word: str) -> None:
    body = f'@{word}function\ndef qa(s):\n    s += {word}gen("a", tempreture=0)\n    s["b"]\n'
    assert found(body, head) == ["4:SGL401", "5:SGL101"]


def test_aliases_and_constants() -> None:
    body = """
    from sgl import function as fn, gen as g
    BAD = "([a-z]+"
    KINDS = ["a", "b", "a"]
    NODE = g("a", regex=BAD)
    @fn
    def program(s):
        s += NODE + g("kind", choices=KINDS)
        s["a"], s["kind"]
        text = f"{NODE}"
    """
    assert found(body, "") == ["5:SGL501", "8:SGL404", "10:SGL301"]


def test_files_without_programs_are_left_alone() -> None:
    assert check_source("import os\ns = {}\ns['x']\nf = f'{gen}'\n") == []
    assert check_source("# sgl\ndef gen(x, y): ...\ngen(1, z=2)\n") == []


# --- options and constraints -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        ('sgl.gen("a", max_tokens=-1)', "SGL402"),
        ('sgl.gen("a", n=0)', "SGL402"),
        ('sgl.gen("a", 16, 0, 0)', "SGL402"),
        ('sgl.gen("a", top_p=1.5)', "SGL402"),
        ('sgl.gen("a", stop=[1])', "SGL402"),
        ('sgl.gen("a", stop="")', "SGL402"),
        ('sgl.gen("a", stop_regex="(")', "SGL501"),
        ('sgl.gen("a", dtype="integer")', "SGL402"),
        ('sgl.gen_int("a", 16, 0)', "SGL402"),
        ('sgl.select("a")', "SGL403"),
        ('sgl.select("a", [])', "SGL403"),
        ('sgl.select("a", [1, 2])', "SGL403"),
        ('sgl.gen("a", choices="yes")', "SGL403"),
        ('sgl.gen("a", choices=[])', "SGL403"),
        ('sgl.gen("a", dtype=int, regex="x")', "SGL405"),
        ('sgl.gen("a", regex="(?=x)y")', "SGL501"),
        ('sgl.gen("a", json_schema="{")', "SGL502"),
        ('sgl.gen("a", json_schema={"type": "strin"})', "SGL502"),
        ('sgl.gen("a", dtype=bool, stop="yes")', "SGL504"),
        ('sgl.gen("a", regex="(ab)+", stop="aa")', "SGL504"),
        ('sgl.gen("a", json_schema=\'{"type": "boolean"}\', stop="}")', "SGL504"),
    ],
)
def test_values(call: str, rule: str) -> None:
    assert found(f"NODE = {call}") == [f"2:{rule}"]


@pytest.mark.parametrize(
    "call",
    [
        'sgl.gen("a", 16, stop=["x"], temperature=0, top_k=-1, top_p=1.0)',
        'sgl.gen("a", max_tokens=0, return_logprob=True, top_logprobs_num=10)',
        'sgl.gen("a", dtype=int, stop=" ")',
        'sgl.gen("a", regex="(ab)+", stop="ba")',
        'sgl.gen("a", json_schema=\'{"type": "object"}\', stop="}")',
        'sgl.gen("a", **options)',
        'sgl.gen("a", choices=names, max_tokens=3)',
        'sgl.gen_string("a", 16, 2, "x")',
        'sgl.select("a", ["x", "y"], choices_method=sgl.greedy_token_selection)',
        "sgl.video(path, 4) + sgl.image(path)",
    ],
)
def test_values_that_are_right(call: str) -> None:
    assert found(f"NODE = {call}") == []


def test_a_grammar_that_only_this_engine_refuses_is_a_warning_with_a_remote_backend() -> None:
    text = 'import sgl\nNODE = sgl.gen("a", regex="(?=x)y")\n'
    remote = text + 'sgl.set_default_backend(sgl.OpenAI("gpt"))\n'
    assert [problem.severity for problem in check_source(text)] == ["error"]
    assert [problem.severity for problem in check_source(remote)] == ["warning"]


@pytest.mark.parametrize(
    ("call", "rules"),
    [
        ("qa.run(question=1, temperture=0)", ["SGL603"]),
        ("qa.run(1, 2, 3)", ["SGL603"]),
        ("qa.run()", ["SGL603"]),
        ("qa.run(1, temperature='0')", ["SGL402"]),
        ("qa.bind(qestion=1)", ["SGL603"]),
        ("qa.run_batch([(1, 2, 3)])", ["SGL603"]),
        ("qa.run_batch(['text'])", ["SGL603"]),
        ("qa.run_batch([{'hint': x} for x in y])", ["SGL603"]),
        ("qa.run_batch([], num_thread=3)", ["SGL603"]),
        ("qa.run(1, 2, temperature=0, max_new_tokens=3, stream=True, backend=b)", []),
        ("qa.run(*arguments)", []),
        ("qa.run(**arguments)", []),
        ("qa.bind(question=1).run()", []),
        ("qa.bind(question=1).run_batch([{'hint': 2}], num_threads=2, progress_bar=True)", []),
        ("qa.run_batch([(1,), (2, 3)], return_exceptions=True)[0].args", []),
        ("qa.run_batch(arguments, temperature=0)", []),
    ],
)
def test_arguments(call: str, rules: list[str]) -> None:
    head = 'import sgl\n@sgl.function\ndef qa(s, question, hint=""):\n    s += question + sgl.gen("a")\n'
    assert [problem.rule for problem in check_source(head + call + "\n")] == rules


# --- roles, text, loops, async -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('with s.user():\n    s += sgl.assistant("x")', ["2:SGL201"]),
        ('with s.user():\n    s.user("x")', ["2:SGL201"]),
        ("s += sgl.user(sgl.assistant(topic))", ["1:SGL201"]),
        ("for _ in range(2):\n    s += sgl.assistant_begin() + topic", ["2:SGL201"]),
        ("for _ in topic:\n    s += sgl.user_begin() + topic", ["2:SGL201"]),
        ("if flag:\n    s += sgl.user_begin()\ns += topic\nif flag:\n    s += sgl.user_end()", []),
        ("with s.user():\n    s += topic\nwith s.assistant():\n    s += sgl.gen('a')", []),
        ("s += sgl.assistant_begin() + topic\ns += sgl.gen('a')", []),
        ("s += sgl.system() + sgl.user(topic) + sgl.assistant(sgl.gen('a') + 'x' + sgl.gen('b'))", []),
    ],
)
def test_roles(body: str, expected: list[str]) -> None:
    assert program(body) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("s += 'x %s' % sgl.gen('a')", ["1:SGL301"]),
        ("s += 'x {}'.format(sgl.user('a'))", ["1:SGL301"]),
        ("s += ' '.join(['x', sgl.gen('a')])", ["1:SGL301"]),
        ("s += str(sgl.gen('a'))", ["1:SGL301"]),
        ("s += None", ["1:SGL302"]),
        ("s += 3", ["1:SGL302"]),
        ("s += 'x %s' % topic + f'{flag}' + sgl.gen('a')", []),
        ("s += ', '.join(topic) + str(flag)", []),
        ("s += sgl.gen('a')\ns['a'] > 3", ["2:SGL105"]),
        ("s += sgl.gen('a')\ns['a'] == 3", ["2:SGL105"]),
        ("s += sgl.gen('a')\n3 - s['a']", ["2:SGL105"]),
        ("s += sgl.gen('a')\ns['a'] * 3 + s['a'] == '3'", []),
        ("s += sgl.gen('a')\ns.get('a') + 1", []),
    ],
)
def test_text_and_numbers(line: str, expected: list[str]) -> None:
    assert program(line) == expected


@pytest.mark.parametrize(
    ("loop", "reported"),
    [
        ("while s['a'] != 'ok':\n    s += sgl.gen('a')", True),
        ("while 'ok' not in s['a'].lower():\n    s += sgl.gen('a')", True),
        ("answer = s['a']\nwhile answer != 'ok':\n    s += sgl.gen('a')\n    answer = s['a'].strip()", True),
        ("while True:\n    s += sgl.gen('a')\n    if s['a'] == 'ok':\n        return", True),
        ("i = 0\nwhile s['a'] != 'ok' and i < 3:\n    s += sgl.gen('a')\n    i += 1", False),
        (
            "i = 0\nwhile s['a'] != 'ok':\n    s += sgl.gen('a')\n    i += 1\n    if i > 3:\n        break",
            False,
        ),
        ("while True:\n    s += sgl.gen('a')\n    if input() == 'q':\n        break", False),
        ("i = 0\nwhile i < len(s['a']):\n    i += 1", False),
        ("for _ in range(3):\n    s += sgl.gen('a')\n    if s['a'] == 'ok':\n        break", False),
    ],
)
def test_loops(loop: str, reported: bool) -> None:
    assert [place.partition(":")[2] for place in program("s += sgl.gen('a')\n" + loop)] == ["SGL701"] * reported


def test_async_programs() -> None:
    body = """
    import asyncio
    @sgl.function
    async def qa(s, question):
        s += question + sgl.gen("a") + sgl.gen("b") + sgl.gen("c")
        s["a"]
        a = await s.get("a")
        s["a"]
        both = await asyncio.gather(s.get("b"), s.get("c"))
        later = s.get("c")
        await later
        s.text()
        f"{s.get('b')}"
        await s.text()
        s["b"]

    async def main():
        state = await qa.arun(question="x")
        state["a"], state["d"]
    """
    assert found(body) == ["6:SGL802", "12:SGL801", "13:SGL801", "19:SGL101"]


def test_an_expected_error_is_not_reported() -> None:
    body = """
    import pytest
    def test():
        with pytest.raises(Exception):
            @sgl.function
            def wrong(state): ...
            sgl.gen("a", tempreture=0)
    """
    assert found(body) == []


# --- sources -----------------------------------------------------------------------------------------------


def test_comments_ignore() -> None:
    text = "import sgl\n"
    text += 'A = sgl.gen("a", n=0)  # sgl: ignore[SGL402]\n'
    text += 'B = sgl.gen("a", n=0)  # sgl: ignore[SGL401, SGL501]\n'
    text += 'C = sgl.gen("a", n=0)  # sgl: ignore\n'
    assert [problem.line for problem in check_source(text)] == [3]


def notebook(*cells: str) -> str:
    made = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    made.insert(1, {"cell_type": "markdown", "source": ["s['x'] is text"]})
    return json.dumps({"cells": made, "nbformat": 4})


def test_notebooks() -> None:
    text = notebook(
        "%pip install sgl\nimport sgl\n!ls",
        "@sgl.function\ndef qa(s):\n    s += sgl.gen('a')\n",
        "%%bash\necho 'not python'",
        "%time state = qa.run()\nfiles = !ls\nstate = await qa.arun()\n\nstate['b']",
    )
    [problem] = check_source(text, "book.ipynb")
    assert (problem.cell, problem.line, problem.rule) == (5, 5, "SGL101")
    assert str(problem).startswith("book.ipynb:cell 5:5:1: SGL101 ")
    with pytest.raises(ValueError, match="is not a notebook"):
        check_source("[]", "book.ipynb")


def test_places_count_characters(tmp_path: object) -> None:
    [problem] = check_source("import sgl\nX = ('ü€', sgl.gen('a', n=0))\n", "x.py")
    assert problem.source[problem.column - 1 :].startswith("0))")


@sgl.function
def live(s, topic):  # type: ignore[no-untyped-def]
    s += topic + sgl.gen("answer")
    return s["anwser"]


def test_live_programs() -> None:
    [problem] = check_program(live)
    assert problem.rule == "SGL101" and problem.source.strip() == 'return s["anwser"]'
    assert check_program(live) == [p for p in check_path(__file__) if "anwser" in p.source and p.cell is None][-1:]


def test_a_program_of_no_file() -> None:
    names: dict[str, object] = {}
    exec("import sgl\n@sgl.function\ndef made(s):\n    s['x']\n", names)
    with pytest.raises(OSError):
        check_program(names["made"])  # type: ignore[arg-type]


def test_problems_have_everything() -> None:
    [problem] = check_source("import sgl\nX = sgl.gen('a', n=0)\n", "x.py")
    message = "gen: n is 0; give 1 or more"
    assert problem == Problem("x.py", 2, 20, "SGL402", "error", message, "X = sgl.gen('a', n=0)")


def test_toolboxes_typed_gens_and_reads_by_node() -> None:
    body = """
    AGE = sgl.gen("age", int, max_tokens=8)
    BOX = sgl.tools([len])

    @sgl.function
    def agent(s, task, box=BOX, tokens=16):
        s += box + task + AGE + sgl.gen("kind", list[int]) + sgl.gen("more", tokens, stop="x")
        s.get(AGE) + 1, s["kind"], s["more"], s["step"]

    @sgl.function
    def wrong(s, task, tokens=16):
        s += AGE + sgl.gen("more", tokens, stopp="x") + sgl.gen("n", int, regex="x")
        s["age"], s["step"]
    """
    assert found(body) == ["12:SGL401", "12:SGL405", "13:SGL101"]


def test_async_forks_and_calls() -> None:
    body = """
    @sgl.function
    async def plan(s, task, other):
        forks = s.fork(2)
        forks += sgl.gen("a")
        await forks.join()
        await s.get("a")
        async with s.copy() as c:
            c += sgl.gen("b")
        state = await s.call(other, task)
        s.call(other, task)
    """
    assert found(body) == ["11:SGL801"]


def test_too_deep_is_said() -> None:
    text = "import sgl\nX = " + " + ".join(["sgl.gen('a')"] * 900) + "\n"
    [problem] = check_source(text, "x.py")
    assert problem.rule == "SGL001" and "too deeply" in problem.message


@pytest.mark.parametrize("name", [name for name in sgl.__all__ if name.islower()])
def test_every_public_name_may_be_called_in_a_program(name):
    text = f"import sgl\n\n@sgl.function\ndef program(s):\n    value = sgl.{name}(s)\n"
    assert "SGL406" not in [problem.rule for problem in check_source(text)]
