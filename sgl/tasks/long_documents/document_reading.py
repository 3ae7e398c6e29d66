"""How `sgl.extract_document` reads: pieces are asked by `sgl.extract`, with all fields optional, and merged."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sgl.documents import Document
from sgl.documents.document import as_document
from sgl.lang.backends.default_backend import resolve_backend
from sgl.lang.errors import BadValueError, ExtractionError, reject_unknown, shown
from sgl.lang.interpreter.token_usage import Budget
from sgl.lang.program import batch_runs
from sgl.lang.typed.type_constraint import type_name
from sgl.lang.typed.typed_json import refusal_of

from ..extract_program import extract_program
from ..nearest_examples import NearestExamples, as_given
from ..task import Task
from .document_cost import piece_limits
from .document_extraction import DocumentExtraction
from .document_part import DocumentPart
from .found_values import piece_text
from .merge_rules import checked_rules
from .optional_fields import optional_fields

QUESTION = "The text lists what was found in the parts of a document. Write the right value of each field."
_RUN = batch_runs.OPTION_NAMES | {"num_threads", "progress_bar"}


@dataclass(frozen=True)
class Questions:
    """A batch of the program of `sgl.extract`: the arguments of each run, and the options of all."""

    items: list[dict[str, Any]]
    options: Mapping[str, Any]


class PieceTask(Task):
    """The program of `sgl.extract`, for pieces of documents."""

    def answers(self, questions: Questions) -> list[Any]:
        """An Extraction for each, or its error."""
        return self._run_batch(questions.items, questions.options, True)

    async def async_answers(self, questions: Questions) -> list[Any]:
        """As `answers`, for event loops."""
        return await self._arun_batch(questions.items, questions.options, True)


class DocumentReading:
    """A type and options, made ready. `options`: those of `sgl.extract_document` but `details`."""

    def __init__(self, kind: Any, options: dict[str, Any]) -> None:
        self.fields = optional_fields(kind)
        self.rules = checked_rules(self.fields, options.pop("merge", None))
        self.validate = _fitting("validate", options.pop("validate", None), callable, "a function of the value")
        self.skip = _choice("on_failed_piece", options.pop("on_failed_piece", "error"), ("error", "skip")) == "skip"
        self.max_pieces = _whole("max_pieces", options.pop("max_pieces", None), optional=True)
        self.budget = _fitting("budget", options.pop("budget", None), _is_budget, "an sgl.Budget or a number of tokens")
        self.retries = _whole("retries", options.pop("retries", 0))
        given = as_given(options.pop("examples", ()))
        pairs = [(text, self.fields.example(text, value)) for text, value in given]
        examples = given.with_values(pairs) if isinstance(given, NearestExamples) else pairs
        kind, instructions = self.fields.partial, options.pop("instructions", None)
        _fitting("instructions", instructions, lambda value: isinstance(value, str), "a text")
        self.arguments = {"kind": kind, "instructions": instructions, "examples": examples, "retries": self.retries}
        self.backend = resolve_backend(options.pop("backend", None))
        limits = {"tokens": 1, "overlap": 0, "max_tokens": 1}
        sizes = [_whole(name, options.pop(name, None), least, optional=True) for name, least in limits.items()]
        reject_unknown("extract_document", options, _RUN)
        self.limits = piece_limits(self.arguments, self.backend, *sizes)
        self.run = {**options, "backend": self.backend, "max_tokens": self.limits.max_tokens}

    def part(self, given: Document | str) -> DocumentPart:
        """A document in pieces. Raises BudgetExceeded where they may cost too much."""
        document = as_document(given)
        pieces = [piece for piece in self.limits.pieces(document, self.backend) if piece_text(piece)]
        cost = self.limits.cost(pieces, self.retries, "model" in self.rules.values())
        cost.check(document.source, self.budget, self.max_pieces)
        return DocumentPart(document, pieces, cost, self.rules)

    def results(self, given: Iterable[Document | str]) -> Generator[Questions, list[Any], list[Any]]:
        """Of each document its DocumentExtraction or its error. Yields questions, and is sent their answers."""
        parts = [self.part(one) for one in given]
        texts = [piece_text(piece) for part in parts for piece in part.pieces]
        items = [{**self.arguments, "text": text, "details": True} for text in texts]
        answers = iter((yield Questions(items, self.run)) if items else [])
        for part in parts:
            part.gather([next(answers) for _ in part.pieces])
        undecided = [part for part in parts if part.undecided()]
        if undecided:
            decided = yield self._choices(undecided)
            for part, answer in zip(undecided, decided, strict=True):
                part.decided = answer
        return [self._outcome(part) for part in parts]

    def _choices(self, parts: list[DocumentPart]) -> Questions:
        """What the model is asked to choose between, of each document. The journal of this batch is another file."""
        journal = {"journal": f"{self.run['journal']}.merge"} if self.run.get("journal") else {}
        shared = {"instructions": QUESTION, "retries": self.retries, "details": True}
        items = [{**shared, "kind": self.fields.only(part.undecided()), "text": part.listed()} for part in parts]
        return Questions(items, {**self.run, **journal})

    def _outcome(self, part: DocumentPart) -> DocumentExtraction[Any] | Exception:
        try:
            merged = part.merged(self.skip)
            value = self._value(part.document, merged.fields)
        except Exception as error:  # a rule or a validator of the program may raise anything
            return error
        pieces = list(zip(part.pieces, part.answers, strict=True))
        return DocumentExtraction(value, merged.places, pieces, part.found, part.cost, part.usage())

    def _value(self, document: Document, fields: Mapping[str, Any]) -> Any:
        try:
            value = self.fields.value(fields, self.backend)
            if self.validate is not None:
                self.validate(value)
        except (ValueError, AssertionError) as error:
            missing = [name for name in self.fields.required if name not in fields]
            none = f"; no piece has {', '.join(missing)}: what may be missing needs `| None = None`" * bool(missing)
            raise ExtractionError(
                f"extract_document({type_name(self.fields.kind)}): what the pieces of {document.source} say is not "
                f"valid together: {refusal_of(error)}{none}"
            ) from error
        return value


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise BadValueError(f"extract_document: {name} is {value!r}; give {' or '.join(map(repr, choices))}")
    return value


def _whole(name: str, value: Any, least: int = 0, optional: bool = False) -> Any:
    if not (optional and value is None) and (isinstance(value, bool) or not isinstance(value, int) or value < least):
        raise BadValueError(f"extract_document: {name} is {shown(value)}; give a whole number from {least}")
    return value


def _fitting(name: str, value: Any, fits: Callable[[Any], bool], what: str) -> Any:
    if value is not None and not fits(value):
        raise BadValueError(f"extract_document: {name} is {shown(value)}; give {what}, or leave it out")
    return value


def _is_budget(value: Any) -> bool:
    return isinstance(value, Budget | int) and not isinstance(value, bool)


piece_task = PieceTask("extract", extract_program)
