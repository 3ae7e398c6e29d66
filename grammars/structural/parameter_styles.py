"""How models write the arguments of a call without JSON around them: marks around each key and value."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from sgl.grammars.errors import InvalidGrammarError


@dataclass(frozen=True)
class ParameterStyle:
    """The marks of one parameter. A string stands between them as it is, every other value as JSON.

    Attributes:
        opening: what stands before the key.
        naming: what stands between the key and a string; between its pieces there may be blanks.
        closing: what follows the value; no string can hold it.
        typed: what stands there before a value that is no string, where the marks tell the two apart; `{}` is its type.
        padded: a value may have a line to itself; one line break on either side is no part of it.
        python: true, false and null may be as Python writes them.
        escaped: `&` and `"` in a key are written as in XML.
        cdata: a string may be wrapped as in XML, `<![CDATA[...]]>`.
    """

    opening: str
    naming: tuple[str, ...]
    closing: str
    typed: tuple[str, ...] | None = None
    padded: bool = False
    python: bool = False
    escaped: bool = False
    cdata: bool = False

    @property
    def tells_types(self) -> bool:
        return self.typed is not None and any("{}" in piece for piece in self.typed)

    @property
    def spelled(self) -> dict[str, Any]:
        """The style as a structural tag spells it, see `style_of`."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value is not None
        }

    def key(self, name: str) -> str:
        """How a key is spelled."""
        return name.replace("&", "&amp;").replace('"', "&quot;") if self.escaped else name


STYLES = {
    "qwen_xml": ParameterStyle("<parameter=", (">",), "</parameter>", padded=True, python=True),
    "glm_xml": ParameterStyle("<arg_key>", ("</arg_key>", "<arg_value>"), "</arg_value>"),
    "minimax_xml": ParameterStyle('<parameter name="', ('">',), "</parameter>"),
    "deepseek_xml": ParameterStyle(
        '<｜DSML｜parameter name="', ('" string="true">',), "</｜DSML｜parameter>", ('" string="false">',)
    ),
    "deepseek_v4_1_xml": ParameterStyle(
        '<｜DSML｜ parameter name="', ('" string="true">',), "</｜DSML｜ parameter>", ('" string="false">',)
    ),
    "kimi_k3_xml": ParameterStyle(
        '<|open|>argument key="',
        ('" type="string"<|sep|>',),
        "<|close|>argument<|sep|>",
        ('" type="{}"<|sep|>',),
        escaped=True,
    ),
    "cohere_xml": ParameterStyle('<cofl:value name="', ('" type="raw">',), "</cofl:value>", ('" type="json">',)),
    "step_xml": ParameterStyle('<steptml:parameter name="', ('">',), "</steptml:parameter>"),
}


_TEXTS, _PIECES = ("opening", "closing"), ("naming", "typed")


def style_of(given: dict[str, Any]) -> ParameterStyle:
    """The style whose marks an object spells out: `opening`, `naming` (a list) and `closing`, the other fields as they
    are needed.

    Raises:
        InvalidGrammarError: a field is missing, unknown or of the wrong type.
    """
    known = {field.name for field in fields(ParameterStyle)}
    if odd := sorted(given.keys() - known):
        raise InvalidGrammarError(f"a style has no field {odd[0]!r}; known are {', '.join(sorted(known))}", "#")
    for name in (*_TEXTS, "naming"):
        if name not in given:
            raise InvalidGrammarError(f"a style needs {name!r}", "#")
    for name, value in given.items():
        if not _fits(name, value):
            raise InvalidGrammarError(f"{name} of a style is {value!r:.100}; give {_wanted(name)}", f"#/{name}")
    marks: dict[str, Any] = {name: tuple(value) if name in _PIECES else value for name, value in given.items()}
    return ParameterStyle(**marks)


def _fits(name: str, value: Any) -> bool:
    if name in _TEXTS:
        return isinstance(value, str) and bool(value)
    if name in _PIECES:
        return isinstance(value, list) and bool(value) and all(isinstance(piece, str) and piece for piece in value)
    return isinstance(value, bool)


def _wanted(name: str) -> str:
    return (
        "a text that is not empty" if name in _TEXTS else "a list of such texts" if name in _PIECES else "true or false"
    )
