"""Grammars in Lark's syntax, with llguidance's extensions, read as context-free grammars over characters.

There is no lexer: every way to cut a text into terminals counts, so nothing valid is lost, and priorities choose
nothing and are only read over. What `%ignore` names may stand at both ends and between the terminals of rules, never
inside a terminal. `\\d \\w \\s` of a regex are Unicode's unless it begins with `(?a)`.

lark's own loader reads none of the extensions, needs 5 to 30 times as long, and is not there where only numpy is.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from sgl.grammars.algebra.expr import EMPTY, Expr, GrammarRule, Literal, RuleCall, alt, repeat, seq
from sgl.grammars.algebra.grammar_core_extension import extension
from sgl.grammars.ebnf.grammar_imports import GrammarImports
from sgl.grammars.ebnf.grammar_source import END, GrammarText, GrammarToken, nearest
from sgl.grammars.ebnf.lark_rule_bodies import LarkBodies, is_rule
from sgl.grammars.ebnf.lexer_terminals import shortest
from sgl.grammars.ebnf.rule_attributes import RuleAttributes, read_attributes
from sgl.grammars.ebnf.rule_table import RuleTable, any_of
from sgl.grammars.ebnf.special_token_terminals import SpecialTokenTerminals
from sgl.grammars.ebnf.substring_grammar import read_json
from sgl.grammars.errors import GrammarLimitError

_MOST_INSTANCES = 1000
_GAP = "what %ignore names"
_INT = "[0-9]+"
_SIGN = r"[+\-]?"
_EXP = rf"[eE]{_SIGN}{_INT}"
_DECIMAL = rf"(?:{_INT}\.(?:{_INT})?|\.{_INT})"
_FLOAT = rf"(?:{_INT}{_EXP}|{_DECIMAL}(?:{_EXP})?)"
_NUMBER = f"(?:{_FLOAT}|{_INT})"
# Terminals that grammars import from `common`. Lark spells strings and block comments with lazy repeats, which rely on
# its lexer stopping early; here they end where they first can because nothing inside may contain the end.
COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": _INT,
    "SIGNED_INT": _SIGN + _INT,
    "DECIMAL": _DECIMAL,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": _SIGN + _FLOAT,
    "NUMBER": _NUMBER,
    "SIGNED_NUMBER": _SIGN + _NUMBER,
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*(?:[^*]|\*+[^*/])*\*+/",
    "SQL_COMMENT": r"--[^\n]*",
}


class _Template(NamedTuple):
    """Its body is read anew by its reader for every use."""

    reader: _LarkReader
    parameters: list[str]
    body: int
    rule_like: bool


class _Instance(NamedTuple):
    name: str
    arguments: tuple[Expr, ...]


def read_lark(
    source: GrammarText,
    imports: GrammarImports | None = None,
    named: SpecialTokenTerminals | None = None,
    compiled: bool = True,
) -> RuleTable:
    """All rules of a grammar text; calls are not resolved yet. `imports` has what it may import, `named` its tokens.

    Unless it is `compiled`, Python alone reads it, by which the reading in C is tested.
    """
    return _LarkReader(
        source, imports or GrammarImports(None), named or SpecialTokenTerminals(None), compiled=compiled
    ).read()


class _LarkReader(LarkBodies):
    """`importer` is the reader of the grammar that imports this one, `module` this one's name there."""

    def __init__(
        self,
        source: GrammarText,
        imports: GrammarImports,
        named: SpecialTokenTerminals,
        importer: _LarkReader | None = None,
        module: str = "",
        compiled: bool = True,
    ) -> None:
        table = RuleTable(source, importer.table if importer else None)
        self._ignoring = importer is None and "%ignore" in source.text
        gap = importer._gap if importer else table.call(_GAP, 0) if self._ignoring else EMPTY
        super().__init__(source, named, table, gap)
        table.before = gap
        self.templates: dict[str, _Template] = {}
        self._imports = imports
        self._module = module
        self._readers: dict[str, _LarkReader] = importer._readers if importer else {}
        self._ignored: list[Expr] = []
        self._instances: dict[_Instance, tuple[GrammarRule, int]] = {}
        self._compiled = compiled
        self._atoms: tuple[dict[str, Expr], dict[str, Expr]] = {}, {}  # by their spelling, in terminals and in rules
        self._hooks = partial(self._atom_of, False), partial(self._atom_of, True), self._define_plainly

    def read(self) -> RuleTable:
        while self.tokens.next.kind != END:
            if not self._plain_statements():
                self._statement()
        self._instantiate()
        if self._ignoring:
            self.table.define(_GAP, 0, repeat(alt(*self._ignored)))
        return self.table

    def _plain_statements(self) -> bool:
        """Read what `core/python/lark_parser.c` can read as `_statement` would; whether that is all of the text."""
        core = extension() if self._compiled else None
        if core is not None:
            end = core.read_lark(self.source.text, self.tokens.next.at, self._atoms, self._hooks, any_of, self._gap)
            self.tokens.jump(end)
        return self.tokens.next.kind == END

    def _atom_of(self, in_rule: bool, spelled: str, at: int) -> Expr:
        """A name, a string or a regex by itself."""
        self._in_rule = in_rule
        token = GrammarToken("", spelled, at, False)
        if spelled[0] == '"':
            return self._text(token, self._unescaped(token))
        return self._regex(token) if spelled[0] == "/" else self._called(token)

    def _statement(self) -> None:
        if directive := self.tokens.take("directive"):
            self._directive(directive)
            return
        while self.tokens.sign("?") or self.tokens.sign("!"):
            pass
        name = self._checked(self.tokens.expect("name", what="a rule"))
        parameters = self._parameters()
        if self.tokens.sign("."):
            self.tokens.expect("number", what="a priority")
        attributes = read_attributes(self.source, self.tokens, self._constant)
        self.tokens.expect("sign", ":")
        if parameters:
            self.templates[name.text] = _Template(self, parameters, self.tokens.next.at, is_rule(name.text))
            self._skip_body()
        else:
            self._define(name, self._attributed(name, attributes))

    def _define(self, name: GrammarToken, body: Expr) -> None:
        self.table.define(name.text, name.at, body)
        if not is_rule(name.text):
            self.table.terminals.name(self.table.rule(name.text))

    def _define_plainly(self, name: str, at: int, body: Expr) -> None:
        self._define(self._checked(GrammarToken("name", name, at, False)), body)

    def _checked(self, name: GrammarToken) -> GrammarToken:
        """A name that is to be defined."""
        if not is_rule(name.text) and name.text != name.text.upper():
            self.source.invalid(f"{name.text!r} mixes cases: rules are lower case, terminals upper case", name.at)
        if name.text in self.templates:
            self.source.invalid(f"the rule {name.text!r} is defined twice", name.at)
        return name

    def _attributed(self, name: GrammarToken, attributes: RuleAttributes) -> Expr:
        """A rule's body; one that is lazy is a terminal that is read as a whole and stops as soon as it may."""
        rule = is_rule(name.text)
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

    def _directive(self, directive: GrammarToken) -> None:
        reader = _DIRECTIVES.get(directive.text)
        if reader is None:
            self.source.unsupported(directive.text, directive.at)
        reader(self, directive)

    def _ignore(self, directive: GrammarToken) -> None:
        self._ignored.append(self._body(in_rule=False))

    def _redefine(self, directive: GrammarToken) -> None:
        while self.tokens.sign("?") or self.tokens.sign("!"):
            pass
        name = self._checked(self.tokens.expect("name", what="a rule"))
        if self.tokens.sign("."):
            self.tokens.expect("number", what="a priority")
        self.tokens.expect("sign", ":")
        body = self._body(is_rule(name.text))
        self.table.redefine(name.text, name.at, body, directive.text == "%extend")

    def _options(self, directive: GrammarToken) -> None:
        """What does not change the language is read over."""
        options, end = read_json(self.source, directive.text, directive.at, self.tokens.next.at)
        for name in options if isinstance(options, dict) else ():
            if name not in ("no_forcing", "allow_initial_skip"):
                self.source.unsupported(f"%llguidance option {name!r}", directive.at)
        self.tokens.jump(end)

    def _declare(self, directive: GrammarToken) -> None:
        """Terminals that Lark's user makes by other means: the texts or tokens that the caller gives for them, or
        tokens.
        """
        while True:
            if special := self.tokens.take("special"):
                self._special(special)
            else:
                self._declare_name(self.tokens.expect("name", what="a terminal's name"))
            if self.tokens.next.kind not in ("name", "special") or self.tokens.next.fresh:
                break

    def _declare_name(self, name: GrammarToken) -> None:
        self.table.declared.add(name.text)
        given = self._imports.declared.get(name.text)
        if isinstance(given, int):
            self._define(name, self._tokens.number(self.source, given, name.at))
        elif given is not None:
            self._define(name, Literal(given.encode()))

    def _import(self, directive: GrammarToken) -> None:
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

    def _last_name(self, path: list[str]) -> GrammarToken:
        if len(path) < 2:
            self.tokens.unexpected("'.' and a name")
        name = path.pop()
        return GrammarToken("name", name, self.source.text.rindex(name, 0, self.tokens.next.at), False)

    def _import_one(
        self, path: list[str], relative: bool, first: GrammarToken, name: GrammarToken, renamed: GrammarToken
    ) -> None:
        module = ".".join(path)
        if is_rule(name.text) != is_rule(renamed.text):
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

    def _adopt(self, reader: _LarkReader, name: GrammarToken, renamed: GrammarToken) -> None:
        if name.text in reader.templates:
            self.templates[renamed.text] = reader.templates[name.text]
        elif reader.table.knows(name.text):
            self.table.adopt(renamed.text, renamed.at, reader.table.rule(name.text))
            if not is_rule(renamed.text):
                self.table.terminals.name(self.table.rule(renamed.text))
        else:
            self.source.invalid(f"{reader._module!r} has no rule {name.text!r}", name.at)

    def _reader_of(self, module: str) -> _LarkReader:
        if module not in self._readers:
            source = GrammarText(self._imports.texts[module], f"{module}.lark")
            reader = _LarkReader(source, self._imports, self._tokens, self, module, self._compiled)
            self._readers[module] = reader
            reader.read()
            reader.table.check()
        return self._readers[module]

    def _common(self, name: GrammarToken, renamed: GrammarToken) -> None:
        if name.text not in COMMON:
            self.source.invalid(f"'common' has no terminal {name.text!r}{nearest(name.text, COMMON)}", name.at)
        self._define(renamed, self._pattern(COMMON[name.text], "", name.at))

    def _names(self, closing: str) -> list[GrammarToken]:
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

    def _use(self, name: GrammarToken) -> Expr:
        arguments = [self._value()]
        while self.tokens.sign(","):
            arguments.append(self._value())
        self.tokens.expect("sign", "}")
        use = _Instance(name.text, tuple(arguments))
        if use not in self._instances:
            if len(self._instances) >= _MOST_INSTANCES:
                raise GrammarLimitError(f"templates are used in more than {_MOST_INSTANCES} ways")
            self._instances[use] = GrammarRule(name.text, lambda: EMPTY), name.at
        return RuleCall(self._instances[use][0])

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


_DIRECTIVES = {
    "%ignore": _LarkReader._ignore,
    "%import": _LarkReader._import,
    "%declare": _LarkReader._declare,
    "%override": _LarkReader._redefine,
    "%extend": _LarkReader._redefine,
    "%llguidance": _LarkReader._options,
}
