"""What stands on the right of Lark's rules and terminals: expansions, items, counts and values."""

from __future__ import annotations

from functools import lru_cache

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import EMPTY, CharClass, Expr, GrammarRule, RuleCall, optional, repeat, seq
from sgl.grammars.algebra.language_operations import combine
from sgl.grammars.ebnf.bnf_syntax import BOUNDS, check_counts
from sgl.grammars.ebnf.grammar_literals import characters, lark_escape, regex_expr, string_expr, string_text
from sgl.grammars.ebnf.grammar_source import END, GrammarText, GrammarToken, GrammarTokenPattern, GrammarTokenStream
from sgl.grammars.ebnf.lexer_terminals import other_than
from sgl.grammars.ebnf.rule_table import RuleTable, any_of
from sgl.grammars.ebnf.special_token_terminals import SpecialTokenTerminals
from sgl.grammars.ebnf.substring_grammar import read_json, substring_expr
from sgl.grammars.schema.schema_builder import SchemaOptions, schema_expr

_TOKEN = GrammarTokenPattern(
    r"\s+|//[^\n]*|\#[^\n]*|\\[ ]*\n",
    r"""
      (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*)
    | (?P<string>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regex>/(?!/)(?:(?:\\.|[^/\\\n])*/[imslux]*|(?:\\.|[^/\\])*/[imslu]*x[imslux]*))
    | (?P<directive>%[a-z_]+)
    | (?P<special><(?:\[[^\]\n]*\]|[^>\s]*)>)
    | (?P<grammar>@[A-Za-z0-9_.-]*|::)
    | (?P<number>[+-]?[0-9]+)
    | (?P<sign>\.\.|->|[:|()\[\]{}*+?!~.,&=])
    """,
)
_COUNTING = ("{", "~", *BOUNDS)
_CLOSING = {"(": ")", "[": "]"}
_AFTER = ("|", ")", "]", "->", "&")


@lru_cache(maxsize=4096)
def is_rule(name: str) -> bool:
    """Whether it names a rule, not a terminal: its first letter tells."""
    return name.lstrip("_")[:1].islower()


class LarkBodies:
    """Reads one body after the other. `gap` is what may follow the terminals of rules."""

    def __init__(self, source: GrammarText, named: SpecialTokenTerminals, table: RuleTable, gap: Expr) -> None:
        self.source = source
        self.tokens = GrammarTokenStream(source, _TOKEN)
        self.table = table
        self._tokens = named
        self._gap = gap
        self._bound: dict[str, Expr] = {}  # what the parameters of a template are
        self._in_rule = True
        self._nesting = 0

    def _use(self, name: GrammarToken) -> Expr:
        """A template with the arguments that follow."""
        raise NotImplementedError

    def _body(self, in_rule: bool) -> Expr:
        self._in_rule = in_rule
        found = self._expansions()
        if not self.tokens.next.fresh and self.tokens.next.kind != END:
            self.tokens.unexpected("an item, '|' or a new line")
        return found

    def _expansions(self) -> Expr:
        found = [self._conjunction()]
        while self.tokens.sign("|"):
            found.append(self._conjunction())
        return any_of(found, self._gap if self._in_rule else EMPTY)

    def _conjunction(self) -> Expr:
        found = [self._expansion()]
        if self.tokens.next.text != "&":
            return found[0]
        at = self.tokens.next.at
        while not self._ends() and self.tokens.sign("&"):
            if self._in_rule:
                self.source.unsupported("operator & outside of a terminal", at)
            found.append(self._expansion())
        if len(found) == 1:
            return found[0]
        terminals = self.table.terminals
        return terminals.later(self.source, at, lambda: combine([terminals.whole(item) for item in found]))

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
        if token.kind != "sign" or token.text not in _COUNTING or self._ends():
            return item
        if self.tokens.sign("{"):
            return repeat(item, *self._counts(token.at))
        if token.text in BOUNDS:
            self.tokens.sign(token.text)
            return repeat(item, *BOUNDS[token.text])
        if self.tokens.sign("~"):
            least = int(self.tokens.expect("number", what="a count").text)
            ranged = self.tokens.sign("..")
            most = int(self.tokens.expect("number", what="a count").text) if ranged else least
            return repeat(item, *check_counts(self.source, least, most, token.at))
        return item

    def _counts(self, at: int) -> tuple[int, int | None]:
        """`n}`, `n,}`, `,m}` or `n,m}`."""
        low = self.tokens.take("number")
        comma = self.tokens.sign(",")
        high = self.tokens.take("number") if comma else low
        if low is None and high is None:
            self.tokens.unexpected("a count")
        self.tokens.expect("sign", "}")
        return check_counts(self.source, int(low.text) if low else 0, int(high.text) if high else None, at)

    def _value(self) -> Expr:
        token = self.tokens.next
        if token.kind in _READ:
            self.tokens.take(token.kind)
            return _READ[token.kind](self, token)
        if token.text in ("%json", "%regex") and self.tokens.take("directive"):
            return self._terminal(self._embedded(token))
        if token.kind in _REFUSED:
            self.source.unsupported(f"{_REFUSED[token.kind]}{token.text}", token.at)
        if self.tokens.sign("~"):
            return self._negated(token)
        return self.tokens.unexpected("a name, a string, a regex or a group")

    def _negated(self, sign: GrammarToken) -> Expr:
        if self._in_rule:
            self.source.unsupported("operator ~ outside of a terminal", sign.at)
        found = self._atom() or self.tokens.unexpected("what is not to come")
        terminals = self.table.terminals
        return terminals.later(self.source, sign.at, lambda: other_than(terminals.whole(found)))

    def _regex(self, token: GrammarToken) -> Expr:
        pattern, _, flags = token.text[1:].rpartition("/")
        return self._terminal(self._pattern(pattern.replace("\\/", "/"), flags, token.at))

    def _pattern(self, pattern: str, flags: str, at: int) -> Expr:
        return self.table.pattern(pattern, flags, at, *regex_expr(self.source, pattern, flags, at))

    def _terminal(self, expr: Expr) -> Expr:
        return seq(expr, self._gap) if self._in_rule and self._gap is not EMPTY else expr

    def _named(self, name: GrammarToken) -> Expr:
        if name.text in self._bound:
            return self._bound[name.text]
        if self.tokens.next.text == "{" and self.tokens.follows("{", "name", "string", "regex"):
            self.tokens.sign("{")
            return self._use(name)
        return self._called(name)

    def _called(self, name: GrammarToken) -> Expr:
        if is_rule(name.text):
            if not self._in_rule:
                self.source.invalid(f"the rule {name.text!r} is called inside a terminal", name.at)
            return self.table.call(name.text, name.at)
        return self._terminal(self.table.call(name.text, name.at))

    def _special(self, token: GrammarToken) -> Expr:
        return self._terminal(self._tokens.expr(self.source, token.text, token.at))

    def _string(self, token: GrammarToken) -> Expr:
        text = self._unescaped(token)
        return self._range(text, token) if self.tokens.sign("..") else self._text(token, text)

    def _unescaped(self, token: GrammarToken) -> str:
        return string_text(self.source, token.at + 1, token.at + token.text.rindex('"'), lark_escape)

    def _text(self, token: GrammarToken, text: str) -> Expr:
        found = string_expr(text, token.text.endswith("i"))
        return self._terminal(found if token.text.endswith('"') else self.table.leaf(found))

    def _range(self, low: str, start: GrammarToken) -> Expr:
        last = self.tokens.expect("string", what="the end of the range")
        high = "".join(c for c, _ in characters(self.source, last.at + 1, last.at + len(last.text) - 1, lark_escape))
        if len(low) != 1 or len(high) != 1 or low > high:
            self.source.invalid(f"bad character range {start.text}..{last.text}", start.at)
        return self._terminal(self.table.leaf(CharClass(charset.normalise([(ord(low), ord(high))]))))

    def _embedded(self, directive: GrammarToken) -> Expr:
        """An embedded JSON Schema, whose rules are its own and no part of the table, or a run of a text's pieces."""
        value, end = read_json(self.source, directive.text, directive.at, self.tokens.next.at)
        self.tokens.jump(end)
        with self.source.inside(directive.at):
            if directive.text == "%regex":
                return substring_expr(self.source, value, directive.at)
            expr = schema_expr(value, SchemaOptions())
        return RuleCall(GrammarRule("a JSON Schema", lambda: expr))


_READ = {
    "name": LarkBodies._named,
    "string": LarkBodies._string,
    "regex": LarkBodies._regex,
    "special": LarkBodies._special,
}
_REFUSED = {"directive": "", "grammar": "reference to another grammar "}
