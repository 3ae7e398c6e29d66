"""Expressions far deeper than a thread's stack: an error, also where the limit of Python's own calls is far away."""

from __future__ import annotations

import subprocess
import sys

import pytest
from grammar_support import CORES

DEEP = """
import sys, threading

from sgl.grammars import Grammar, GrammarLimitError, Vocabulary
from sgl.grammars.algebra.expr import Alt, CharClass, Literal, Repeat, Seq, alt, nullable
from sgl.grammars.algebra.grammar_core_extension import extension
from sgl.grammars.algebra.language_operations import combine

CORE, DEPTH, SIZE = extension(), int(sys.argv[1]), int(sys.argv[2])
A, LETTER = Literal(b"a"), CharClass(((98, 98),))
ROWS = {
    "rows": lambda inner: Seq((Alt((inner, A)), A)),
    "ends": lambda inner: Seq((Literal(b""), Alt((A, Seq((Literal(b""), inner)))))),
    "repeats": lambda inner: Repeat(Seq((inner, A)), 1, 3),
}


def deep(kind):
    inner = A
    for _ in range(DEPTH):
        inner = ROWS[kind](inner)
    return inner


def told(name, walk):
    try:
        walk()
    except (RecursionError, GrammarLimitError) as error:
        print(name, "nested too deeply" in str(error) or "recursion" in str(error))
    else:
        print(name, "walked")


def walks():
    for kind in ROWS:
        one, other = deep(kind), deep(kind)
        told(f"{kind} nullable", lambda: nullable(one))
        told(f"{kind} calls", lambda: CORE.calls(one))
        told(f"{kind} left calls", lambda: CORE.left_calls(one))
        told(f"{kind} substitute", lambda: CORE.substitute(one, lambda rule: None))
        told(f"{kind} empty", lambda: CORE.may_be_empty(one, set(), {}))
        told(f"{kind} end", lambda: CORE.may_end(one, set(), {}))
        told(f"{kind} size", lambda: CORE.size(one, {}, 100))
        told(f"{kind} same", lambda: alt(one, other))
        told(f"{kind} lower", lambda: Grammar(one, Vocabulary.from_bytes([b"a"], [])).matcher().mask())
        told(f"{kind} combine", lambda: combine([one, LETTER]))


sys.setrecursionlimit(10**8)
threading.stack_size(SIZE)
thread = threading.Thread(target=walks)
thread.start()
thread.join()
print("alive")
"""


@pytest.mark.skipif(len(CORES) < 2, reason="there is no compiled core")
def test_a_walk_ends_with_an_error_before_the_stack_of_a_thread_does():
    found = subprocess.run([sys.executable, "-c", DEEP, "20000", str(256 << 10)], capture_output=True, text=True)
    lines = found.stdout.splitlines()
    assert found.returncode == 0 and lines[-1] == "alive" and len(lines) == 31, found.stderr[-2000:]
    assert not [line for line in lines if line.endswith("False")]
    assert sum(line.endswith("True") for line in lines) >= 20


SHALLOW = """
import threading

from sgl.grammars import Vocabulary, compile_ebnf

VOCABULARY = Vocabulary.from_bytes([b"a"], [])
compile_ebnf('root ::= "b"', VOCABULARY).matcher()  # imports need more of a stack
threading.stack_size(64 << 10)
thread = threading.Thread(target=lambda: print(compile_ebnf('root ::= ("a" | "b" "c")+', VOCABULARY).matcher().accept(0)))
thread.start()
thread.join()
"""  # noqa: E501


def test_little_room_is_enough_for_a_grammar_that_is_not_deep():
    assert subprocess.run([sys.executable, "-c", SHALLOW], capture_output=True, text=True).stdout == "True\n"
