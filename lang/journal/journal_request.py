"""What a program asks of a stream, as the content that its address is made of."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import Any

from sgl.runtime.text.chat_templates.quoted_text import QuotedText

from ..backend import GenRequest, SelectRequest
from ..places.source_location import SourceLocation
from ..sampling.options import DEFAULTS, NAMES
from .journal_class_names import written_name
from .journal_node import JournalNode

Path = tuple[int, ...]
_NO_MATTER = ("timeout",)  # cannot change what a finished gen is


@dataclass(frozen=True, slots=True)
class RequestContent:
    """The part of a request that decides its result, as JSON. `placed`: so does its place, by the seed.

    Options that are as always are left out, so that an option that sgl learns later changes no address.
    """

    kind: str
    text: str
    placed: bool

    @classmethod
    def of(cls, kind: str, values: dict[str, Any], placed: bool) -> RequestContent:
        return cls(kind, json.dumps(values, sort_keys=True, ensure_ascii=False, default=_named), placed)

    @property
    def address(self) -> str:
        return f"{self.kind} {self.text}"

    @property
    def values(self) -> dict[str, Any]:
        return dict(json.loads(self.text))


@dataclass(frozen=True, slots=True)
class JournalRequest:
    """One question: its content, who asks, and what preceded it (`before`: the text since the node before)."""

    content: RequestContent
    name: str | None
    where: SourceLocation | None
    program: str | None
    path: Path
    shape: str
    occurrence: int
    before: str
    adapter: str | None = None

    @property
    def place(self) -> str:
        return ".".join(map(str, self.path))

    def node(self, key: str, previous: int | None, seconds: float) -> JournalNode:
        """The node of this question, without an outcome and without a number yet."""
        return JournalNode(
            number=-1,
            kind=self.content.kind,
            name=self.name,
            key=key,
            shape=self.shape,
            path=self.place,
            occurrence=self.occurrence,
            program=self.program,
            file=self.where and self.where.file,
            line=self.where and self.where.line,
            previous=previous,
            before=self.before,
            adapter=self.adapter,
            request=self.content.values,
            seconds=seconds,
        )


def content_of(request: GenRequest | SelectRequest) -> RequestContent:
    return gen_content(request) if isinstance(request, GenRequest) else select_content(request)


def gen_content(request: GenRequest) -> RequestContent:
    """A greedy gen does not depend on its seed, nor on its place."""
    options = request.options
    greedy = options.temperature == 0
    left_out = ("seed", *_NO_MATTER) if greedy else _NO_MATTER
    values = {name: getattr(options, name) for name in NAMES if name not in left_out}
    values = {name: value for name, value in values.items() if value not in (None, getattr(DEFAULTS, name))}
    if options.max_new_tokens is None:  # up to the context, where the default is a number
        values["max_new_tokens"] = None
    if options.logit_bias:
        values["logit_bias"] = sorted(options.logit_bias.items())
    if request.template_stops:
        values["template_stops"] = request.template_stops
    return RequestContent.of("gen", values, not greedy and options.seed is None)


def select_content(request: SelectRequest) -> RequestContent:
    values = {"choices": request.choices, "method": _named(request.method)}
    if special := [choice for choice in request.choices if isinstance(choice, QuotedText) and not choice.quoted]:
        values["special"] = special
    if request.end:
        values["end"] = request.end
    if request.temperature:
        values |= {"temperature": request.temperature, "seed": request.seed}
    return RequestContent.of("select", values, request.temperature != 0 and request.seed is None)


def once_content(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RequestContent:
    return RequestContent.of("once", {"name": name, "args": args, "kwargs": kwargs}, True)


def seeded(request: Any, seed: int | None) -> Any:
    """The request with a seed, if it is given one."""
    if seed is None:
        return request
    if isinstance(request, GenRequest):
        return dataclasses.replace(request, options=dataclasses.replace(request.options, seed=seed))
    return dataclasses.replace(request, seed=seed)


def program_at(where: SourceLocation | None) -> str | None:
    """The name of the running function that has this line."""
    frame = sys._getframe(1) if where else None
    found = False
    while frame is not None:
        found = found or (frame.f_code.co_filename, frame.f_lineno) == where
        if found and not frame.f_code.co_name.startswith("<"):  # a lambda or a comprehension is in a function
            return frame.f_code.co_name
        frame = frame.f_back
    return None


def _named(value: Any) -> Any:
    """What is not JSON counts by its type and by those of its attributes that are plain values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    attributes = getattr(value, "__dict__", {})
    plain = {name: attribute for name, attribute in attributes.items() if isinstance(attribute, str | int | float)}
    return [written_name(type(value)), plain]
