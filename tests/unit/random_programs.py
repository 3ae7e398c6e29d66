"""Random programs over the whole language, as data that one sgl.function executes: the same body, traced or run."""

from __future__ import annotations

import zlib
from typing import Any

from hypothesis import strategies as st

import sgl

Op = tuple[Any, ...]
WORDS = ["a", "b c ", "one two", ".", "\n", "und "]


def from_prompt(prompt: str, request: Any) -> str:
    """A text that tells the whole prompt and the seed apart from all others."""
    seen = f"{prompt}|{request.options.seed}|{request.options.max_new_tokens}"
    return f"<{zlib.crc32(seen.encode()):x}>"


class Body:
    """Executes operations on states. `values` are variables that can be read, from any state, later on."""

    def __init__(self, s: Any, arguments: list[Any]) -> None:
        self.arguments = arguments
        self.values: list[tuple[Any, str]] = []
        self.states = [s]
        self.open: list[Any] = []
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def all(self, s: Any, ops: list[Op]) -> None:
        for kind, *rest in ops:
            getattr(self, kind)(s, *rest)

    def text(self, s: Any, text: str) -> None:
        s += text

    def argument(self, s: Any, index: int, text: str) -> None:
        s += text + self.arguments[index % len(self.arguments)] + text

    def gen(self, s: Any, named: bool, n: int, tokens: int) -> None:
        name = self.name() if named else None
        s += "g:" + sgl.gen(name, max_tokens=tokens, n=n)
        if name is not None:
            self.values.append((s, name))

    def select(self, s: Any, temperature: float) -> None:
        name = self.name()
        s += sgl.select(name, ["yes", "no", "maybe"], temperature=temperature)
        self.values.append((s, name))

    def read(self, s: Any, index: int, text: str) -> None:
        if self.values:
            state, name = self.values[index % len(self.values)]
            value = state[name]
            while isinstance(value, list):
                value = value[-1]
            s += text + value + text

    def store(self, s: Any, index: int) -> None:
        if self.values:
            state, name = self.values[index % len(self.values)]
            stored = self.name()
            s[stored] = state[name]
            self.values.append((s, stored))

    def turn(self, s: Any, role: str, in_block: bool, ops: list[Op]) -> None:
        if in_block:
            with getattr(s, role)():
                self.all(s, ops)
        else:
            s += getattr(sgl, role)("in the turn" + sgl.gen(max_tokens=3))

    def scope(self, s: Any, ops: list[Op]) -> None:
        name = self.name()
        with s.var_scope(name):
            self.all(s, ops)
        self.values.append((s, name))

    def adapted(self, s: Any, name: str | None, ops: list[Op]) -> None:
        with s.adapter(name):
            self.all(s, ops)

    def fork(self, s: Any, branches: list[list[Op]], between: list[Op], mode: str | None) -> None:
        group = s.fork(len(branches))
        self.states += group
        for child, ops in zip(group, branches, strict=True):
            child += "child "
            self.all(child, ops)
        self.all(s, between)
        if mode is None:
            self.open += group
        else:
            group.join(mode)
            known = [name for child in group for name in names_of(child)]
            self.values += [(s, name) for name in dict.fromkeys(known) if mode == "gather_variable" and name in s]

    def revisit(self, s: Any, index: int, ops: list[Op]) -> None:
        if self.open:
            self.all(self.open[index % len(self.open)], ops)

    def copy(self, s: Any, ops: list[Op]) -> None:
        with s.copy() as child:
            self.states.append(child)
            self.all(child, ops)

    def call(self, s: Any, ops: list[Op]) -> None:
        inner = s.call(called, self, ops)
        self.values += [(inner, name) for name in inner.ret_value]

    def nested(self, s: Any, ops: list[Op], seed: int) -> None:
        inner = nested(ops, self.arguments, seed=seed)
        self.states.append(inner)
        s += "n" + inner["last"]


def names_of(state: Any) -> list[str]:
    """Names of one child that a join gathers: those that its own gens made."""
    variables = state.variables if hasattr(state, "traced") else state.stream_executor.vars.declared()
    return sorted(name for name in variables if name and name.startswith("v"))


@sgl.function
def called(s, body, ops):
    before = len(body.values)
    body.all(s, ops)
    return [name for state, name in body.values[before:] if state is s]


@sgl.function
def nested(s, ops, arguments):
    body = Body(s, arguments)
    body.all(s, ops)
    s += sgl.gen("last")


def program_of(ops: list[Op]) -> Any:
    """The program of some operations; it returns its states and its last text."""

    @sgl.function
    def program(s, first, second="zwei"):
        body = Body(s, [first, second])
        body.all(s, ops)
        return {"states": body.states, "text": s.text(), "messages": s.messages()}

    return program


def operations(depth: int = 2, turns: bool = True) -> st.SearchStrategy[list[Op]]:
    """Lists of operations; those inside a turn open no other turn."""
    word, index = st.sampled_from(WORDS), st.integers(0, 9)
    plain = [
        st.tuples(st.just("text"), word),
        st.tuples(st.just("text"), word),
        st.tuples(st.just("argument"), index, word),
        st.tuples(st.just("gen"), st.booleans(), st.sampled_from([1, 1, 1, 2]), st.integers(1, 9)),
        st.tuples(st.just("gen"), st.just(True), st.just(1), st.integers(1, 9)),
        st.tuples(st.just("select"), st.sampled_from([0.0, 0.7])),
        st.tuples(st.just("read"), index, word),
        st.tuples(st.just("read"), index, word),
        st.tuples(st.just("store"), index),
    ]
    if depth == 0:
        return st.lists(st.one_of(plain), max_size=5)
    inner, inside = operations(depth - 1, turns), operations(depth - 1, turns=False)
    mode = st.sampled_from([None, "gather_variable", "concate_and_append"])
    deep = [
        st.tuples(st.just("scope"), inside),
        st.tuples(st.just("adapted"), st.sampled_from([None, "sql", "law"]), inside),
        st.tuples(st.just("fork"), st.lists(inner, min_size=1, max_size=3), inside, mode),
        st.tuples(st.just("copy"), inner),
        st.tuples(st.just("revisit"), index, inside),
        st.tuples(st.just("call"), inner),
        st.tuples(st.just("nested"), operations(0), st.integers(0, 99)),
    ]
    if turns:
        role = st.sampled_from(["system", "user", "assistant", "tool"])
        deep.append(st.tuples(st.just("turn"), role, st.booleans(), inside))
    return st.lists(st.one_of([*plain, *deep]), max_size=6)
