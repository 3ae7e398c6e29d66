"""What is asked of `sgl.extract`, and what becomes of texts that do not fit the context."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from sgl.lang.errors import BadValueError, TooLongError, shown
from sgl.lang.typed import reading_of
from sgl.lang.typed.copied_text import copied_spans
from sgl.lang.typed.type_constraint import type_name

from .extract_document import extract_document
from .extract_program import Extraction
from .long_documents.document_extraction import DocumentExtraction
from .nearest_examples import as_given

ON_TOO_LONG = ("error", "pieces")


@dataclass(frozen=True)
class ExtractRequest:
    """items: the arguments of the program for each text. options: of the run. pieces: long texts are read in pieces."""

    items: list[dict[str, Any]]
    options: dict[str, Any]
    pieces: bool

    @classmethod
    def of(cls, kind: Any, texts: Iterable[str], given: Mapping[str, Any], names: Set[str]) -> ExtractRequest:
        """From what a caller gives by name; `names` are those of the program's parameters. Raises BadValueError."""
        _check(kind, texts, given)
        own = {name: value for name, value in given.items() if name in names}
        options = {name: value for name, value in given.items() if name not in names}
        retries, too_long = own.get("retries", 0), options.pop("on_too_long", "error")
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise BadValueError(f"extract: retries is {retries!r}; give a whole number from 0")
        if too_long not in ON_TOO_LONG:
            raise BadValueError(f'extract: on_too_long is {too_long!r}; give "error" or "pieces"')
        if too_long == "pieces" and own.get("copied_from") is not None:
            raise BadValueError(
                'extract: on_too_long="pieces" copies from the pieces of the text; leave out copied_from='
            )
        arguments = {**own, "kind": kind, "examples": as_given(own.get("examples", ()))}
        return cls([{**arguments, "text": text} for text in texts], options, too_long == "pieces")

    def with_pieces(self, results: list[Any]) -> list[Any]:
        """The results, with values from their pieces in place of the errors of texts that are too long."""
        if not (places := _too_long(results)):
            return results
        kind, texts, options = self._documents(places)
        return self._merged(results, places, extract_document.batch(kind, texts, **options))

    async def with_pieces_async(self, results: list[Any]) -> list[Any]:
        """`with_pieces` for event loops."""
        if not (places := _too_long(results)):
            return results
        kind, texts, options = self._documents(places)
        return self._merged(results, places, await extract_document.abatch(kind, texts, **options))

    def _documents(self, places: list[int]) -> tuple[Any, list[str], dict[str, Any]]:
        """What is given to `sgl.extract_document`: the type, the texts at these places, and options.

        A journal is of one batch; that of the pieces is a separate file.
        """
        item = self.items[0]
        options = self.options | {"details": True, "return_exceptions": True}
        options |= {name: item[name] for name in ("instructions", "examples", "retries", "validate") if name in item}
        if options.get("journal") is not None:
            options["journal"] = f"{options['journal']}.pieces"
        return item["kind"], [self.items[place]["text"] for place in places], options

    def _merged(self, results: list[Any], places: list[int], found: list[Any]) -> list[Any]:
        merged = list(results)
        for place, one in zip(places, found, strict=True):
            item = self.items[place]
            if isinstance(one, DocumentExtraction):
                merged[place] = _extraction(one, item) if item.get("details") else one.value
            else:
                merged[place] = one  # an error
        return merged


def _check(kind: Any, texts: Any, given: Mapping[str, Any]) -> None:
    """Raises BadValueError for what would be taken silently for something else, or fail only after the model wrote."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise BadValueError(f"extract.batch: texts is {shown(texts)}; give a list of texts")
    if twice := {"kind", "text"} & given.keys():
        raise BadValueError(f"extract: {min(twice)}= is given twice; give the type and the text by place only")
    for name, what, fits in (
        ("instructions", "a text", lambda value: isinstance(value, str)),
        ("copied_from", "a text", lambda value: isinstance(value, str)),
        ("validate", "a function of the value", callable),
    ):
        if (value := given.get(name)) is not None and not fits(value):
            raise BadValueError(f"extract: {name} is {shown(value)}; give {what}, or leave it out")
    if given.get("copied_from") is not None and not reading_of(kind).copies:
        raise BadValueError(
            f"extract: copied_from= is given, but {type_name(kind)} has no copied values; mark its texts with "
            "sgl.Quote, or leave copied_from= out"
        )


def checked_text(text: Any) -> str:
    """Raises BadValueError for what is no text."""
    if not isinstance(text, str):
        raise BadValueError(f"extract: text is {shown(text)}; give the text from which the value is read")
    return text


def value_of(result: Any) -> Any:
    """A result that is no error. Raises one."""
    if isinstance(result, Exception):
        raise result
    return result


def _too_long(results: list[Any]) -> list[int]:
    return [place for place, result in enumerate(results) if isinstance(result, TooLongError)]


def _extraction(found: DocumentExtraction[Any], item: Mapping[str, Any]) -> Extraction[Any]:
    """The details of a value that was merged from pieces."""
    return Extraction(
        found.value,
        None,
        copied_spans(item["kind"], found.value, item["text"]),
        found.usage,
        tuple(attempt for _, one in found.pieces if isinstance(one, Extraction) for attempt in one.attempts),
        f"the value is merged from {len(found.pieces)} pieces; `found` of sgl.extract_document(..., details=True) has "
        "what each of them has, with its confidence",
    )
