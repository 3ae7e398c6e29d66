"""Values whose text is JSON, as pydantic writes and reads them."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ..sampling.options import SamplingOptions
from .copied_marks import copying, has_copied
from .json_decimals import marked, unmarked, with_all_digits
from .type_constraint import constrained, type_name
from .typed_text_parsing import WholeTextParser

if TYPE_CHECKING:
    from ..backend import Backend

_SPELLED = re.compile(r"[0-9][.eE]")
_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n\s*```\s*\Z", re.DOTALL)


class JsonTextParser(WholeTextParser):
    """JSON in the schema of a type. `adapter` is pydantic's TypeAdapter of it, `schema` a dict."""

    def __init__(self, kind: Any) -> None:
        from .pydantic_schema import adapter_of

        self.kind = kind
        self.adapter = adapter_of(kind)
        self._make()
        self.copies = has_copied(self.schema)

    def _make(self) -> None:
        from .pydantic_schema import marked_schema_of

        self._marked, self._timely = marked_schema_of(self.adapter, self.kind)
        self._decimals = marked(self._marked)
        self.schema = unmarked(self._marked)
        self._text = json.dumps(self.schema, ensure_ascii=False)

    def constrain(self, options: SamplingOptions, backend: Backend) -> SamplingOptions:
        if self._timely:
            self._make()
        if self.copies:
            return copying(options, backend, self.kind, self.schema)
        return constrained(options, backend, self.kind, {"json_schema": self._text})

    def read(self, text: str, backend: Backend) -> Any:
        try:
            return self._value(unfenced(text))
        except Exception as error:  # a validator of the program may raise anything
            message = f"expected JSON of {type_name(self.kind)}, but the text is {text!r}: {_why(error)}"
            raise ValueError(message) from error

    def _value(self, text: str) -> Any:
        if self._decimals:
            text = with_all_digits(text, self._marked)
        try:
            return self.adapter.validate_json(text)
        except ValueError:
            if not _SPELLED.search(text):
                raise
        return self.adapter.validate_json(_plain_integers(text))


def unfenced(text: str) -> str:
    """The text without the fence of Markdown that models put around JSON."""
    fenced = _FENCED.match(text)
    return fenced[1] if fenced else text


def refusal_of(error: BaseException) -> str:
    """What a reading's ValueError says is wrong, without the text: the paths and messages of the type's validators."""
    cause = error.__cause__
    return _why(cause) if isinstance(cause, Exception) else str(error)


def _why(error: Exception) -> str:
    if not isinstance(error, ValueError):
        return f"a validator of the type raised {type(error).__name__}: {error}"
    return "; ".join(reasons(error)) or str(error)


def _plain_integers(text: str) -> str:
    """The same JSON with whole numbers as Python writes them: `1e20` is an int too, which pydantic denies."""
    return json.dumps(json.loads(text, parse_float=_number), ensure_ascii=False)


def _number(text: str) -> int | float:
    number = Decimal(text)
    whole = 0 <= number.adjusted() <= 308 and number == number.to_integral_value()
    return int(number) if whole else float(text)


def reasons(error: Any) -> list[str]:
    """What pydantic found wrong, with the path of the field."""
    if not hasattr(error, "errors"):
        return []
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [": ".join(filter(None, [".".join(map(str, one["loc"])), one["msg"]])) for one in found]
