"""EBNF case by case: the three syntaxes, what they refuse, and that nesting and ambiguity stay cheap."""

import re
from pathlib import Path

import pytest
from grammar_support import CORES, accepts, automaton, byte_vocabulary

from sgl.grammars import Grammar, InvalidGrammarError, UnsupportedGrammarError, compile_ebnf
from sgl.grammars.ebnf import ebnf_expr
from sgl.grammars.errors import GrammarLimitError

GRAMMARS = Path(__file__).parent / "ebnf"
VOCABULARY = byte_vocabulary()

LARK = [
    ('start: "a" b*\nb: "x" | "y"i', ["a", "axY", "ayx"], ["", "aX", "xa"]),
    ('start: A\nA: "a".."c" /[0-9]+/', ["a0", "c12"], ["d0", "a"]),
    ('start: "a"~2..3 "b"~2 ["c"] ("d")+', ["aabbd", "aaabbcdd"], ["abbd", "aabb", "aabbccd"]),
    ('start: "a"\n  | "b" -> named  // a comment\n  # another | one\n  | "c"', ["a", "b", "c"], ["ab", ""]),
    ('start: ("a"\n  "b")+', ["ab", "abab"], ["a"]),
    ('start: "a" \\\n "b" \\  \n | x // no \\\nx: "c"', ["ab", "c"], ["a", "b"]),
    ('?start: x\n!?x: _y\n_y.2: T\nT.-1: "a"', ["a"], ["b"]),
    ('start: _list{A, ","}\n_list{x, sep}: x (sep x)*\nA: "a"', ["a", "a,a,a"], ["", "a,"]),
    ('start: _list{a} | _list{"b"}\n_list{x}: _list{x} x | x\na: "a"', ["a", "aaa", "bb"], ["ab"]),
    ('start: "a" "b" W\nW: "x" "y"\n%ignore " "', ["abxy", " a  b xy  "], ["a b x y", ""]),
    ('start: "a" /b*/ "c"\n%ignore / |\\n/', ["ac", "a bb c", "a\n\nc"], ["a b b c"]),
    ('start: ("ab" | "a") ("bc" | "c")', ["abc", "abbc", "ac"], ["ab"]),  # every way to cut counts
    ('start: "if" | /[a-z]+/', ["if", "iffy"], ["I"]),
    ("start: /a.c/s /[A-Z]/i", ["a\ncz", "aécZ"], ["ac1", "abc"]),
    ("start: /a b # no\n [ ] c/x", ["ab c"], ["abc"]),
    ('start: /a  # one\n  b/x "c"', ["abc"], ["a"]),
    (r"start: /a\/b\\\"/", ['a/b\\"'], ["a"]),
    (r'start: "\n\t\\\"\x41\u00e9\U0001F600\d"', ['\n\t\\"Aé😀\\d'], ["d"]),
    ('start: "é"i "ß"i "K"i', ["éßk", "ÉßK"], ["eßk", "éß"]),
    ("start: /[^a]/i", ["b", "Ω"], ["a", "A"]),
    (
        "%import common.INT\n%import common (WORD, WS)\n%import common.CNAME -> N\nstart: INT WORD N\n%ignore WS",
        ["12 ab _c1", "1ab"],
        ["ab 1 c"],
    ),
    (
        'start: %json {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]} "!"',
        ['{"a": 1}!'],
        ['{"a": 1}', '{"b": 1}!'],
    ),
    ('start: | a\na: a "x" |', ["", "x", "xxx"], ["y"]),
]

COMMON = {
    "SIGNED_NUMBER": (["1", "-2.5e+3", ".5", "5."], ["", "-", "e5", "1e"]),
    "FLOAT": (["1.0", "1e5", ".5E-3"], ["1", "."]),
    "ESCAPED_STRING": (['""', r'"a\"b"', r'"\\"'], ['"', '"a"b"', '"\n"', r'"\"']),
    "C_COMMENT": (["/**/", "/* a * b **/"], ["/*/", "/* a */ b */"]),
    "NEWLINE": (["\n", "\r\n\n"], ["\r", ""]),
    "HEXDIGIT": (["a", "F", "0"], ["g"]),
    "SQL_COMMENT": (["-- a"], ["- a", "--\n"]),
}

BNF = [
    ('root ::= "a" b-2*\nb-2 ::= "x" | # comment\n "y"', ["a", "axyx"], ["ab"]),
    (r'root ::= "\n\t\\\"\x41\u00e9\U0001F600"', ['\n\t\\"Aé😀'], ["n"]),
    (
        r"root ::= [a-c^\-\]\n-] [^\x41-C\\] [-x] [é-ü]",
        ["aDxé", "]é-ü", "\nd-ö", "^d-ö", "-d-ö"],
        ["dDxé", "aBxé", "a\\xé"],
    ),
    ('root ::= ("a" | "b"\n  "c")+ .', ["abc\n", "a€"], ["a", "b."]),
    ('root ::= "a"{2} "b"{1,} "c"{0,2} "d"{,1}', ["aab", "aabbccd"], ["ab", "aabccc", "aabdd"]),
    ('root ::= x y x ::= "1" y ::= "2"', ["12"], ["1"]),
    ("/* c */ root ::= 'q' /* d\n e */ \"r\"", ["qr"], ["q"]),
    ('root ::= "" | "a" root', ["", "aaa"], ["b"]),
    ('root ::= "("* "a"{3}{2}', ["aaaaaa", "((aaaaaa"], ["aaa"]),
]


def _check(text: str, good: list[str], bad: list[str], **options) -> None:
    for core in CORES:
        grammar = Grammar(ebnf_expr(text, **options), VOCABULARY, core)
        assert [t for t in good if not accepts(grammar, t)] == []
        assert [t for t in bad if accepts(grammar, t)] == []


@pytest.mark.parametrize(("text", "good", "bad"), LARK)
def test_lark_syntax(text, good, bad):
    _check(text, good, bad)


@pytest.mark.parametrize("name", COMMON)
def test_common_terminals(name):
    _check(f"%import common.{name}\nstart: {name}", *COMMON[name])


@pytest.mark.parametrize(("text", "good", "bad"), BNF)
def test_gbnf_and_w3c_syntax(text, good, bad):
    _check(text, good, bad)
    _check(text, good, bad, syntax="gbnf")


def test_the_start_rule_can_be_chosen():
    _check('start: "a"\nother: "b"', ["b"], ["a"], start="other")
    _check('root ::= "a"\nother ::= "b"', ["b"], ["a"], start="other")


MALFORMED = [
    ('root ::= ("a"', "expected ')'", "1:14"),
    ('root ::= "a', "a string that does not end", "1:10"),
    ("root ::= [a", "a class that does not end", "1:10"),
    ('root ::= "a"\nb := "x"', "unexpected ':'", "2:3"),
    ('root ::= nam\nname ::= "x"', "the rule 'nam' is not defined; did you mean 'name'?", "1:10"),
    ('root ::= "x"\na ::= "x"\n  a ::= "y"', "'a' is defined twice", "3:3"),
    ('roots ::= "a"', "there is no start rule 'root'; did you mean 'roots'?", "1:1"),
    ('a ::= "a"\nroot ::= "x" root', "the start rule 'root' matches no text", "2:1"),
    ("root ::= *", "unexpected '*', expected something to repeat", "1:10"),
    ('root ::= "a"{2,1}', "at least 2 and at most 1", "1:13"),
    ('root ::= "a"{x}', "bad repeat '{x}'", "1:13"),
    ('root ::= "b\\q"', "unknown escape", "1:12"),
    ("root ::= [z-a]", "bad character range z-a", "1:11"),
    ("root ::= []", "an empty character class", "1:11"),
    ('root ::= "\\ud800"', "bad character escape 'd800'", "1:11"),
    ("start: nam\nname: /x/", "the rule 'nam' is not defined; did you mean 'name'?", "1:8"),
    ("start: X", "the rule 'X' is not defined", "1:8"),
    ("start: /a(/", "missing ')'", "1:8"),
    ("start: /a\nb: /c/", "a regex or a comment that does not end", "1:8"),
    ("root ::= /* a", "a regex or a comment that does not end", "1:10"),
    ('Start: "a"', "mixes cases", "1:1"),
    ('start: "a"\nA: start', "called inside a terminal", "2:4"),
    ('start: A\nA: "a" & B\nB: "b" | A', "'B' is part of itself", "2:8"),
    ('start: A\nA: "a" & "b"', "no text matches this terminal", "2:8"),
    ("start: /(?=a)b/", "matches no text", "1:8"),
    ("start: /a*?/", "matches only the empty text", "1:8"),
    ('%override start: "a"', "the rule 'start' is not defined", "1:11"),
    ('start: "a"\n%extend stat: "a"', "did you mean 'start'?", "2:9"),
    ("start: %regex 7", "%regex takes an object", "1:8"),
    ('start: "a"{2,1}', "at least 2 and at most 1", "1:11"),
    ('start: "a"{,}', "expected a count", "1:13"),
    ('start: "a"\nb{x}: x\nb: "y"', "'b' is defined twice", "3:1"),
    ("%import common.NUMBRE", "no terminal 'NUMBRE'; did you mean 'NUMBER'?", "1:16"),
    ('start: _two{"a"}\n_two{x, y}: x y', "takes 2 arguments", "1:8"),
    ('start: _tow{"a"}\n_two{x}: x', "the template '_tow' is not defined; did you mean '_two'?", "1:8"),
    ('start: "a" .. "bc"', "bad character range", "1:8"),
    ('start: "a" b: "c"', "unexpected ':'", "1:13"),
    ('start: ["a"', "expected ']'", "1:12"),
    ("", "there is no start rule 'start'", "1:1"),
    ('start: %json {"type": "objekt"}', "type 'objekt' is unknown", "1:8, #/type"),
    ("start: %json {a}", "not followed by a JSON value", "1:8"),
]


@pytest.mark.parametrize(("text", "what", "place"), MALFORMED)
def test_malformed_grammars_name_what_and_where(text, what, place):
    with pytest.raises(InvalidGrammarError, match=re.escape(what)) as caught:
        ebnf_expr(text)
    assert caught.value.where.startswith(place)


REFUSED = [
    ('root ::= (= "a") "b"', "lookahead assertion"),
    ('root ::= TagDispatch(("a", b))\nb ::= "b"', "macro TagDispatch"),
    ('root ::= <think> "a"', "token <think> in a grammar that is read without a vocabulary"),
    ('root ::= !<[12]> "a"', "token <[12]> in a grammar that is read without a vocabulary"),
    ('root ::= "a"{2000000}', "a repeat of more than"),
    ("start: /(?=a(?!b))a/", "look-around in look-around"),
    ("start: /a*?$/", "anchor $"),
    ("start: /^a/", "anchor ^"),
    ("start: /a/l", "regex flag l"),
    ("start: X\n%declare X", "terminal X of %declare"),
    ('start: "a"\n%llguidance {"ignore_once": true}', "option 'ignore_once'"),
    ("%import python.NAME", "%import from 'python'"),
    ("%import .mine.NAME", "%import from '.mine'"),
    ("start: <think>", "token <think> in a grammar that is read without a vocabulary"),
    ("start: @other", "reference to another grammar @other"),
    ('start: %regex {"pattern": "a"}', "%regex pattern"),
    ('start[max_tokens=3]: "a"', "rule attribute max_tokens"),
    ('start[stop="x"]: "a"', "rule attribute stop"),
    ('start: "a" & "b"', "operator & outside of a terminal"),
    ('start: ~"b"', "operator ~ outside of a terminal"),
    ('start: A\nA: B /c*?d/\nB: "a" & /[a-c]/', "together with look-around"),
    ('start: %json {"type": "string", "pattern": "(?=a)"}', "look-ahead"),
]


@pytest.mark.parametrize(("text", "construct"), REFUSED)
def test_what_is_not_enforced_is_refused_by_name(text, construct):
    with pytest.raises(UnsupportedGrammarError, match=re.escape(construct)):
        ebnf_expr(text)


@pytest.mark.parametrize(("text", "syntax"), [(None, "auto"), ('start: "a"', "yacc"), ('start: "a"', "gbnf")])
def test_wrong_arguments_are_refused(text, syntax):
    with pytest.raises(InvalidGrammarError):
        ebnf_expr(text, syntax=syntax)


def test_templates_that_grow_for_ever_are_stopped():
    with pytest.raises(GrammarLimitError):
        ebnf_expr('start: a{"x"}\na{x}: x | a{b{x}}\nb{x}: x x')


def _most_threads(text: str, lines: str, core: str = CORES[0]) -> tuple[int, int]:
    """(threads of the largest state on the way, states made) of a text that must be accepted."""
    machine = automaton(ebnf_expr(text), VOCABULARY, core)
    state, most = machine.start, 0
    for byte in lines.encode():
        state = machine.advance(state, bytes([byte]))
        assert state >= 0
        most = max(most, len(machine.core.threads(state)))
    assert machine.final(state)
    return most, machine.core.size()


def test_ambiguous_operators_cost_no_threads():
    text = (GRAMMARS / "ambiguous.lark").read_text()
    assert _most_threads(text, "1" + "+-1*2" * 1000) <= (12, 12)
    assert _most_threads(text, "(" * 60 + "1" + ")" * 60)[0] <= 12
    assert _most_threads(text, "1?" * 60 + "2" + ":3" * 60)[0] <= 12


def test_right_recursion_and_lists_cost_few_threads():
    assert (
        _most_threads('root ::= item | item "," root\nitem ::= "a" | "[" root "]"', "[" * 60 + "a" + "]" * 60)[0] <= 9
    )
    assert _most_threads('root ::= "[" (root ",")* root "]" | "a"', "[" * 60 + "a" + "]" * 60)[0] <= 9


@pytest.mark.parametrize(
    "lines", ["(" * 60 + "a" + ")" * 60 + ";", "{" * 60 + "}" * 60, "a[" * 60 + "1" + "]" * 60 + "=2;"]
)
def test_what_begins_alike_costs_few_threads(lines):
    """An assignment and a condition begin with the same unary: 2^60 stacks if nothing were shared."""
    assert _most_threads((GRAMMARS / "clike.gbnf").read_text(), lines)[0] <= 80


def test_too_deep_nesting_is_a_limit():
    with pytest.raises(GrammarLimitError):
        compile_ebnf("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, VOCABULARY)


CHAINS = [
    ('r{0} ::= r{1} | "{0}" r{1}', 'r{0} ::= "z"', ["z", "12z", "21z"], ["zz", "z1"]),
    ('r{0} ::= "(" r{1} ")"', 'r{0} ::= "z"', ["(" * 3000 + "z" + ")" * 3000], ["(z)"]),
    ('r{0} ::= r{1} "a"', 'r{0} ::= "z"', ["z" + "a" * 3000], ["za"]),
    ('r{0} ::= r{1} ("+" r{1})*', 'r{0} ::= "z" | "(" root ")"', ["z+z+(z+z)"], ["z+", "z)"]),
]


@pytest.mark.parametrize(("rule", "last", "good", "bad"), CHAINS)
def test_long_chains_of_rules(rule, last, good, bad):
    rules = [rule.format(i, i + 1) for i in range(3000)]
    text = "\n".join(["root ::= r0", *rules, last.format(3000)])
    grammar = compile_ebnf(text, VOCABULARY)
    assert all(accepts(grammar, t) for t in good) and not any(accepts(grammar, t) for t in bad)


@pytest.mark.parametrize(
    "rule",
    [
        'r{0}: r{1} "+" r{0} | r{1}',
        'r{0}: r{1} | r{1} "+" r{0}',
        'r{0}: r{1} "+" r{0} | r{1} "-" r{0} | r{1} | "u" r{0}',
    ],
)
def test_chains_of_rules_that_go_on_in_two_ways(rule):
    def chain(levels: int) -> Grammar:
        rules = [rule.format(i, i + 1) for i in range(levels)]
        return compile_ebnf("\n".join(["start: r0", *rules, f'r{levels}: "x" | "(" r0 ")"']), VOCABULARY)

    grammar = chain(200)
    assert accepts(grammar, "x+(x+(x))+x") and not accepts(grammar, "x+") and not accepts(grammar, "x)")
    assert accepts(chain(12), "(x+x)+" * 20 + "(" * 20 + "x" + ")" * 20)


def test_too_long_chains_are_told_at_once_and_not_within_a_text():
    rules = [f'r{i}: r{i + 1} "+" r{i} | r{i + 1} "-" r{i} | r{i + 1} | "u" r{i}' for i in range(2500)]
    with pytest.raises(GrammarLimitError):
        compile_ebnf("\n".join(["start: r0", *rules, 'r2500: "x"']), VOCABULARY)


@pytest.mark.parametrize("text", ["root ::= {}", "root ::= ({}) [0-9] |", "start: {}", 'start: {}\n%ignore " "'])
def test_thousands_of_alternatives_are_a_trie(text):
    literals = " | ".join(f'"word{i:04}"' for i in range(3000))
    machine = automaton(ebnf_expr(text.format(literals)), VOCABULARY, CORES[0])
    state = machine.advance(machine.start, b"word")
    assert len(machine.core.threads(state)) <= 3
    assert machine.advance(state, b"2999") >= 0
    assert machine.advance(state, b"3000") < 0


def test_compiled_grammars_are_shared():
    text = 'start: "a"+'
    assert compile_ebnf(text, VOCABULARY) is compile_ebnf(text, VOCABULARY)
    assert accepts(compile_ebnf(text, VOCABULARY), "aa")
