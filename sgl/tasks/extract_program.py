"""What `sgl.extract` runs: a value of a type from a text, checked, and written again where a validator refuses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import sgl
from sgl.lang.errors import BadValueError, ExtractionError, TooLongError, error_message_of
from sgl.lang.typed import reading_of
from sgl.lang.typed.copied_text import Span, copied_spans
from sgl.lang.typed.field_descriptions import kind_in_words
from sgl.lang.typed.type_constraint import type_name
from sgl.lang.typed.typed_json import refusal_of

from .confidence import FieldConfidence, confidence_of, logprob_options
from .nearest_examples import examples_for
from .too_long import is_too_long

T = TypeVar("T")
Examples = Iterable[tuple[str, Any]]


@dataclass(frozen=True)
class Attempt:
    """What the model wrote, and what was wrong with it; None: nothing."""

    text: str
    problem: str | None = None


@dataclass(frozen=True)
class Extraction(Generic[T]):
    """What `sgl.extract(..., details=True)` returns.

    value: of the type that was asked for.
    confidence: of each field by its path in the JSON (`lines[0].price`); None where there is none, and `no_confidence`
        says why.
    spans: of each copied field (`sgl.Quote`) the places where its value occurs in the text.
    usage: tokens and seconds of all attempts. attempts: the texts, the last one of which is the value's.
    """

    value: T
    confidence: dict[str, FieldConfidence] | None
    spans: dict[str, list[Span]] = field(default_factory=dict)
    usage: sgl.Usage = field(default_factory=sgl.Usage)
    attempts: tuple[Attempt, ...] = ()
    no_confidence: str | None = None


@sgl.function
def extract_program(
    s: sgl.State,
    kind: Any,
    text: str,
    instructions: str | None = None,
    examples: Examples = (),
    retries: int = 0,
    validate: Callable[[Any], object] | None = None,
    copied_from: str | None = None,
    details: bool = False,
) -> Any:
    source = text if copied_from is None else copied_from  # a turn of a retry is not what is copied from
    options = {**copied_options(kind, source), **(logprob_options(s) if details else {})}
    s += sgl.system(described(kind, instructions))
    s += sgl.examples(examples_for(text, examples), kind)
    s += sgl.user(text)
    attempts: list[Attempt] = []
    while True:
        s += sgl.assistant(sgl.gen("value", kind, **options))
        try:
            value = s.get("value")
            if validate is not None:
                validate(value)
        except (sgl.ProgramError, ValueError, AssertionError) as error:
            problem = problem_of(s, error)
            attempts.append(Attempt(s["value"], problem))
        else:
            attempts.append(Attempt(s["value"]))
            break
        if len(attempts) > retries:
            raise refused(kind, attempts, s.messages())
        s += sgl.user(f"This is not valid: {problem}\nWrite it again, corrected.")
    if not details:
        return value
    confidence, reason = confidence_of(s, "value", kind)
    spans = copied_spans(kind, value, source)
    return Extraction(value, confidence, spans, s.usage(), tuple(attempts), reason)


def described(kind: Any, instructions: str | None) -> Any:
    """What the model is asked for: the fields of the type, or its kind in words, and the instructions."""
    more = f"\n{instructions}" if instructions else ""
    try:
        return sgl.fields(kind) + more
    except BadValueError:  # it has no fields
        return f"Extract this from the text: {kind_in_words(kind)}.{more}"


def copied_options(kind: Any, source: str) -> dict[str, Any]:
    """The options of a gen of a type some of whose values are copied from a text."""
    return {"copied_from": source} if reading_of(kind).copies else {}


def problem_of(s: sgl.State, error: Exception) -> str:
    """What is wrong with the value, in the words of the validator. Raises where the model could not write one."""
    if s.error() is None:
        cause = error.__cause__ if isinstance(error, sgl.ProgramError) else None
        message = error_message_of(error) if cause is None else refusal_of(cause)
        return message or f"{type(error).__name__}, without a message"
    if is_too_long(error):
        raise TooLongError(
            f"the text is too long: {error_message_of(error.__cause__ or error)}; or extract from its "
            'pieces, with on_too_long="pieces"'
        ) from error
    raise error


def refused(kind: Any, attempts: Sequence[Attempt], messages: Sequence[dict[str, Any]]) -> ExtractionError:
    last = attempts[-1]
    return ExtractionError(
        f"extract({type_name(kind)}): no valid value in {len(attempts)} attempt{'s' if len(attempts) > 1 else ''}; the "
        f"last is {last.text!r}: {last.problem}. Give more retries=, or instructions= that say what is wanted; this "
        "error's `attempts` and `messages` have the whole conversation",
        attempts,
        messages,
    )
