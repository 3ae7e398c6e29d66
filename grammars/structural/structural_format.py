"""Structural tags as requests spell them in JSON: a tree of formats, or the older list of structures.

    {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": [...], "tags": [...]}}
    {"type": "structural_tag", "structures": [{"begin": ..., "schema": ..., "end": ...}], "triggers": [...]}

A format that can take any amount of free text ends at the literal that comes after it, so `ends` is handed down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sgl.grammars.algebra.expr import NEVER, Expr, alt, optional, repeat, seq
from sgl.grammars.errors import InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.literal_choices import choices_expr
from sgl.grammars.regex import parse_regex
from sgl.grammars.schema.ignored_keywords import weakened
from sgl.grammars.schema.schema_builder import SchemaOptions, canonical_schema, schema_expr
from sgl.grammars.schema.schema_document import child
from sgl.grammars.schema.schema_source import finite
from sgl.grammars.structural.free_text import AwaitedLiteral, free_text, literal, one_of
from sgl.grammars.structural.located_errors import count_at, literal_at, placed, text_at
from sgl.grammars.structural.parameter_styles import STYLES, ParameterStyle, style_of
from sgl.grammars.structural.structural_fields import fields_of, rules_of, strings_of
from sgl.grammars.structural.structural_tags import StructuralTag, dispatch_expr, rule, structural_expr
from sgl.grammars.structural.tagged_parameters import parameters_expr
from sgl.grammars.structural.token_formats import TokenFormats
from sgl.grammars.tokens.vocabulary import Vocabulary

Format = Mapping[str, Any]
Ends = Sequence[str]


def reasoning(answer: Format, begin: str = "<think>", end: str = "</think>") -> dict[str, Any]:
    """Return the specification of free reasoning text between two literals, then an answer in another format.

    Use `begin=""` if the prompt has already opened the reasoning.
    """
    thoughts = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": end}
    return {"type": "structural_tag", "format": {"type": "sequence", "elements": [thoughts, answer]}}


def structural_text(spec: Any) -> str:
    """A specification as JSON text; one that was given as text is not read."""
    try:
        return str.__str__(spec) if isinstance(spec, str) else json.dumps(spec, allow_nan=False, default=_schema_of)
    except (TypeError, ValueError) as error:
        raise InvalidGrammarError(f"the structural tag is not JSON: {error}") from error


def read_structural(text: str) -> dict[str, Any]:
    """What such a text says.

    Raises:
        InvalidGrammarError: it is not a JSON object.
    """
    try:
        values = json.loads(text, parse_constant=finite)
    except ValueError as error:
        raise InvalidGrammarError(f"the structural tag is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise InvalidGrammarError(f"a structural tag is a JSON object, not {values!r}")
    return values


def _schema_of(value: Any) -> Any:
    """A class such as a pydantic model, in the place of a schema."""
    if hasattr(value, "model_json_schema"):
        return value.model_json_schema()
    raise TypeError(f"{value!r} is not JSON")


def format_expr(spec: Format, options: SchemaOptions, vocabulary: Vocabulary | None = None) -> Expr:
    """The grammar of a specification: a whole request, or a bare format.

    Raises:
        InvalidGrammarError: it is malformed; says the value and its JSON pointer.
        UnsupportedGrammarError: it uses a format, or an option of one, that is not enforced.
    """
    reader = _FormatReader(options, vocabulary)
    return reader.tokens.terminals.around(_whole(reader, spec))


def _whole(reader: _FormatReader, spec: Format) -> Expr:
    if spec.get("type") != "structural_tag":
        return reader.read(spec, "#", ())
    known = {"type", "format"} if "format" in spec else {"type", "structures", "triggers"}
    if unknown := sorted(spec.keys() - known):
        raise InvalidGrammarError(f"unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}", "#")
    if "format" in spec:
        return reader.read(spec["format"], "#/format", ())
    return reader.structures(spec)


def weakened_places(value: Any, options: SchemaOptions, place: str = "#") -> list[str]:
    """The JSON pointers of the keywords that the options ignore, in all schemas of a specification."""
    if isinstance(value, list):
        return [p for i, v in enumerate(value) for p in weakened_places(v, options, child(place, i))]
    if not isinstance(value, dict):
        return []
    found: list[str] = []
    for key, member in value.items():
        inner = child(place, key)
        if key in ("schema", "json_schema"):
            found += [inner + pointer.removeprefix("#") for pointer in weakened(member, options)[1]]
        else:
            found += weakened_places(member, options, inner)
    return found


class _FormatReader:
    """One method a format; each answers the expression of the format without what ends it, unless it takes `ends`."""

    def __init__(self, options: SchemaOptions, vocabulary: Vocabulary | None) -> None:
        self._options = options
        self._vocabulary = vocabulary
        self.tokens = TokenFormats(vocabulary)
        self._closed: dict[str, Callable[[Format, str], Expr]] = {
            "const_string": lambda f, place: literal_at(f["value"], child(place, "value")),
            "json_schema": self._json_schema,
            "regex": lambda f, place: placed(child(place, "pattern"), lambda: parse_regex(f["pattern"])),
            "grammar": self._grammar,
            "choices": lambda f, place: placed(child(place, "choices"), lambda: choices_expr(f["choices"])),
            "optional": lambda f, place: optional(self.read(f["content"], child(place, "content"), ())),
            "plus": lambda f, place: repeat(self.read(f["content"], child(place, "content"), ()), 1),
            "star": lambda f, place: repeat(self.read(f["content"], child(place, "content"), ())),
            "repeat": self._repeat,
            "tag": self._single_tag,
            "token": lambda f, place: self.tokens.token(f["token"], child(place, "token")),
            "exclude_token": lambda f, place: self.tokens.free(f["exclude_tokens"], child(place, "exclude_tokens")),
            "any_tokens": self.tokens.any_tokens,
            "token_triggered_tags": self._token_triggered_tags,
            "token_dispatch": self._token_dispatch,
            "tags_with_separator": self._tags_with_separator,
        }
        self._open: dict[str, Callable[[Format, str, Ends], Expr]] = {
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "triggered_tags": self._triggered_tags,
            "dispatch": self._dispatch,
        }

    def read(self, value: Any, place: str, ends: Ends) -> Expr:
        """A format and then, where there are any, one of the ends."""
        fields = fields_of(value, place)
        if fields["type"] in self._open:
            return self._open[fields["type"]](fields, place, ends)
        return seq(self._closed[fields["type"]](fields, place), one_of(ends))

    def structures(self, spec: Format) -> Expr:
        """The older request: tags whose content is a schema."""
        found = spec.get("structures")
        if not isinstance(found, list) or not found:
            raise InvalidGrammarError(f"structures must be a non-empty list, not {found!r}", "#/structures")
        tags = [self._structure(one, child("#/structures", i)) for i, one in enumerate(found)]
        triggers = strings_of(spec.get("triggers"), "#/triggers")
        return placed("#", lambda: structural_expr(tags, triggers, vocabulary=self._vocabulary))

    def _structure(self, value: Any, place: str) -> StructuralTag:
        known = {"begin", "schema", "end"}
        if not isinstance(value, dict) or value.keys() != known:
            raise InvalidGrammarError(f"a structure has begin, schema and end, not {value!r}", place)
        begin, end = (text_at(value[name], child(place, name)) for name in ("begin", "end"))
        return StructuralTag(
            begin, seq(self._schema(value["schema"], child(place, "schema"), self._options), literal(end))
        )

    def _schema(self, schema: Any, place: str, options: SchemaOptions) -> Expr:
        parsed, _ = placed(place, lambda: canonical_schema(schema))
        return placed(place, lambda: schema_expr(parsed, options))

    def _json_schema(self, fields: Format, place: str) -> Expr:
        if fields["excludes"]:
            raise UnsupportedGrammarError(
                "excludes", child(place, "excludes"), "say it in the schema, by pattern or enum"
            )
        options = replace(self._options, order="any") if fields["any_order"] else self._options
        most_blanks = fields["max_whitespace_cnt"]
        if most_blanks is not None:
            options = _with_blanks(options, most_blanks, child(place, "max_whitespace_cnt"))
        inner = child(place, "json_schema")
        if fields["style"] == "json":
            return self._schema(fields["json_schema"], inner, options)
        style = _style(fields["style"], child(place, "style"))
        parsed, _ = placed(inner, lambda: canonical_schema(fields["json_schema"]))
        return placed(inner, lambda: parameters_expr(parsed, style, options, self._vocabulary, most_blanks))

    def _grammar(self, fields: Format, place: str) -> Expr:
        from sgl.grammars.ebnf import ebnf_part

        return placed(
            child(place, "grammar"),
            lambda: ebnf_part(fields["grammar"], self.tokens.terminals, fields["syntax"], fields["start"]),
        )

    def _single_tag(self, fields: Format, place: str) -> Expr:
        return seq(self._mark(fields["begin"], child(place, "begin")), self._rest(fields, place))

    def _rest(self, fields: Format, place: str) -> Expr:
        """A tag without its begin. Before a token that ends it free text goes on: text is no token."""
        end, within = fields["end"], child(place, "end")
        if isinstance(end, dict):
            token = fields_of(end, within, "token")["token"]
            with self.tokens.ended_by(token, child(within, "token")):
                return seq(self.read(fields["content"], child(place, "content"), ()), self._mark(end, within))
        ends = strings_of([end] if isinstance(end, str) else end, within)
        if not ends or ("" in ends and len(ends) > 1):
            raise InvalidGrammarError(f"expected one end, or several that are not empty, not {ends!r}", within)
        with self.tokens.ended_by(None, within):
            return self.read(fields["content"], child(place, "content"), [e for e in ends if e])

    def _mark(self, value: Any, place: str) -> Expr:
        if isinstance(value, dict):
            return self.tokens.token(fields_of(value, place, "token")["token"], child(place, "token"))
        return literal_at(text_at(value, place), place)

    def _repeat(self, fields: Format, place: str) -> Expr:
        least, most = fields["min"], None if fields["max"] == -1 else fields["max"]
        if least < 0 or (most is not None and most < least):
            raise InvalidGrammarError(f"min {least} and max {fields['max']} are not a range", place)
        count_at(least, child(place, "min")), count_at(most, child(place, "max"))
        return repeat(self.read(fields["content"], child(place, "content"), ()), least, most)

    def _any_text(self, fields: Format, place: str, ends: Ends) -> Expr:
        for name in ("max_tokens", "max_chars"):
            if fields[name] is not None:
                raise UnsupportedGrammarError(name, place, "free text is not counted")
        awaited = [AwaitedLiteral(text, NEVER) for text in _excluded(fields, place, ends)] + [
            AwaitedLiteral(end) for end in ends
        ]
        return placed(place, lambda: free_text(awaited, may_end=not ends, vocabulary=self._vocabulary))

    def _sequence(self, fields: Format, place: str, ends: Ends) -> Expr:
        """In order; free text before a literal ends at that literal."""
        elements = fields["elements"]
        found: list[Expr] = []
        places = [child(place, "elements", i) for i in range(len(elements))]
        skipped = -1
        for i, element in enumerate(elements):
            if i == skipped:
                continue
            if i + 1 == len(elements):
                return seq(*found, self.read(element, places[i], ends))
            after = self._ends_of(element, elements[i + 1], places[i : i + 2])
            skipped = i + 1 if after else -1
            found.append(self.read(element, places[i], after))
        return seq(*found, one_of(ends))

    def _ends_of(self, element: Any, following: Any, places: list[str]) -> Ends:
        """What ends an element of a sequence: the next one, where it is open and that is a literal; a token does so
        anyway.
        """
        if not _is_open(element):
            return ()
        after = fields_of(following, places[1])
        if after["type"] == "token" or isinstance(after.get("begin"), dict):
            return ()  # text is no token
        if after["type"] != "const_string" or not after["value"]:
            raise UnsupportedGrammarError(
                f"{element['type']} before {after['type']}",
                places[0],
                "free text has no end here; put a const_string after it, or a tag around it",
            )
        return (after["value"],)

    def _or(self, fields: Format, place: str, ends: Ends) -> Expr:
        elements = enumerate(fields["elements"])
        return alt(*(self.read(element, child(place, "elements", i), ends) for i, element in elements))

    def _tag(self, fields: Format, place: str) -> StructuralTag:
        if isinstance(fields["begin"], dict):
            raise UnsupportedGrammarError(
                "a token as begin", child(place, "begin"), "tags that tokens open are token_triggered_tags"
            )
        return StructuralTag(text_at(fields["begin"], child(place, "begin")), self._rest(fields, place))

    def _tags(self, fields: Format, place: str) -> list[tuple[Format, str]]:
        """The fields and places of tags."""
        places = [child(place, "tags", i) for i in range(len(fields["tags"]))]
        if not places:
            raise InvalidGrammarError("there must be at least one tag", child(place, "tags"))
        return [(fields_of(value, at, "tag"), at) for value, at in zip(fields["tags"], places, strict=True)]

    def _triggered_tags(self, fields: Format, place: str, ends: Ends) -> Expr:
        """Where one tag is required it comes first of all, without free text before it."""
        tags = [self._tag(*one) for one in self._tags(fields, place)]
        triggers, excludes = strings_of(fields["triggers"], child(place, "triggers")), _excluded(fields, place, ends)
        once = fields["stop_after_first"]
        later = placed(
            place,
            lambda: structural_expr(
                tags, triggers, stop_after_first=once, ends=ends, excludes=excludes, vocabulary=self._vocabulary
            ),
        )
        if not fields["at_least_one"]:
            return later
        return seq(alt(*map(_joined, tags)), one_of(ends) if once else later)

    def _token_triggered_tags(self, fields: Format, place: str) -> Expr:
        tags = self._tags(fields, place)
        for tag, at in tags:
            if not isinstance(tag["begin"], dict):
                raise InvalidGrammarError(
                    f"a tag that a token opens begins with one, not with {tag['begin']!r}", child(at, "begin")
                )
        begins = [fields_of(tag["begin"], child(at, "begin"), "token")["token"] for tag, at in tags]
        return self.tokens.triggered(fields, begins, [self._rest(*tag) for tag in tags], place)

    def _dispatch(self, fields: Format, place: str, ends: Ends) -> Expr:
        loop, excludes = fields["loop"], _excluded(fields, place, ends)
        within = child(place, "rules")
        rules = enumerate(rules_of(fields["rules"], within))
        opened = [
            (text_at(text, child(within, i, 0)), self._content(one, child(within, i, 1), loop, ends))
            for i, (text, one) in rules
        ]
        return placed(
            place, lambda: dispatch_expr(opened, loop=loop, ends=ends, excludes=excludes, vocabulary=self._vocabulary)
        )

    def _token_dispatch(self, fields: Format, place: str) -> Expr:
        within = child(place, "rules")
        rules = enumerate(rules_of(fields["rules"], within))
        opened = [(token, self._content(one, child(within, i, 1), fields["loop"], ())) for i, (token, one) in rules]
        return self.tokens.dispatch(fields, opened, place)

    def _content(self, content: Any, place: str, loop: bool, ends: Ends) -> Expr:
        """What follows an opening; where nothing comes after it, up to and with one of the ends."""
        if loop and _is_open(content):
            raise UnsupportedGrammarError(
                f"{content['type']} before free text", place, "it has no end here; put a tag around it"
            )
        return rule(f"content at {place}", self.read(content, place, () if loop else ends))

    def _tags_with_separator(self, fields: Format, place: str) -> Expr:
        one = alt(*(self._single_tag(*tag) for tag in self._tags(fields, place)))
        more = repeat(seq(literal_at(fields["separator"], child(place, "separator")), one))
        found = one if fields["stop_after_first"] else seq(one, more)
        return found if fields["at_least_one"] else optional(found)


def _style(given: str | Format, place: str) -> ParameterStyle:
    """A known style by its name, or one whose marks are spelled out."""
    if isinstance(given, dict):
        return placed(place, lambda: style_of(given))
    if given not in STYLES:
        raise UnsupportedGrammarError(
            f"style {given!r}", place, f"known are json, {', '.join(STYLES)}, or the marks as an object"
        )
    return STYLES[given]


def _with_blanks(options: SchemaOptions, most: int, place: str) -> SchemaOptions:
    """The options under which no more blanks than that stand next to each other."""
    if most < 0:
        raise InvalidGrammarError(f"max_whitespace_cnt is {most}; give 0 or more", place)
    if options.whitespace in ("free", "indented"):
        raise UnsupportedGrammarError(
            "max_whitespace_cnt", place, f"the option whitespace={options.whitespace!r} says what blanks there are"
        )
    return options if most else replace(options, whitespace="compact")


def _excluded(fields: Format, place: str, ends: Ends) -> list[str]:
    """What free text does not contain, besides what ends it."""
    return [text for text in strings_of(fields["excludes"], child(place, "excludes")) if text not in ends]


def _joined(tag: StructuralTag) -> Expr:
    return seq(literal(tag.begin), tag.rest)


def _is_open(value: Any) -> bool:
    """Whether a format may go on as long as it likes, so that something else must end it."""
    if not isinstance(value, dict):
        return False
    if value.get("type") == "sequence":
        return bool(value.get("elements")) and _is_open(value["elements"][-1])
    if value.get("type") == "or":
        return any(map(_is_open, value.get("elements") or ()))
    if value.get("type") == "dispatch":
        return True
    if value.get("type") == "triggered_tags":
        return not (value.get("at_least_one") and value.get("stop_after_first"))
    return value.get("type") == "any_text"
