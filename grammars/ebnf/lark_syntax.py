"""Grammars in Lark's syntax, with llguidance's extensions, read as context-free grammars over characters.

There is no lexer: every way to cut a text into terminals counts, so nothing valid is lost, and priorities choose
nothing and are only read over. What `%ignore` names may stand at both ends and between the terminals of rules, never
inside a terminal. `\\d \\w \\s` of a regex are Unicode's unless it begins with `(?a)`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from sgl.grammars.algebra import charset
from sgl.grammars.algebra.expr import EMPTY, Call, Chars, Expr, Literal, Rule, alt, optional, repeat, seq
from sgl.grammars.algebra.language import combine
from sgl.grammars.ebnf.attributes import Attributes, read_attributes
from sgl.grammars.ebnf.bnf import BOUNDS, check_counts
from sgl.grammars.ebnf.common import COMMON
from sgl.grammars.ebnf.imports import Imports
from sgl.grammars.ebnf.literals import characters, lark_escape, regex_expr, string_expr, string_text
from sgl.grammars.ebnf.rules import RuleTable, any_of
from sgl.grammars.ebnf.source import END, Source, Token, TokenPattern, Tokens, nearest
from sgl.grammars.ebnf.substrings import read_json, substring_expr
from sgl.grammars.ebnf.terminals import other_than, shortest
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.schema.builder import SchemaOptions, schema_expr

_TOKEN = TokenPattern(
    r"\s+|//[^\n]*|\#[^\n]*",
    r"""
      (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*)
    | (?P<string>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regex>/(?!/)(?:(?:\\.|[^/\\\n])*/[imslux]*|(?:\\.|[^/\\])*/[imslu]*x[imslux]*))
    | (?P<directive>%[a-z_]+)
    | (?P<special><[^>\s]*>)
    | (?P<grammar>@[A-Za-z0-9_.-]*|::)
    | (?P<number>[+-]?[0-9]+)
    | (?P<sign>\.\.|->|[:|()\[\]{}*+?!~.,&=])
    """,
)
_COUNTING = ("{", "~", *BOUNDS)
_CLOSING = {"(": ")", "[": "]"}
_AFTER = ("|", ")", "]", "->", "&")
_MOST_INSTANCES = 1000
_GAP = "what %ignore names"


class _Template(NamedTuple):
    """Its body is read anew by its reader for every use."""

    reader: _Reader
    parameters: list[str]
    body: int
    rule_like: bool


class _Instance(NamedTuple):
    name: str
    arguments: tuple[Expr, ...]


def read_lark(source: Source, imports: Imports | None = None) -> RuleTable:
    """All rules of a grammar text; calls are not resolved yet. `imports` has what it may import."""
    return _Reader(source, imports or Imports(None)).read()


@lru_cache(maxsize=4096)
def _is_rule(name: str) -> bool:
    """Whether it names a rule, not a terminal: its first letter tells."""
    return name.lstrip("_")[:1].islower()


class _Reader:
    """`importer` is the reader of the grammar that imports this one, `module` this one's name there."""

    def __init__(self, source: Source, imports: Imports, importer: _Reader | None = None, module: str = "") -> None:
        self.source = source
        self.tokens = Tokens(source, _TOKEN)
        self.table: RuleTable = RuleTable(source, importer.table if importer else None)
        self.templates: dict[str, _Template] = {}
        self._imports = imports
        self._module = module
        self._readers: dict[str, _Reader] = importer._readers if importer else {}
        self._ignoring = importer is None and "%ignore" in source.text
        self._gap: Expr = importer._gap if importer else self.table.call(_GAP, 0) if self._ignoring else EMPTY
        self.table.before = self._gap
        self._ignored: list[Expr] = []
        self._instances: dict[_Instance, tuple[Rule, int]] = {}
        self._bound: dict[str, Expr] = {}
        self._in_rule = True
        self._nesting = 0

    def read(self) -> RuleTable:
        while self.tokens.next.kind != END:
            self._statement()
        self._instantiate()
        if self._ignoring:
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
        attributes = read_attributes(self.source, self.tokens, self._constant)
        self.tokens.expect("sign", ":")
        if parameters:
            self.templates[name.text] = _Template(self, parameters, self.tokens.next.at, _is_rule(name.text))
            self._skip_body()
        else:
            self._define(name, self._attributed(name, attributes))

    def _define(self, name: Token, body: Expr) -> None:
        self.table.define(name.text, name.at, body)
        if not _is_rule(name.text):
            self.table.terminals.name(self.table.rule(name.text))

    def _new_name(self) -> Token:
        name = self.tokens.expect("name", what="a rule")
        if not _is_rule(name.text) and name.text != name.text.upper():
            self.source.invalid(f"{name.text!r} mixes cases: rules are lower case, terminals upper case", name.at)
        if name.text in self.templates:
            self.source.invalid(f"the rule {name.text!r} is defined twice", name.at)
        return name

    def _body(self, in_rule: bool) -> Expr:
        self._in_rule = in_rule
        found = self._expansions()
        if not self.tokens.next.fresh and self.tokens.next.kind != END:
            self.tokens.unexpected("an item, '|' or a new line")
        return found

    def _attributed(self, name: Token, attributes: Attributes) -> Expr:
        """A rule's body; one that is lazy is a terminal that is read as a whole and stops as soon as it may."""
        rule = _is_rule(name.text)
        if not attributes.lazy:
            return self._body(rule)
        text = seq(self._body(in_rule=False), attributes.suffix)
        terminals = self.table.terminals
        found = terminals.later(self.source, name.at, lambda: shortest(terminals.whole(text)))
        return seq(found, self._gap) if rule else found

    def _constant(self) -> Expr:
        """A terminal that is an attribute's value."""
        self._in_rule = False
        return self._value()

    # statements that begin with %

    def _directive(self, directive: Token) -> None:
        reader = _DIRECTIVES.get(directive.text)
        if reader is None:
            self.source.unsupported(directive.text, directive.at)
        reader(self, directive)

    def _ignore(self, directive: Token) -> None:
        self._ignored.append(self._body(in_rule=False))

    def _redefine(self, directive: Token) -> None:
        while self.tokens.sign("?") or self.tokens.sign("!"):
            pass
        name = self._new_name()
        if self.tokens.sign("."):
            self.tokens.expect("number", what="a priority")
        self.tokens.expect("sign", ":")
        body = self._body(_is_rule(name.text))
        self.table.redefine(name.text, name.at, body, directive.text == "%extend")

    def _options(self, directive: Token) -> None:
        """What does not change the language is read over."""
        options, end = read_json(self.source, directive.text, directive.at, self.tokens.next.at)
        for name in options if isinstance(options, dict) else ():
            if name not in ("no_forcing", "allow_initial_skip"):
                self.source.unsupported(f"%llguidance option {name!r}", directive.at)
        self.tokens.jump(end)

    def _declare(self, directive: Token) -> None:
        """Terminals that Lark's user makes by other means: they are the texts that the caller gives for them."""
        name = self.tokens.expect("name", what="a terminal's name")
        while True:
            self.table.declared.add(name.text)
            if name.text in self._imports.declared:
                self._define(name, Literal(self._imports.declared[name.text].encode()))
            if self.tokens.next.kind != "name" or self.tokens.next.fresh:
                break
            name = self.tokens.expect("name")

    def _import(self, directive: Token) -> None:
        first = self.tokens.next
        relative = self.tokens.sign(".")
        path = [self.tokens.expect("name", what="a grammar's name").text]
        while self.tokens.sign("."):
            path.append(self.tokens.expect("name", what="a name").text)
        if not self.tokens.next.fresh and self.tokens.sign("("):
            names = [(name, name) for name in self._names(")")]
        else:
            last = self._last_name(path)
            renamed = self.tokens.expect("name", what="a name") if self.tokens.sign("->") else last
            names = [(last, renamed)]
        for name, renamed in names:
            self._import_one(path, relative, first, name, renamed)

    def _last_name(self, path: list[str]) -> Token:
        if len(path) < 2:
            self.tokens.unexpected("'.' and a name")
        name = path.pop()
        return Token("name", name, self.source.text.rindex(name, 0, self.tokens.next.at), False)

    def _import_one(self, path: list[str], relative: bool, first: Token, name: Token, renamed: Token) -> None:
        module = ".".join(path)
        if _is_rule(name.text) != _is_rule(renamed.text):
            self.source.invalid(f"{name.text!r} cannot be renamed to {renamed.text!r}: one is a terminal", renamed.at)
        if module == "common" and not relative:
            self._common(name, renamed)
            return
        full = self._imports.found(module, self._module if relative else "")
        if full is None:
            shown = f"{'.' * relative}{module}"
            hint = "only 'common', and the texts of the argument `imports`, can be imported from"
            self.source.unsupported(f"%import from {shown!r}", first.at, hint)
        self._adopt(self._reader_of(full), name, renamed)

    def _adopt(self, reader: _Reader, name: Token, renamed: Token) -> None:
        if name.text in reader.templates:
            self.templates[renamed.text] = reader.templates[name.text]
        elif reader.table.knows(name.text):
            self.table.adopt(renamed.text, renamed.at, reader.table.rule(name.text))
            if not _is_rule(renamed.text):
                self.table.terminals.name(self.table.rule(renamed.text))
        else:
            self.source.invalid(f"{reader._module!r} has no rule {name.text!r}", name.at)

    def _reader_of(self, module: str) -> _Reader:
        if module not in self._readers:
            source = Source(self._imports.texts[module], f"{module}.lark")
            reader = self._readers[module] = _Reader(source, self._imports, self, module)
            reader.read()
            reader.table.check()
        return self._readers[module]

    def _common(self, name: Token, renamed: Token) -> None:
        if name.text not in COMMON:
            self.source.invalid(f"'common' has no terminal {name.text!r}{nearest(name.text, COMMON)}", name.at)
        self._define(renamed, self._pattern(COMMON[name.text], "", name.at))

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
            template = self.templates.get(use.name)
            if template is None:
                self.source.invalid(f"the template {use.name!r} is not defined{nearest(use.name, self.templates)}", at)
            if len(template.parameters) != len(use.arguments):
                self.source.invalid(f"{use.name!r} takes {len(template.parameters)} arguments", at)
            self.table.bodies[rule] = template.reader.instance(template, use.arguments)
            if not template.rule_like:
                self.table.terminals.name(rule)
            if template.reader is not self:
                template.reader._instantiate()
            done += 1

    def instance(self, template: _Template, arguments: tuple[Expr, ...]) -> Expr:
        """The body of one of this grammar's templates for some arguments."""
        self._bound = dict(zip(template.parameters, arguments, strict=True))
        self.tokens.jump(template.body)
        found = self._body(template.rule_like)
        self._bound = {}
        return found

    # what stands on the right

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

    def _negated(self, sign: Token) -> Expr:
        if self._in_rule:
            self.source.unsupported("operator ~ outside of a terminal", sign.at)
        found = self._atom() or self.tokens.unexpected("what is not to come")
        terminals = self.table.terminals
        return terminals.later(self.source, sign.at, lambda: other_than(terminals.whole(found)))

    def _regex(self, token: Token) -> Expr:
        pattern, _, flags = token.text[1:].rpartition("/")
        return self._terminal(self._pattern(pattern.replace("\\/", "/"), flags, token.at))

    def _pattern(self, pattern: str, flags: str, at: int) -> Expr:
        return self.table.pattern(pattern, flags, at, *regex_expr(self.source, pattern, flags, at))

    def _terminal(self, expr: Expr) -> Expr:
        return seq(expr, self._gap) if self._in_rule and self._gap is not EMPTY else expr

    def _named(self, name: Token) -> Expr:
        if name.text in self._bound:
            return self._bound[name.text]
        if self.tokens.next.text == "{" and self.tokens.follows("{", "name", "string", "regex"):
            self.tokens.sign("{")
            return self._use(name)
        if _is_rule(name.text):
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

    def _embedded(self, directive: Token) -> Expr:
        """An embedded JSON Schema, whose rules are its own and no part of the table, or a run of a text's pieces."""
        value, end = read_json(self.source, directive.text, directive.at, self.tokens.next.at)
        self.tokens.jump(end)
        with self.source.inside(directive.at):
            if directive.text == "%regex":
                return substring_expr(self.source, value, directive.at)
            expr = schema_expr(value, SchemaOptions())
        return Call(Rule("a JSON Schema", lambda: expr))


_READ = {"name": _Reader._named, "string": _Reader._string, "regex": _Reader._regex}
_REFUSED = {"directive": "", "special": "special token ", "grammar": "reference to another grammar "}
_DIRECTIVES = {
    "%ignore": _Reader._ignore,
    "%import": _Reader._import,
    "%declare": _Reader._declare,
    "%override": _Reader._redefine,
    "%extend": _Reader._redefine,
    "%llguidance": _Reader._options,
}
