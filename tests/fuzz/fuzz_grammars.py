"""Fuzzing the grammars with atheris: any input gives a grammar or a `GrammarError`, both cores agree on every walk, and
a mask is what each token on its own would say. Run by `fuzz.sh`, which builds the C core with AddressSanitizer.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["sgl.grammars"]):
    from sgl.grammars import GrammarError, Vocabulary
    from sgl.grammars.algebra.expr import Expr
    from sgl.grammars.automaton.grammar_matcher import Matcher
    from sgl.grammars.compile import Grammar
    from sgl.grammars.ebnf import ebnf_expr
    from sgl.grammars.literal_choices import choices_expr
    from sgl.grammars.regex import parse_regex
    from sgl.grammars.schema.schema_builder import schema_expr
    from sgl.grammars.schema.schema_document import SchemaOptions

# every byte, so that no text is out of reach
TOKENS = [bytes([i]) for i in range(256)]
TOKENS += [
    b"\xc3\xa9",
    b"\x82\xac",
    b'":',
    b'", "',
    b"{}",
    b"ab",
    b"aa",
    b"000",
    b'{"a',
    b"    ",
    b"\\u00",
    b'"}',
    b"]]",
]
EOS = len(TOKENS)
VOCABULARY = Vocabulary.from_bytes([*TOKENS, b""], [EOS])
TYPES = ["string", "integer", "number", "boolean", "null", "object", "array"]
PATTERNS = ["^a+$", "b", "^[a-c]{2,5}$", "x|^y", "\\d+$", "[^a]", "^(a|b)*c$"]
RULES = [
    'root ::= "a" root "b" | x',
    'x ::= [a-c]* | root "+" root',
    'root ::= x{1,3} "é"?',
    "x ::= ",
    "start: x+",
    'x: "a"i | /b+/ | start "c"',
    "%ignore / /",
]


def schema(data: Any, depth: int = 0) -> Any:
    """A schema that is mostly well-formed."""
    if depth > 3 or data.ConsumeIntInRange(0, 9) == 0:
        return data.PickValueInList([True, False, {}, {"$ref": "#"}, {"const": [1, {"a": "b"}]}])
    found: dict[str, Any] = {}
    for _ in range(data.ConsumeIntInRange(1, 4)):
        keyword, make = data.PickValueInList(KEYWORDS)
        found[keyword] = make(data, depth)
    return found


def _names(data: Any, depth: int) -> list[str]:
    return [data.PickValueInList(["a", "ab", "b", ""]) for _ in range(data.ConsumeIntInRange(0, 3))]


def _named(data: Any, depth: int) -> dict[str, Any]:
    return {name: schema(data, depth + 1) for name in _names(data, depth)}


def _several(data: Any, depth: int) -> list[Any]:
    return [schema(data, depth + 1) for _ in range(data.ConsumeIntInRange(1, 3))]


def _patterns(data: Any, depth: int) -> dict[str, Any]:
    return {data.PickValueInList(PATTERNS): schema(data, depth + 1)}


def _small(data: Any, depth: int) -> int:
    return data.ConsumeIntInRange(0, 6)


def _number(data: Any, depth: int) -> float | int:
    return data.PickValueInList([0, 1, -3, 7, 0.5, 100, 1e-7, -2.25, 1e20])


def _one(data: Any, depth: int) -> Any:
    return schema(data, depth + 1)


KEYWORDS: list[tuple[str, Any]] = [
    ("type", lambda data, depth: data.PickValueInList(TYPES)),
    ("type", lambda data, depth: [data.PickValueInList(TYPES), "null"]),
    ("enum", lambda data, depth: [data.PickValueInList([1, "a", None, True, 1.5, [1], {"a": 1}]) for _ in range(3)]),
    *(
        (name, _small)
        for name in (
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "minContains",
            "maxContains",
        )
    ),
    *((name, _number) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    *(
        (name, _one)
        for name in (
            "items",
            "additionalProperties",
            "propertyNames",
            "contains",
            "not",
            "if",
            "then",
            "else",
            "unevaluatedProperties",
        )
    ),
    *((name, _several) for name in ("anyOf", "oneOf", "allOf", "prefixItems")),
    *((name, _named) for name in ("properties", "dependentSchemas", "$defs")),
    ("patternProperties", _patterns),
    ("required", _names),
    ("uniqueItems", lambda data, depth: True),
    ("pattern", lambda data, depth: data.PickValueInList(PATTERNS)),
    ("format", lambda data, depth: data.PickValueInList(["date", "uuid", "email", "ipv6"])),
]


def expression(data: Any) -> Expr:
    """A grammar of any front end."""
    kind = data.ConsumeIntInRange(0, 5)
    if kind == 0:
        return parse_regex(data.ConsumeUnicodeNoSurrogates(30))
    if kind == 1:
        return choices_expr([data.ConsumeUnicodeNoSurrogates(6) for _ in range(data.ConsumeIntInRange(1, 6))])
    if kind == 2:
        return ebnf_expr(data.ConsumeUnicodeNoSurrogates(60))
    if kind == 3:
        return ebnf_expr("\n".join(data.PickValueInList(RULES) for _ in range(data.ConsumeIntInRange(1, 5))))
    options = {
        "order": data.PickValueInList(["schema", "any"]),
        "whitespace": data.PickValueInList(["default", "compact", "free"]),
    }
    made = schema(data)
    return schema_expr(json.loads(json.dumps(made)) if isinstance(made, dict | bool) else {}, SchemaOptions.of(options))


def walk(data: Any, native: Matcher, twin: Matcher) -> None:
    """The same random operations on both; every mask equal, and right for a few tokens."""
    taken = 0
    for _ in range(24):
        mask = native.mask()
        assert (mask == twin.mask()).all(), "the cores' masks differ"
        assert native.can_end == twin.can_end and native.forced() == twin.forced()
        if native.finished:
            break
        token = data.ConsumeIntInRange(0, EOS)
        allowed = bool(int(mask[token >> 5]) >> (token & 31) & 1)
        probe = native.copy()
        assert probe.accept(token) == allowed, f"token {token} against its mask"
        if not allowed:
            allowed_ids = [t for t in range(EOS + 1) if int(mask[t >> 5]) >> (t & 31) & 1]
            assert allowed_ids or not taken, "a dead end"
            if not allowed_ids:
                break  # of no texts at all
            token = allowed_ids[data.ConsumeIntInRange(0, len(allowed_ids) - 1)]
        assert native.accept(token) and twin.accept(token)
        taken += 1
        if taken and data.ConsumeIntInRange(0, 5) == 0:
            back = data.ConsumeIntInRange(1, taken)
            native.rollback(back)
            twin.rollback(back)
            taken -= back
    if not native.finished:
        end, machine = native.shortest_end(), native.automaton
        assert machine.final(machine.advance(native.state, end)), f"{end!r} is no end"
        assert end == twin.shortest_end()


def one_input(raw: bytes) -> None:
    data = atheris.FuzzedDataProvider(raw)
    try:
        expr = expression(data)
        native = Grammar(expr, VOCABULARY, core="C").matcher()
        twin = Grammar(expr, VOCABULARY, core="python").matcher()
        walk(data, native, twin)
    except GrammarError:
        return


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
