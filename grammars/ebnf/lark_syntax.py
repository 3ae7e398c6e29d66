"""Grammars in Lark's syntax, read as context-free grammars over characters.

There is no lexer: every way to cut a text into terminals counts, so nothing valid is lost, and priorities choose
nothing and are only read over. What `%ignore` names may stand at both ends and between the terminals of rules, never
inside a terminal. `\\d \\w \\s` of a regex are ASCII unless it has the flag `u`.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import EMPTY, Call, Chars, Expr, Rule, alt, optional, repeat, seq
from sgl.grammars.ebnf.bnf import BOUNDS, check_counts
from sgl.grammars.ebnf.common import COMMON
from sgl.grammars.ebnf.literals import characters, lark_escape, regex_expr, string_expr, string_text
from sgl.grammars.ebnf.rules import RuleTable, any_of
from sgl.grammars.ebnf.source import END, Source, Token, TokenPattern, Tokens, nearest
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.schema.builder import SchemaOptions, schema_expr

_TOKEN = TokenPattern(
    r"\s|//[^\n]*|\#[^\n]*",
    r"""
      (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<string>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regex>/(?!/)(?:(?:\\.|[^/\\\n])*/[imslux]*|(?:\\.|[^/\\])*/[imslu]*x[imslux]*))
    | (?P<directive>%[a-z_]+)
    | (?P<special><[^>\s]*>)
    | (?P<number>[+-]?[0-9]+)
    | (?P<sign>\.\.|->|[:|()\[\]{}*+?!~.,&])
    """,
)
_CLOSING = {"(": ")", "[": "]"}
_AFTER = ("|", ")", "]", "->")
_MOST_INSTANCES = 1000
_GAP = "what %ignore names"


class _Template(NamedTuple):
    parameters: list[str]
    body: int
    rule_like: bool


class _Instance(NamedTuple):
    name: str
    arguments: tuple[Expr, ...]


def read_lark(source: Source) -> RuleTable:
    """All rules of a grammar text; calls are not resolved yet."""
    return _Reader(source).read()


class _Reader:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens = Tokens(source, _TOKEN)
        self.table = RuleTable(source)
        self._gap = self.table.before = self.table.call(_GAP, 0) if "%ignore" in source.text else EMPTY
        self._ignored: list[Expr] = []
        self._templates: dict[str, _Template] = {}
        self._instances: dict[_Instance, tuple[Rule, int]] = {}
        self._bound: dict[str, Expr] = {}
        self._in_rule = True
        self._nesting = 0

    def read(self) -> RuleTable:
        while self.tokens.next.kind != END:
            self._statement()
        self._instantiate()
        if self._gap != EMPTY:
            self.table.define(_GAP, 0, repeat(alt(*self._ignored)))
        return self.table

    def _statement(self) -> None:
        if directive := self.tokens.take("directive"):
            self._directive(directive)
            return
        while self.tokens.sign("?") or self.tokens.sign("!"):
            pass
        name = self._new_name()
        parameters = self._parameters()
        if self.tokens.sign("."):
            self.tokens.expect("number", what="a priority")
        if self.tokens.next.text == "[":
            self.source.unsupported("rule attributes [...]", self.tokens.next.at)
        self.tokens.expect("sign", ":")
        if parameters:
            self._templates[name.text] = _Template(parameters, self.tokens.next.at, name.text.islower())
            self._skip_body()
        else:
            self.table.define(name.text, name.at, self._body(name.text.islower()))

    def _new_name(self) -> Token:
        name = self.tokens.expect("name", what="a rule")
        if name.text not in (name.text.lower(), name.text.upper()):
            self.source.invalid(f"{name.text!r} mixes cases: rules are lower case, terminals upper case", name.at)
        if name.text in self._templates:
            self.source.invalid(f"the rule {name.text!r} is defined twice", name.at)
        return name

    def _body(self, in_rule: bool) -> Expr:
        self._in_rule = in_rule
        found = self._expansions()
        if not self.tokens.next.fresh and self.tokens.next.kind != END:
            self.tokens.unexpected("an item, '|' or a new line")
        return found

    # statements that begin with %

    def _directive(self, directive: Token) -> None:
        if directive.text == "%ignore":
            self._ignored.append(self._body(in_rule=False))
        elif directive.text == "%import":
            self._import()
        else:
            self.source.unsupported(directive.text, directive.at)

    def _import(self) -> None:
        first = self.tokens.next
        path = first.text if self.tokens.take("name") else ""
        if path != "common":
            self.source.unsupported(f"%import from {first.text!r}", first.at, "only 'common' is known")
        if self.tokens.sign("."):
            name = self.tokens.expect("name", what="a terminal's name")
            renamed = self.tokens.expect("name", what="a name") if self.tokens.sign("->") else name
            self._common(name, renamed)
            return
        self.tokens.expect("sign", "(")
        for name in self._names(")"):
            self._common(name, name)

    def _common(self, name: Token, renamed: Token) -> None:
        if name.text not in COMMON:
            self.source.invalid(f"'common' has no terminal {name.text!r}{nearest(name.text, COMMON)}", name.at)
        self.table.define(renamed.text, renamed.at, regex_expr(self.source, COMMON[name.text], "", name.at))

    def _names(self, closing: str) -> list[Token]:
        found = [self.tokens.expect("name", what="a name")]
        while self.tokens.sign(","):
            found.append(self.tokens.expect("name", what="a name"))
        self.tokens.expect("sign", closing)
        return found

    # templates

    def _parameters(self) -> list[str]:
        return [name.text for name in self._names("}")] if self.tokens.sign("{") else []

    def _skip_body(self) -> None:
        """Past a template's body, which is read anew for every use."""
        depth = 0
        while self.tokens.next.kind != END:
            token = self.tokens.next
            if token.fresh and depth == 0 and token.text != "|":
                return
            depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
            self.tokens.take(token.kind)

    def _use(self, name: Token) -> Expr:
        arguments = [self._value()]
        while self.tokens.sign(","):
            arguments.append(self._value())
        self.tokens.expect("sign", "}")
        use = _Instance(name.text, tuple(arguments))
        if use not in self._instances:
            if len(self._instances) >= _MOST_INSTANCES:
                raise GrammarLimitError(f"templates are used in more than {_MOST_INSTANCES} ways")
            self._instances[use] = Rule(name.text, lambda: EMPTY), name.at
        return Call(self._instances[use][0])

    def _instantiate(self) -> None:
        done = 0
        while done < len(self._instances):
            use, (rule, at) = list(self._instances.items())[done]
            template = self._templates.get(use.name)
            if template is None:
                self.source.invalid(f"the template {use.name!r} is not defined{nearest(use.name, self._templates)}", at)
            if len(template.parameters) != len(use.arguments):
                self.source.invalid(f"{use.name!r} takes {len(template.parameters)} arguments", at)
            self._bound = dict(zip(template.parameters, use.arguments, strict=True))
            self.tokens.jump(template.body)
            self.table.bodies[rule] = self._body(template.rule_like)
            done += 1

    # what stands on the right

    def _expansions(self) -> Expr:
        found = [self._expansion()]
        while self.tokens.sign("|"):
            found.append(self._expansion())
        return any_of(found, self._gap if self._in_rule else EMPTY)

    def _expansion(self) -> Expr:
        items: list[Expr] = []
        while (item := self._atom()) is not None:
            items.append(self._repeated(item))
        if self.tokens.sign("->"):
            self.tokens.expect("name", what="an alias")
        return items[0] if len(items) == 1 else seq(*items)

    def _ends(self) -> bool:
        return self._nesting == 0 and self.tokens.next.fresh

    def _atom(self) -> Expr | None:
        token = self.tokens.next
        if token.kind == END or self._ends():
            return None
        if token.kind == "sign" and token.text in _CLOSING:
            return self._group(token.text)
        return None if token.kind == "sign" and token.text in _AFTER else self._value()

    def _group(self, opening: str) -> Expr:
        self.tokens.sign(opening)
        self._nesting += 1
        inner = self._expansions()
        self._nesting -= 1
        self.tokens.expect("sign", _CLOSING[opening])
        return inner if opening == "(" else optional(inner)

    def _repeated(self, item: Expr) -> Expr:
        token = self.tokens.next
        if self._ends():
            return item
        if token.kind == "sign" and token.text in BOUNDS:
            self.tokens.sign(token.text)
            return repeat(item, *BOUNDS[token.text])
        if self.tokens.sign("~"):
            least = int(self.tokens.expect("number", what="a count").text)
            ranged = self.tokens.sign("..")
            most = int(self.tokens.expect("number", what="a count").text) if ranged else least
            return repeat(item, *check_counts(self.source, least, most, token.at))
        return item

    def _value(self) -> Expr:
        token = self.tokens.next
        if token.kind in _READ:
            self.tokens.take(token.kind)
            return _READ[token.kind](self, token)
        if self.tokens.take("directive", "%json"):
            return self._terminal(self._schema(token))
        if token.kind in ("directive", "special"):
            kind = "special token " if token.kind == "special" else ""
            self.source.unsupported(f"{kind}{token.text}", token.at)
        if token.text in ("~", "&"):
            self.source.unsupported(f"terminal operator {token.text}", token.at)
        return self.tokens.unexpected("a name, a string, a regex or a group")

    def _regex(self, token: Token) -> Expr:
        pattern, _, flags = token.text[1:].rpartition("/")
        return self._terminal(self.table.leaf(regex_expr(self.source, pattern, flags, token.at)))

    def _terminal(self, expr: Expr) -> Expr:
        return seq(expr, self._gap) if self._in_rule else expr

    def _named(self, name: Token) -> Expr:
        if name.text in self._bound:
            return self._bound[name.text]
        if self.tokens.sign("{"):
            return self._use(name)
        if name.text.islower():
            if not self._in_rule:
                self.source.invalid(f"the rule {name.text!r} is called inside a terminal", name.at)
            return self.table.call(name.text, name.at)
        return self._terminal(self.table.call(name.text, name.at))

    def _string(self, token: Token) -> Expr:
        end = token.text.rindex('"')
        text = string_text(self.source, token.at + 1, token.at + end, lark_escape)
        if self.tokens.sign(".."):
            return self._range(text, token)
        found = string_expr(text, token.text.endswith("i"))
        return self._terminal(found if token.text.endswith('"') else self.table.leaf(found))

    def _range(self, low: str, start: Token) -> Expr:
        last = self.tokens.expect("string", what="the end of the range")
        high = "".join(c for c, _ in characters(self.source, last.at + 1, last.at + len(last.text) - 1, lark_escape))
        if len(low) != 1 or len(high) != 1 or low > high:
            self.source.invalid(f"bad character range {start.text}..{last.text}", start.at)
        return self._terminal(self.table.leaf(Chars(charset.normalise([(ord(low), ord(high))]))))

    def _schema(self, directive: Token) -> Expr:
        """An embedded JSON Schema; its rules are its own and no part of the table."""
        text, start = self.source.text, self.tokens.next.at
        try:
            schema, end = json.JSONDecoder().raw_decode(text, start)
        except ValueError as error:
            self.source.invalid(f"%json is not followed by a JSON value: {error}", directive.at)
        self.tokens.jump(end)
        with self.source.inside(directive.at):
            expr = schema_expr(schema, SchemaOptions())
        return Call(Rule("a JSON Schema", lambda: expr))


_READ = {"name": _Reader._named, "string": _Reader._string, "regex": _Reader._regex}
