"""Plain statements of Lark's syntax read in C against the reading in Python: the same rules, or the same error."""

import random
import re
from pathlib import Path

import pytest
from ebnf_support import as_lark, random_grammar
from grammar_support import many

from sgl.grammars.algebra.expr import NEVER, Alt, AutomatonExpr, Expr, Repeat, RuleCall, Seq
from sgl.grammars.algebra.grammar_core_extension import extension
from sgl.grammars.algebra.language_operations import combine
from sgl.grammars.ebnf.grammar_imports import GrammarImports
from sgl.grammars.ebnf.grammar_literals import string_expr
from sgl.grammars.ebnf.grammar_source import GrammarText
from sgl.grammars.ebnf.lark_syntax import read_lark
from sgl.grammars.errors import GrammarError
from sgl.grammars.regex import parse_regex

pytestmark = pytest.mark.skipif(extension() is None, reason="the C core is not built")

WRITTEN = Path(__file__).parent / "ebnf"
GRAMMAR = r"""
// what is plain, and what is not
start: (statement | "é" NAME?)* -> all
     | [ "if"i expr ] "\"" "\\x" /[a-z]+\/?/is
?expr.2: expr "+" expr -> plus | expr ("*" expr)+ | NAME | -"-" expr
!statement: NAME "=" expr | pair{expr, ","} | NAME~2..3 | "a".."f" | "z"
       | _list  # goes on
_list: "[" [expr ("," expr)*] "]" | "" | () | []
pair{a, b}: a b a
NAME: LETTER (LETTER | "_" | /\d/)*
LETTER: "a".."z" | "é"
WORDS: "one" | "two" | "three" | "four" | "five" | "six" | "seven" | "eight" | "nine" LETTER
KEY.-1: "k"{2,3} & ~/kk/
COMMENT: /#[^\n]*/
%import common.WS
%ignore WS
%ignore COMMENT
"""
PIECES = [
    *(
        '"',
        "/",
        "|",
        "(",
        ")",
        "[",
        "]",
        "?",
        "*",
        "+",
        ":",
        "->",
        " ",
        "\n",
        "\n\n",
        "~",
        "{",
        "}",
        ".",
        "..",
        "&",
        "//",
        "#",
    ),
    *(
        "x",
        "X",
        "-",
        "start",
        "NAME",
        '"a"',
        '"b"i',
        "/c/",
        "2",
        "\\",
        "!",
        "%",
        "@",
        "<",
        "é",
        "\x00",
        "_",
        "\t",
        "x: y\n",
    ),
]


def _shown(expr: Expr, numbers: dict) -> object:
    match expr:
        case RuleCall(rule):
            return "call", rule.name, numbers.get(rule)
        case Seq(items) | Alt(items):
            return type(expr).__name__, *(_shown(item, numbers) for item in items)
        case Repeat(item, least, most):
            return "repeat", _shown(item, numbers), least, most
        case AutomatonExpr(edges, accepting):
            return "graph", tuple(tuple((_shown(e, numbers), t) for e, t in row) for row in edges), accepting
    return expr


def _read(text: str, compiled: bool) -> object:
    try:
        table = read_lark(GrammarText(text), GrammarImports({"other": 'x: "x"\nX: "X"'}), compiled=compiled)
        table.check()
    except (GrammarError, RecursionError) as error:
        return type(error), str(error)
    numbers = {rule: i for i, rule in enumerate(table.bodies)}
    return [(rule.name, _shown(body, numbers)) for rule, body in table.bodies.items()], _shown(table.before, numbers)


def _check(text: str) -> None:
    assert _read(text, True) == _read(text, False), text


@pytest.mark.parametrize("path", sorted(WRITTEN.glob("*.lark")), ids=lambda path: path.name)
def test_written_grammars(path):
    _check(path.read_text())


def test_plain_statements_are_read_in_c():
    text = 'start: "a" x [y] -> z\n  | /b/i (y | "c")+\nx: y?\n?y.3: "d"'
    seen: list[str] = []
    define = (lambda spelled, at: RuleCall, lambda spelled, at: Seq(()), lambda name, at, body: seen.append(name))
    assert extension().read_lark(text, 0, ({}, {}), define, None, Seq(())) == len(text)
    assert seen == ["start", "x", "y"]


@pytest.mark.parametrize("seed", range(4))
def test_changed_grammars(seed):
    """Pieces put in, taken out and moved, most of which are errors somewhere."""
    rng = random.Random(seed)
    for _ in range(many(250)):
        text = GRAMMAR
        for _ in range(rng.choice([0, 1, 1, 2, 3])):
            at = rng.randrange(len(text))
            end = min(len(text), at + rng.choice([0, 0, 1, 2, 12]))
            text = text[:at] + rng.choice([*PIECES, ""]) + text[end:]
        _check(text)


@pytest.mark.parametrize("seed", range(2))
def test_random_grammars(seed):
    rng = random.Random(seed)
    for _ in range(many(100)):
        _check(as_lark(random_grammar(rng, "abé"), "b"))
        _check("".join(rng.choices(PIECES, k=rng.randrange(1, 12))))
        _check("start: " + " ".join(rng.choices(PIECES, k=rng.randrange(1, 12))))


def test_strings_in_any_case_are_regexes_in_any_case():
    rng = random.Random(0)
    for _ in range(many(200)):
        text = "".join(rng.choice("aKſ1 -é*ßİ\\x") for _ in range(rng.randrange(6)))
        found, expected = string_expr(text, True), parse_regex(re.escape(text), flags="i")
        assert combine([found], [expected]) == combine([expected], [found]) == NEVER


def test_brackets_that_nest_deeply_are_left_to_python():
    _check("start: " + "(" * 90 + '"a"' + ")" * 90)
    _check("start: " + "(" * 200 + '"a"' + ")" * 200)
