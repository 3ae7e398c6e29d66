"""What the grammar engines are measured on: schema files, regexes, EBNF grammars, long bounds, hard cases."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Case:
    """`tests` are (text, whether the grammar must take it)."""

    name: str
    kind: str
    source: Any
    tests: list[tuple[str, bool]] = field(default_factory=list)


def schema_files(path: Path, count: int, seed: int = 7) -> list[Case]:
    """A stratified sample, at least eight files of each data set; all of them for count 0."""
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["dataset"]].append(row)
    chosen, pick = [], random.Random(seed)
    for name in sorted(groups):
        group = groups[name]
        pick.shuffle(group)
        chosen += group[: max(min(8, len(group)), round(count * len(group) / len(rows)))] if count else group
    pick.shuffle(chosen)
    return [Case(row["id"], "json", json.dumps(row["schema"]), _instances(row["tests"])) for row in chosen]


def _instances(tests: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    return [(json.dumps(t["data"], ensure_ascii=False), t["valid"]) for t in tests]


def _alternation(count: int) -> list[str]:
    pick = random.Random(3)
    letters = "abcdefghijklmnopqrstuvwxyz_"
    return sorted({"".join(pick.choices(letters, k=pick.randint(4, 14))) for _ in range(count)})


_WORDS = _alternation(200)
_OCTET = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_PATH = r"(/[A-Za-z0-9_.~%+-]*)*(\?[^#\s]*)?(#[^\s]*)?"
_SENTENCE = "The quick brown fox jumps over the lazy dog, and then it naps for a while."
REGEXES = [
    Case("phone", "regex", r"\([0-9]{3}\) [0-9]{3}-[0-9]{4}", [("(555) 123-4567", True), ("555-123", False)]),
    Case("email", "regex", r"[a-zA-Z0-9_.+-]+@[a-zA-Z0-9-]+\.[a-zA-Z0-9-.]+", [("john.doe+x@mail.example.com", True)]),
    Case(
        "date",
        "regex",
        r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
        [("2026-11-20", True), ("2026-13-01", False)],
    ),
    Case("ip", "regex", rf"({_OCTET}\.){{3}}{_OCTET}", [("192.168.10.254", True), ("300.1.1.1", False)]),
    Case(
        "float",
        "regex",
        r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?",
        [("-12345.6789e+10", True), ("01.5", False)],
    ),
    Case("200 words", "regex", "|".join(_WORDS), [(_WORDS[0], True), (_WORDS[77], True), ("z" * 18, False)]),
    Case(".{0,200}", "regex", r".{0,200}", [(_SENTENCE, True), ("a" * 201, False)]),
    Case(
        "names", "regex", r"([A-Z][a-z]{1,20} ){1,10}[A-Z][a-z]{1,20}", [("Marie Curie Sklodowska Nobel Prize", True)]
    ),
    Case(
        "uuid",
        "regex",
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        [("123e4567-e89b-12d3-a456-426614174000", True)],
    ),
    Case(
        "url",
        "regex",
        rf"https?://([a-z0-9-]+\.)+[a-z]{{2,10}}(:[0-9]{{1,5}})?{_PATH}",
        [("https://docs.example.org:8080/a/b_c/index.html?q=1&r=2#top", True), ("ftp://x.y", False)],
    ),
]

_ARITHMETIC = {
    "gbnf": r"""root ::= expr
expr ::= term (ws [+-] ws term)*
term ::= factor (ws [*/] ws factor)*
factor ::= number | ident | "(" ws expr ws ")" | "-" factor
ident ::= [a-z] [a-z0-9_]*
number ::= [0-9]+ ("." [0-9]+)?
ws ::= " "*
""",
    "lark": r"""start: expr
expr: term (WS? /[+\-]/ WS? term)*
term: factor (WS? /[*\/]/ WS? factor)*
factor: NUMBER | IDENT | "(" WS? expr WS? ")" | "-" factor
IDENT: /[a-z][a-z0-9_]*/
NUMBER: /[0-9]+(\.[0-9]+)?/
WS: / +/
""",
}
_JSON = {
    "gbnf": r"""root ::= value
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (pair (ws "," ws pair)*)? ws "}"
pair ::= string ws ":" ws value
array ::= "[" ws (value (ws "," ws value)*)? ws "]"
string ::= "\"" char* "\""
char ::= [^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F])
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
ws ::= [ \t\n]*
""",
    "lark": r"""start: value
value: object | array | STRING | NUMBER | "true" | "false" | "null"
object: "{" WS? (pair (WS? "," WS? pair)*)? WS? "}"
pair: STRING WS? ":" WS? value
array: "[" WS? (value (WS? "," WS? value)*)? WS? "]"
STRING: /"([^"\\\x00-\x1F]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*"/
NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/
WS: /[ \t\n]+/
""",
}
_DOCUMENT = json.dumps(
    {
        "name": 'A "quoted" näme',
        "xs": [1, 2.5, -3e10, [True, False, None, []], {}],
        "deep": {"a": {"b": [[[1]]]}},
        "text": _SENTENCE,
    },
    ensure_ascii=False,
)
EBNF = [
    Case(
        "arithmetic",
        "ebnf",
        _ARITHMETIC,
        [("(a + 12.5) * (b_1 - -3 / (x * (y + 2)))" + " + 7 * k" * 10, True), ("(a + * 2)", False)],
    ),
    Case("JSON", "ebnf", _JSON, [(_DOCUMENT, True), ('{"a": 01}', False)]),
]


def _string(most: int | None) -> Case:
    bound = {} if most is None else {"maxLength": most}
    text = json.dumps((_SENTENCE * 14)[: min(most or 1000, 1000)])
    return Case(f"maxLength {most}", "json", json.dumps({"type": "string", **bound}), [(text, True)])


LENGTHS = [_string(most) for most in (None, 128, 512, 2000, 100_000)]


def _object(count: int, **keywords: Any) -> str:
    return json.dumps(
        {"type": "object", "properties": {f"key_{i}": {"type": "integer"} for i in range(count)}, **keywords}
    )


def _nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def _enum(count: int) -> Case:
    texts = [f"value number {i:05d}" for i in range(count)]
    tests = [(json.dumps(texts[-7]), True), (json.dumps(texts[-1] + "1"), False)]
    return Case(f"enum of {count:,}", "json", json.dumps({"enum": texts}), tests)


_ARRAYS = json.dumps({"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"})
_TREE = json.dumps(
    {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["name"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    }
)
_PARENTHESES = {"gbnf": 'root ::= "(" root ")" | "x"\n', "lark": 'start: "(" start ")" | "x"\n'}
_LEFT = {
    "gbnf": 'root ::= sum\nsum ::= sum [+-] term | term\nterm ::= term [*/] atom | atom\natom ::= [0-9]+ | "(" sum '
    '")"\n',
    "lark": 'start: sum\nsum: sum /[+\\-]/ term | term\nterm: term /[*\\/]/ atom | atom\natom: /[0-9]+/ | "(" sum '
    '")"\n',
}
_CLOSED, _OPEN = _object(100, additionalProperties=False), _object(100)
_SHUFFLED = '{"key_50": 2, "key_3": 1, "key_99": 0}'
HARD = [
    Case(".{0,2000}", "regex", ".{0,2000}", [("x" * 500, True)]),
    Case("200 words, repeated", "regex", f"(({'|'.join(_WORDS)}) ?)+", [(" ".join(_WORDS[:30]), True), ("zzz", False)]),
    Case("a{500}{500}", "regex", "a{500}{500}", [("a" * 500, False)]),
    Case("(a{1,500}){1,500}", "regex", "(a{1,500}){1,500}", [("a" * 500, True)]),
    Case("(a?){1000}a{1000}", "regex", "(a?){1000}a{1000}", [("a" * 1500, True)]),
    Case("(x+x+)+y", "regex", "(x+x+)+y", [("x" * 200 + "y", True), ("x" * 20, False)]),
    Case("(.*)*end", "regex", "(.*)*end", [("x" * 200 + "end", True)]),
    Case("(a|b)*a(a|b){20}", "regex", "(a|b)*a(a|b){20}", [("ab" * 60 + "b", True), ("ab" * 60, False)]),
    Case(r"\p{L}{1,100} of \p{L}+", "regex", r"\p{L}{1,100} of \p{L}+", [("größte of Ελλάδα", True)]),
    Case(r"\p{L}{0,1000}x?\p{L}{0,1000}", "regex", r"\p{L}{0,1000}x?\p{L}{0,1000}", [("größteΕλλάδα", True)]),
    Case(
        r"[^\p{L}\p{N}]{1,50}|\p{Lu}\p{Ll}*",
        "regex",
        r"[^\p{L}\p{N}]{1,50}|\p{Lu}\p{Ll}*",
        [("Ελλάδα", True), ("--- !", True)],
    ),
    Case(r"(\w+ )*\w+ without case", "regex", r"(?i)(\w+ )*straße", [("die lange STRASSE straße", True)]),
    Case("recursion of 500", "json", _ARRAYS, [(_nested(500), True), (_nested(500) + "]", False)]),
    Case(
        "parentheses of 500",
        "ebnf",
        _PARENTHESES,
        [("(" * 500 + "x" + ")" * 500, True), ("(" * 9 + "x" + ")" * 8, False)],
    ),
    Case("left recursion", "ebnf", _LEFT, [("1+2*(3-4)/5" + "+6*7" * 40, True), ("1+*2", False)]),
    Case(
        "tree",
        "json",
        _TREE,
        [(json.dumps({"name": "a", "children": [{"name": "b", "children": []}, {"name": "c"}]}), True)],
    ),
    _enum(20_000),
    Case("100 optional keys", "json", _CLOSED, [('{"key_3": 1, "key_50": 2}', True), ('{"key_100": 1}', False)]),
    Case("100 optional keys, open", "json", _OPEN, [('{"key_3": 1, "key_50": 2, "other": null}', True)]),
    Case(
        "100 optional keys, any order", "any order", _CLOSED, [(_SHUFFLED, True), ('{"key_3": 1, "key_3": 2}', False)]
    ),
    Case(
        "100 optional keys, open, any order",
        "any order",
        _OPEN,
        [(_SHUFFLED, True), ('{"key_3": 1, "key_3": 2}', False)],
    ),
]
GROUPS = {"regexes": REGEXES, "EBNF": EBNF, "one string of so many characters": LENGTHS, "hard cases": HARD}
_WARM_JSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
WARM_UP = [
    Case("warm-up", "json", json.dumps(_WARM_JSON), [('{"name": "Ada", "age": 36, "tall": [true, null]}', True)]),
    Case("warm-up", "regex", r"[a-z]+ (one|two){2,9}\d", [("abc one1", False)]),
    Case(
        "warm-up",
        "ebnf",
        {"gbnf": 'root ::= "a" root "b" | [0-9]+\n', "lark": 'start: "a" start "b" | /[0-9]+/\n'},
        [("a12b", True)],
    ),
]
