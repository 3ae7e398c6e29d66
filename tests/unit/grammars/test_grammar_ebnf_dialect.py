"""What llguidance adds to Lark's syntax, imports from given texts, and terminals read as a lexer reads them."""

from __future__ import annotations

import random
import re
from itertools import product

import pytest
from ebnf_support import NAMES, as_lark, language, random_grammar
from grammar_support import CORES, accepts, automaton, byte_vocabulary, many

from sgl.grammars import Grammar, GrammarError, InvalidGrammarError, UnsupportedGrammarError, compile_ebnf
from sgl.grammars.ebnf import ebnf_expr

VOCABULARY = byte_vocabulary()


def _texts(letters: str, longest: int) -> list[str]:
    return ["".join(text) for size in range(longest + 1) for text in product(letters, repeat=size)]


def _taken(grammar: str, texts: list[str], **options) -> list[str]:
    machine = automaton(ebnf_expr(grammar, **options), VOCABULARY, CORES[0])
    ends = {text: machine.advance(machine.start, text.encode()) for text in texts}
    return [text for text, state in ends.items() if state >= 0 and machine.final(state)]


@pytest.mark.parametrize("seed", range(3))
def test_counts_in_braces_are_those_with_a_tilde(seed):
    rng = random.Random(seed)
    texts = _texts("ab", 5)
    for _ in range(many(25)):
        grammar = random_grammar(rng)
        text = re.sub(r"~(\d+)\.\.(\d+)", r"{\1,\2}", as_lark(grammar, "c"))
        text = re.sub(r"~(\d+)", r"{\1}", text)
        words = language(grammar, 5)
        try:
            assert set(_taken(text, texts, start=NAMES[0])) == words - {w for w in words if len(w) > 5}
        except InvalidGrammarError as error:
            assert "it never ends" in error.what and not words


@pytest.mark.parametrize(
    ("count", "good", "bad"),
    [("{2}", "aa", "aaa"), ("{1,}", "aaaa", ""), ("{,2}", "", "aaa"), ("{1,2}", "a", "aaa"), ("{0}", "", "a")],
)
def test_counts_in_braces(count, good, bad):
    assert _taken(f'start: "a"{count}', [good, bad]) == [good]
    assert _taken(f"start: x{count}\nx: A\nA: /a/", [good, bad]) == [good]


LAZY = [
    (".*b", ""),
    ("a*", "b"),
    ("(a|b)*", "ab"),
    ("[ab]{1,3}", "a"),
    ("(ab|a)(b|c)", ""),
    ("b*a|bb", ""),
    (".*", "c[ab]"),
]


@pytest.mark.parametrize(("body", "suffix"), LAZY)
def test_lazy_rules_take_the_texts_that_do_not_go_on_from_another(body, suffix):
    texts = _texts("abc", 5)
    whole = re.compile(f"(?:{body})(?:{suffix})", re.DOTALL)
    expected = [t for t in texts if whole.fullmatch(t) and not any(whole.fullmatch(t[:i]) for i in range(len(t)))]
    attribute = f"suffix=/{suffix}/" if suffix else "lazy"
    assert _taken(f'start: x\nx[{attribute}, capture="c"]: /{body}/s', texts) == expected
    assert _taken(f"start: X\nX[{attribute}]: BODY\nBODY: /{body}/s", texts) == expected


def test_free_text_up_to_a_call():
    text = 'start: ( foo )* TEXT\nTEXT: /[^<]*/\nhead[lazy]: /(.|\\n)*/ "<f"\nfoo: head "=x>" /[0-9]+/ "</f>"'
    grammar = Grammar(ebnf_expr(text), VOCABULARY)
    assert accepts(grammar, "a b <f=x>12</f> c") and accepts(grammar, "") and accepts(grammar, "<<f=x>1</f>")
    assert not accepts(grammar, "a <f=y>1</f>") and not accepts(grammar, "<f<f=x>1</f>")


OPERATORS = [
    ("/[ab]*/ & ~/.*bb.*/", lambda t: "bb" not in t and "c" not in t),
    ('/[ab]+/ & /.*a/ | "c"', lambda t: t == "c" or ("c" not in t and t.endswith("a"))),
    ('~"a"', lambda t: t != "a"),
    ("/a*/ & /(aa)*/ & ~/(aaa)*/", lambda t: set(t) <= {"a"} and len(t) % 2 == 0 and len(t) % 3 != 0),
    ('B{2} & ~"ab"', lambda t: len(t) == 2 and "c" not in t and t != "ab"),
]


@pytest.mark.parametrize(("body", "member"), OPERATORS)
def test_operators_on_terminals(body, member):
    texts = _texts("abc", 5)
    assert _taken(f"start: A\nA: {body}\nB: /[ab]/", texts) == [t for t in texts if member(t)]


@pytest.mark.parametrize(
    ("kind", "value", "pieces"),
    [
        ("chunks", '["ab", "c", "ab"]', ["ab", "c", "ab"]),
        ("words", '"a b. ca"', ["a", " ", "b", ".", " ", "ca"]),
        ("chars", '"abcab"', list("abcab")),
    ],
)
def test_substrings(kind, value, pieces):
    runs = {"".join(pieces[i:j]) for i in range(len(pieces) + 1) for j in range(i, len(pieces) + 1)}
    texts = _texts("abc", 4) + ["a b", " b.", ". ca", "b. c", ".", " ", "a b. ca"]
    grammar = f'start: %regex {{"substring_{kind}": {value}}}'
    assert _taken(grammar, texts) == [t for t in texts if t in runs]
    assert _taken(f'{grammar} "!"', ["!", "x!", f"{pieces[0]}!"]) == ["!", f"{pieces[0]}!"]


def test_substrings_of_random_texts_are_followed_by_one_thread():
    rng = random.Random(2)
    for _ in range(many(20)):
        text = "".join(rng.choice("ab") for _ in range(rng.randint(0, 14)))
        texts = _texts("ab", 6)
        assert _taken(f'start: %regex {{"substring_chars": "{text}"}}', texts) == [t for t in texts if t in text]
    text = "".join(rng.choice("abc") for _ in range(3000))
    machine = automaton(ebnf_expr(f'start: %regex {{"substring_chars": "{text}"}}'), VOCABULARY, CORES[0])
    state = machine.advance(machine.start, text[1000:1400].encode())
    assert state >= 0 and len(machine.core.threads(state)) <= 3


def test_names_with_dashes_and_capitals_and_read_over_options():
    text = '%llguidance {"no_forcing": true}\nstart: a-b cD->alias\na-b: "x"\ncD: "y"'
    assert _taken(text, ["xy", "x"]) == ["xy"]


# terminals as a lexer reads them

STRINGS = [
    r'/"(?!"").*?(?<!\\)(\\\\)*?"/',
    r'/""".*?(?<!\\)(\\\\)*?"""/s',
    r'"\"" _INNER "\""',
    r'_INNER "a"',
    r"/\/(?!\/)(\\\/|\\\\|[^\/])*?\//",
    r'"a" | /a(?!a)[a"]*?a/',
]


@pytest.mark.parametrize("body", STRINGS)
def test_terminals_with_look_around_or_lazy_repeats_take_what_re_takes(body):
    """Pieces of a terminal are one regex, its alternatives sorted by width as Lark sorts them."""
    pattern = {
        STRINGS[2]: r'".*?(?<!\\)(\\\\)*?"',
        STRINGS[3]: r".*?(?<!\\)(\\\\)*?a",
        STRINGS[5]: r'a(?!a)[a"]*?a|a',
    }.get(body, body[1:].rpartition("/")[0])
    texts = _texts('a"\\/', 6)
    expected = [t for t in texts if (m := re.match(pattern, t, re.DOTALL)) and m.end() == len(t)]
    assert expected
    grammar = f"start: T\nT: {body}\n_INNER: /.*?/ /(?<!\\\\)(\\\\\\\\)*?/"
    assert _taken(grammar.replace("/.*?/ ", "/.*?/s "), texts) == expected


def test_only_the_terminals_that_have_order_are_read_in_order():
    assert _taken('start: A B\nA: "a" | "ab"\nB: /b?c/', ["abc", "ac", "abbc"]) == ["abc", "ac", "abbc"]
    assert _taken("start: /a[?]?/ /\\*?b/", ["ab", "a?b", "a*b"]) == ["ab", "a?b", "a*b"]


# imports

MATHS = """
sum: product ("+" product)*
product: atom ("*" atom)* | PI
atom: NUMBER | "(" sum ")"
PI: "pi"
_list{item}: item ("," item)*
%import common.INT -> NUMBER
%import .deeper.names.NAME
%ignore "#"
named: NAME "=" sum
"""
FILES = {
    "maths.lark": MATHS,
    "deeper/names.lark": "NAME: START REST*\n%import .letters (START)\nREST: START | /[0-9]/",
    "deeper/letters.lark": "START: /[a-c]/",
}
INLINED = """
start: x+ | "[" (x ("," x)*) "]"
x: NAME "=" sum
sum: product ("+" product)*
product: atom ("*" atom)* | "pi"
atom: /[0-9]+/ | "(" sum ")"
NAME: /[a-c][a-c0-9]*/
%ignore " "
"""


def test_imports_are_the_grammars_written_in_one():
    text = 'start: x+ | "[" _list{x} "]"\n%import .maths (named, _list)\n%import .maths.named -> x\n%ignore " "'
    rng = random.Random(3)
    imported, inlined = (Grammar(ebnf_expr(t, imports=FILES), VOCABULARY) for t in (text, INLINED))
    good = ["a=1", "a1 = (2+ pi)*3 b=pi", "[ a=1 , c=2*2 ]"]
    for seed in good:
        assert accepts(imported, seed) and accepts(inlined, seed), seed
        for _ in range(200):
            at = rng.randrange(len(seed))
            changed = seed[:at] + rng.choice("a1=+*()pi[], #") + seed[at + rng.randint(0, 1) :]
            assert accepts(imported, changed) == accepts(inlined, changed), changed


def test_imported_rules_can_be_changed():
    files = {"m.lark": 'pair: one one\none: "1"'}
    texts = ["11", "12", "22", "21"]
    assert _taken('start: pair\n%import .m (pair, one)\n%override one: "2"', texts, imports=files) == ["22"]
    assert _taken('start: pair\n%import .m (pair, one)\n%extend one: "2"', texts, imports=files) == texts


def test_imports_that_fail_say_where():
    files = {"m.lark": "a: b", "n.lark": "a: /(/", "o.lark": "a: /x/"}
    with pytest.raises(UnsupportedGrammarError, match=r"%import from '\.x'"):
        ebnf_expr("start: a\n%import .x.a", imports=files)
    with pytest.raises(InvalidGrammarError, match="rule 'b' is not defined") as caught:
        ebnf_expr("start: a\n%import .m.a", imports=files)
    assert caught.value.where == "m.lark:1:4"
    with pytest.raises(InvalidGrammarError, match="missing"):
        ebnf_expr("start: a\n%import .n.a", imports=files)
    with pytest.raises(InvalidGrammarError, match="'o' has no rule 'c'"):
        ebnf_expr("start: c\n%import .o.c", imports=files)
    with pytest.raises(InvalidGrammarError, match="one is a terminal"):
        ebnf_expr("start: C\n%import .o.a -> C", imports=files)
    for wrong in (["m"], {"m": 1}, {1: "m"}):
        with pytest.raises(GrammarError, match="must be a dict of texts"):
            ebnf_expr('start: "a"', imports=wrong)


def test_declared_terminals_are_the_texts_that_are_given():
    text = 'start: "if" _IN "x" _OUT\n%declare _IN _OUT'
    assert _taken(text, ["ifx", "if{x}"], declared={"_IN": "", "_OUT": ""}) == ["ifx"]
    assert _taken(text, ["ifx", "if{x}"], declared={"_IN": "{", "_OUT": "}"}) == ["if{x}"]
    with pytest.raises(UnsupportedGrammarError, match="_OUT of %declare"):
        ebnf_expr(text, declared={"_IN": "{"})


def test_what_is_given_tells_grammars_apart():
    text = "start: A\n%import .m.A"
    one, two = (compile_ebnf(text, VOCABULARY, imports={"m.lark": f'A: "{letter}"'}) for letter in "xy")
    assert accepts(one, "x") and accepts(two, "y") and not accepts(one, "y")
    assert one.recipe is not None and one.recipe.compile(VOCABULARY) is one
