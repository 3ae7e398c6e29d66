"""Random programs: what runs cleanly has no errors; what always fails by a missing variable has a problem."""

from __future__ import annotations

import itertools
import linecache
import random
from collections.abc import Iterator
from typing import Any

import pytest
from lang_rules import RuleBackend

from sgl.lang.check import check_source
from sgl.lang.errors import ProgramError

NAMES = ("a", "b", "c", "d")
FLAGS = ("p", "q")


class Writer:
    """Writes the body of a program. It knows which names are likely made, but reads others too."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.made: list[str] = []
        self.role = False
        self.forks = 0

    def body(self, depth: int, state: str, indent: str) -> Iterator[str]:
        for _ in range(self.random.randint(1, 4)):
            kinds = ["gen", "gen", "text", "read", "set"]
            kinds += [] if depth == 0 else ["if", "for", "fork", "scope", "copy", "helper", "try"]
            kinds += [] if self.role else ["turn", "turn_with", "turn_pair"]
            kind = self.random.choice(kinds)
            for line in getattr(self, f"_{kind}")(depth - 1, state):
                yield indent + line

    def _name(self) -> str:
        known = self.made and self.random.random() < 0.9
        return self.random.choice(self.made if known else NAMES)

    def _make(self) -> str:
        name = self.random.choice(NAMES)
        self.made.append(name)
        return name

    def _gen(self, depth: int, state: str) -> Iterator[str]:
        if self.random.random() < 0.3:
            yield f"{state} += 'x' + sgl.select({self._make()!r}, choices=['yes', 'no'])"
        else:
            yield f"{state} += sgl.gen({self._make()!r}, max_tokens=4) + '.'"

    def _text(self, depth: int, state: str) -> Iterator[str]:
        yield f"{state} += 'some text'"

    def _read(self, depth: int, state: str) -> Iterator[str]:
        yield f"{state} += 'read: ' + str({state}[{self._name()!r}])"

    def _set(self, depth: int, state: str) -> Iterator[str]:
        yield f"{state}[{self._make()!r}] = 'value'"

    def _turn(self, depth: int, state: str) -> Iterator[str]:
        yield f"{state} += sgl.user('hello') + sgl.assistant('I say ' + sgl.gen({self._make()!r}))"

    def _turn_with(self, depth: int, state: str) -> Iterator[str]:
        yield f"with {state}.user():"
        self.role = True
        yield from self.body(max(depth, 0), state, "    ")
        self.role = False

    def _turn_pair(self, depth: int, state: str) -> Iterator[str]:
        yield f"{state} += sgl.assistant_begin()"
        self.role = True
        yield from self.body(max(depth, 0), state, "")
        self.role = False
        yield f"{state} += sgl.assistant_end()"

    def _if(self, depth: int, state: str) -> Iterator[str]:
        yield f"if {self.random.choice(FLAGS)}:"
        before = list(self.made)
        yield from self.body(depth, state, "    ")
        if self.random.random() < 0.6:
            self.made, inside = before, self.made
            yield "else:"
            yield from self.body(depth, state, "    ")
            self.made = [name for name in self.made if name in inside]

    def _for(self, depth: int, state: str) -> Iterator[str]:
        yield f"for i in range({self.random.choice(('2', 'rounds'))}):"
        yield from self.body(depth, state, "    ")

    def _fork(self, depth: int, state: str) -> Iterator[str]:
        self.forks += 1
        group = f"forks{self.forks}"
        yield f"{group} = {state}.fork({self.random.choice(('1', '2', 'rounds'))})"
        if self.random.random() < 0.5:
            yield f"{group} += 'each ' + sgl.gen({self._make()!r})"
        yield f"for f{self.forks} in {group}:"
        yield from self.body(depth, f"f{self.forks}", "    ")
        yield f"{group}.join()"

    def _scope(self, depth: int, state: str) -> Iterator[str]:
        name = self.random.choice(NAMES)
        yield f"with {state}.var_scope({name!r}):"
        yield from self.body(depth, state, "    ")
        self.made.append(name)

    def _copy(self, depth: int, state: str) -> Iterator[str]:
        self.forks += 1
        yield f"with {state}.copy() as c{self.forks}:"
        yield from self.body(depth, f"c{self.forks}", "    ")

    def _helper(self, depth: int, state: str) -> Iterator[str]:
        yield f"ask({state}, {self._make()!r})"

    def _try(self, depth: int, state: str) -> Iterator[str]:
        yield "try:"
        yield f"    {state} += str({state}[{self.random.choice(NAMES)!r}])"
        yield "except KeyError:"
        yield f"    {state} += 'caught: ' + sgl.gen({self._make()!r})"


def source(seed: int) -> str:
    lines = [
        "import sgl",
        "",
        "def ask(state, name):",
        "    state += 'asked: ' + sgl.gen(name)",
        "",
        "@sgl.function",
        "def program(s, p, q, rounds):",
        *Writer(seed).body(3, "s", "    "),
    ]
    return "\n".join(lines) + "\n"


def outcomes(text: str, backend: RuleBackend) -> list[BaseException | None]:
    """What running the program with every value of its flags ends in."""
    names: dict[str, Any] = {}
    exec(compile(text, "random_program.py", "exec"), names)
    found: list[BaseException | None] = []
    for p, q in itertools.product((False, True), repeat=2):
        try:
            state = names["program"].run(p=p, q=q, rounds=2, backend=backend)
            found.append(state.error())
        except (KeyError, ProgramError) as error:
            found.append(error)
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("start", range(0, 400, 50))
def test_random_programs(start: int) -> None:
    backend = RuleBackend(template="chatml")
    clean = missing = 0
    for seed in range(start, start + 50):
        text = source(seed)
        problems = check_source(text, "random_program.py")
        ends = outcomes(text, backend)
        if not any(ends):
            clean += 1
            assert not [p for p in problems if p.severity == "error"], f"{seed}\n{text}\n{problems}"
        elif all(isinstance(error, KeyError) for error in ends):
            missing += 1
            rules = {problem.rule for problem in problems}
            assert rules & {"SGL101", "SGL102"}, f"{seed}\n{text}\n{ends}\n{problems}"
    linecache.clearcache()
    assert clean > 5 and missing > 3
