"""Writes docs/types.md, the table of types, from tests/unit/typed_kinds.py: `python docs/site/typed.py`.

What is refused is shown by its error message. A test compares the page with what this would write.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/types.md"
HEAD = """# Types

<!-- Made by docs/site/typed.py from tests/unit/typed_kinds.py. -->

`gen("x", T)` promises a text that `T` can be read from. The grammar of the gen allows only such texts; where no grammar can
say what `T` reads, the program is refused with an error that names the type, the field and what to do instead. The tests
walk the grammar of each type below at random and read every text.

Who reads the text:

- `int`, `float`, `bool`, `str`, and Literals and Enums of texts or whole numbers are **bare**: the text has no quotes.
- Everything else is JSON. **pydantic** reads it (`TypeAdapter(T).validate_json`): its own types and models, dataclasses,
  TypedDicts, NamedTuples and the types of the standard library.
- **attrs** classes are made by their own constructor, with its converters and validators; pydantic reads their fields.
- **msgspec** reads structs, and all types that have a `Struct` or a `msgspec.Meta` anywhere in them (`msgspec.json.decode`).

What the grammar allows can be narrower than what the library would read: objects have no members that the type does not
name, UUIDs are in small letters, URLs are ASCII. A value outside can still be read when it comes from a remote model that
was not held to the grammar; what cannot be read is an error that has the text and the reason.

Validators of your own (`field_validator`, `AfterValidator`, `Predicate` with your function, `__post_init__`, validators of
attrs that you wrote) are Python, which no grammar can know. They run when the text is read; if one raises, the error says
what the text was and what the validator said:

```python
import sgl
from pydantic import BaseModel, field_validator

class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def even(cls, value):
        if value % 2:
            raise ValueError("the number must be even")
        return value

@sgl.function
def pick(s: sgl.State):
    s += sgl.gen("x", Even)

state = pick.run(backend=sgl.Scripted({"x": '{"number": 3}'}))
try:
    state.get("x")
except sgl.ProgramError as error:
    assert "number: Value error, the number must be even" in str(error)
```

Types that depend on the time (`PastDate`, `FutureDatetime` ...) hold for the moment at which the gen runs.
"""  # noqa: E501
NOTES = """
## Decimals

pydantic makes a double of every JSON number before it makes a Decimal of it, which leaves 17 digits. sgl gives it the
digits as they were written, wherever the type asks for a Decimal or a Fraction; so `gen("x", Decimal)` keeps all of them.

## JSON in texts

The schema of a type with `Json[T]` has `"x-content": "enforced"` at its root: with it `contentMediaType` and
`contentSchema` restrict the text, which JSON Schema since draft 2019-09 leaves open. Remote servers do not know the
keyword; there an error tells when the text is read.
"""  # noqa: E501


def page() -> str:
    """The whole page."""
    from typed_kinds import READABLE, REFUSED, kind_of

    lines = [HEAD.rstrip("\n")]
    for section, rows in READABLE.items():
        lines += [f"\n## {section}\n", "| type | what is written | read by |", "|---|---|---|"]
        lines += [f"| `{_cell(code)}` | {_cell(words)} | {_reader(kind_of(code))} |" for code, words in rows]
    for section, codes in REFUSED.items():
        lines += [f"\n## {section}\n", "| type | error |", "|---|---|"]
        lines += [f"| `{_cell(code)}` | {_cell(_plain(_refusal(kind_of(code))))} |" for code in codes]
    return "\n".join(lines) + "\n" + NOTES


def _cell(text: str) -> str:
    return re.sub(r"\b(own|more)\.", "", text).replace("|", "\\|")


def _reader(kind: Any) -> str:
    """The library that reads a type."""
    from sgl.lang.typed import reading_of

    name = type(reading_of(kind)).__name__
    found = {
        "UnquotedValueParser": "bare",
        "PlainText": "bare",
        "JsonTextParser": "pydantic",
        "MsgspecTextParser": "msgspec",
    }[name]
    return "attrs" if hasattr(kind, "__attrs_attrs__") and found == "pydantic" else found


def _refusal(kind: Any) -> str:
    from grammar_walks import WalkBackend

    from sgl.lang.errors import BadValueError
    from sgl.lang.sampling.options import SamplingOptions
    from sgl.lang.typed import reading_of

    try:
        reading_of(kind).constrain(SamplingOptions(), WalkBackend())
    except BadValueError as error:
        return str(error)
    raise AssertionError(f"{kind!r} is not refused")


def _plain(message: str) -> str:
    """Without addresses in memory, and with nothing that Markdown would read."""
    message = re.sub(r" at 0x[0-9a-f]+", "", message)
    return re.sub(r"([<>\[\]*_\\^])", r"\\\1", message)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests/unit"))
    PAGE.write_text(page())
