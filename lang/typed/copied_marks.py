"""The mark of copied values, `Annotated[str, sgl.copied]`: what it says in a schema, and the grammar of that."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from ..errors import BadValueError, UnsupportedByBackendError, shown
from ..sampling.options import SamplingOptions
from .type_constraint import prepare, reject_constraints, type_name
from .unsupported_types import UnsupportedType

if TYPE_CHECKING:
    from ..backend import Backend

KEYWORD = "x-copied"  # of the schema of a text
FROM = "x-copied-from"  # of a whole schema: the text
NO_TEXT = "sgl.copied is for texts; write Annotated[str, sgl.copied]"

Schema = dict[str, Any]


@dataclass(frozen=True)
class Copied:
    """The mark of a field whose value is a verbatim piece of a text. `whole_words`: it cuts no word."""

    whole_words: bool = True

    def __call__(self, *, whole_words: bool = True) -> Copied:
        """The mark with options. Raises BadValueError for what is neither True nor False."""
        if not isinstance(whole_words, bool):
            raise BadValueError(f"copied(whole_words={shown(whole_words)}): give True or False")
        return Copied(whole_words)

    @property
    def keyword(self) -> Schema:
        """What the schema of such a text says."""
        return {KEYWORD: "words" if self.whole_words else "characters"}

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> Schema:
        made = handler(core)
        found = marked(handler.resolve_ref_schema(made), self.keyword)
        if found is None:
            raise UnsupportedType(NO_TEXT)
        return found


def marked(schema: Schema, keyword: Schema) -> Schema | None:
    """The schema with the keyword on its texts; None if it has none."""
    if schema.get("type") == "string":
        return {**schema, **keyword}
    members = [(one, marked(one, keyword)) for one in schema.get("anyOf", ())]
    if not any(found for _, found in members):
        return None
    return {**schema, "anyOf": [found or one for one, found in members]}


def with_marks(kind: Any, mark: Callable[[Copied], Any]) -> Any:
    """The type with something else in the place of each `Copied`; the same object where it has none."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        base = with_marks(args[0], mark)
        others = tuple(mark(one) if isinstance(one, Copied) else one for one in args[1:])
        return kind if base is args[0] and others == args[1:] else Annotated[(base, *others)]
    if not args or origin is Literal:
        return kind
    fresh = tuple(with_marks(one, mark) if not isinstance(one, list) else one for one in args)
    if all(new is old for new, old in zip(fresh, args, strict=True)):
        return kind
    return Union[fresh] if origin in (Union, UnionType) else origin[fresh]  # noqa: UP007


copied = Copied()
Quote = Annotated[str, copied]


def copying(options: SamplingOptions, backend: Backend, kind: Any, schema: Schema) -> SamplingOptions:
    """The options of a gen whose values are copied from the text `options.copied_from`, which its schema then has.

    Raises BadValueError without a text, or naming the type if it cannot be enforced, and UnsupportedByBackendError for
    a backend that has no such masks: what it writes need not be in the text.
    """
    if options.copied_from is None:
        raise BadValueError(
            f"the type {type_name(kind)} has copied values, but before the gen there is no user turn to copy from; "
            "give gen(..., copied_from=text)"
        )
    reject_constraints(options, f"the type {type_name(kind)}")
    text = json.dumps({**schema, FROM: options.copied_from}, ensure_ascii=False)
    typed = replace(options, copied_from=None, json_schema=text, error_on_truncation=True)
    try:
        prepare(replace(typed, close_at_limit=None), backend, kind)
    except UnsupportedByBackendError as error:
        raise UnsupportedByBackendError(f"the type {type_name(kind)} has copied values: {error}") from error
    except BadValueError as error:
        if "allows no value" not in str(error):
            raise
        raise BadValueError(
            f"the type {type_name(kind)} needs a copied value, and the text {shown(options.copied_from)} has none for "
            "it; where a text may have none, write sgl.Quote | None"
        ) from error
    return typed


def has_copied(schema: Any) -> bool:
    """Whether some text of a schema is copied."""
    if isinstance(schema, dict):
        return KEYWORD in schema or any(map(has_copied, schema.values()))
    return isinstance(schema, list) and any(map(has_copied, schema))
