"""How models write the arguments of a call without JSON around them: marks around each key and value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ParameterStyle:
    """The marks of one parameter. A string stands between them as it is, every other value as JSON.

    Attributes:
        opening: what stands before the key.
        naming: what stands between the key and a string; between its pieces there may be blanks.
        closing: what stands behind the value; no string can hold it.
        typed: what stands there before a value that is no string, where the marks tell the two apart; `{}` is its type.
        padded: a value may have a line to itself; one line break on either side is no part of it.
        python: true, false and null may be as Python writes them.
        escaped: `&` and `"` in a key are written as in XML.
    """

    opening: str
    naming: tuple[str, ...]
    closing: str
    typed: tuple[str, ...] | None = None
    padded: bool = False
    python: bool = False
    escaped: bool = False

    @property
    def tells_types(self) -> bool:
        return self.typed is not None and any("{}" in piece for piece in self.typed)

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
        '<|open|>argument key="', ('" type="string"<|sep|>',), "<|close|>argument<|sep|>", ('" type="{}"<|sep|>',), escaped=True
    ),
    "cohere_xml": ParameterStyle('<cofl:value name="', ('" type="raw">',), "</cofl:value>", ('" type="json">',)),
    "step_xml": ParameterStyle('<steptml:parameter name="', ('">',), "</steptml:parameter>"),
}
