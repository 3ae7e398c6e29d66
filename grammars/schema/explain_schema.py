"""Which keywords of a schema are enforced exactly, which are weakened, refused, or say nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sgl.grammars.algebra.byte_marks import MOST_ITEMS
from sgl.grammars.schema.closed_objects import KEYWORD as CLOSING
from sgl.grammars.schema.content_encoding import KEYWORDS, encoding_of, holds_json, settled
from sgl.grammars.schema.copied_strings import FROM
from sgl.grammars.schema.ignored_keywords import without_refused
from sgl.grammars.schema.keyword_reader import is_annotation
from sgl.grammars.schema.schema_builder import schema_expr
from sgl.grammars.schema.schema_document import schemas
from sgl.grammars.schema.schema_options import SchemaOptions
from sgl.grammars.schema.schema_source import canonical_schema
from sgl.grammars.schema.string_formats import ENFORCED, NARROWER


@dataclass(frozen=True, slots=True)
class Finding:
    """How one keyword of a schema is handled.

    Attributes:
        keyword: its name.
        where: the JSON pointer of the schema that contains it.
        verdict: "exact", "weakened" (ignored on request), "refused" (the schema does not compile because of it) or
            "annotation" (it does not restrict values).
        detail: why, in a few words; may be empty.
    """

    keyword: str
    where: str
    verdict: str
    detail: str = ""

    def __str__(self) -> str:
        text = f"{self.verdict:10} {self.keyword} at {self.where}"
        return f"{text}: {self.detail}" if self.detail else text


def explain(schema: Any, **options: Any) -> list[Finding]:
    """Return a finding for each keyword in the schema, in its order; a refused keyword comes with the reason.

    Args:
        schema: as for `compile_json_schema`.
        **options: see `SchemaOptions`.

    Raises:
        InvalidGrammarError: the schema is malformed or allows nothing.
    """
    parsed, _ = canonical_schema(schema)
    checked = settled(SchemaOptions.of(options), parsed)
    refused = _refusals(parsed, checked)
    stated = [
        refused.get((place, keyword)) or _finding(place, sub, keyword, checked)
        for place, sub in schemas("#", parsed)
        for keyword in sub
    ]
    return stated + [finding for finding in refused.values() if finding not in stated]


def _finding(place: str, schema: dict[str, Any], keyword: str, options: SchemaOptions) -> Finding:
    if keyword in options.weaken:
        return Finding(keyword, place, "weakened", "ignored on request")
    if keyword == "format" and (options.formats == "annotation" or schema["format"] not in ENFORCED):
        return Finding(keyword, place, "annotation", f"{schema['format']!r} is not enforced")
    if keyword == "format" and schema["format"] in NARROWER:
        return Finding(
            keyword, place, "exact", f"all that is written is {schema['format']!r}, but not all of that is written"
        )
    if keyword == CLOSING and place == "#":
        return Finding(
            keyword, place, "exact", "" if schema[keyword] else "objects hold only members that their schemas declare"
        )
    if keyword == FROM and place == "#":
        return Finding(keyword, place, "exact", "strings with x-copied are pieces of it")
    if keyword in KEYWORDS:
        return _of_content(place, schema, keyword, options)
    if keyword == "uniqueItems" and schema[keyword] is True and not isinstance(schema.get("items"), bool):
        return Finding(
            keyword, place, "exact", f"arrays of at most {MOST_ITEMS} items are written, unless their values are few"
        )
    many = options.digits is None or options.digits > 308
    if keyword == "type" and many and isinstance(schema[keyword], str | list) and "number" in schema[keyword]:
        return Finding(
            keyword, place, "exact", "with an exponent numbers stay within doubles; more than 308 plain digits do not"
        )
    return Finding(keyword, place, "annotation" if is_annotation(keyword) else "exact")


def _of_content(place: str, schema: dict[str, Any], keyword: str, options: SchemaOptions) -> Finding:
    """A schema of what a string holds counts where the string is known to hold JSON."""
    if options.content == "annotation":
        return Finding(
            keyword, place, "annotation", "what a string holds is not enforced; content='enforced' asks for it"
        )
    if keyword == "contentEncoding" and (encoding := encoding_of(schema, place)):
        return Finding(
            keyword,
            place,
            "exact",
            f"{encoding}, in whole groups and without line breaks" if encoding != "base16" else "",
        )
    if keyword != "contentEncoding" and holds_json(schema, place):
        return Finding(keyword, place, "exact")
    return Finding(keyword, place, "annotation", f"{schema[keyword]!s:.60} is not enforced")


def _refusals(schema: Any, options: SchemaOptions) -> dict[tuple[str, str], Finding]:
    """What stands in the way of compiling."""
    refused = without_refused(schema, lambda cut: schema_expr(cut, options, remember=True))[1]
    return {at: Finding(at[1], at[0], "refused", str(error)) for at, error in refused.items()}
