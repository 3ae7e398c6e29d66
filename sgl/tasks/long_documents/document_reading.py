"""How `sgl.extract_document` reads: pieces are asked by `sgl.extract`, with all fields optional, and merged."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sgl.documents import Document, Piece
from sgl.documents.document import as_document
from sgl.lang.backends.default_backend import resolve_backend
from sgl.lang.errors import BadValueError, ExtractionError, error_message_of, reject_unknown
from sgl.lang.interpreter.token_usage import Usage
from sgl.lang.program import batch_runs
from sgl.lang.typed.type_constraint import type_name
from sgl.lang.typed.typed_json import refusal_of, unfenced

from ..extract_program import Extraction, extract_program
from ..task import Task
from .document_cost import DocumentCost, piece_limits
from .document_extraction import DocumentExtraction, PieceError
from .found_values import FoundValue, found_values, piece_text
from .merge_rules import Merged, checked_rules, merge_field
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


@dataclass
class Part:
    """A document of a batch: its pieces, what they say, and what the model chose of it."""

    document: Document
    pieces: list[Piece]
    cost: DocumentCost
    answers: list[Any]
    found: dict[str, list[FoundValue]]
    decided: Extraction[Any] | None = None


class DocumentReading:
    """A type and options, made ready. `options`: those of `sgl.extract_document` but `details`."""

    def __init__(self, kind: Any, options: dict[str, Any]) -> None:
        self.fields = optional_fields(kind)
        self.rules = checked_rules(self.fields, options.pop("merge", None))
        self.validate = options.pop("validate", None)
        self.max_pieces, self.budget = options.pop("max_pieces", None), options.pop("budget", None)
        self.retries = _whole("retries", options.pop("retries", 0))
        examples = [(text, self.fields.example(value)) for text, value in options.pop("examples", ())]
        kind, instructions = self.fields.partial, options.pop("instructions", None)
        self.arguments = {"kind": kind, "instructions": instructions, "examples": examples, "retries": self.retries}
        self.backend = resolve_backend(options.pop("backend", None))
        sizes = [options.pop(name, None) for name in ("tokens", "overlap", "max_tokens")]
        reject_unknown("extract_document", options, _RUN)
        self.limits = piece_limits(self.arguments, self.backend, *sizes)
        self.run = {**options, "backend": self.backend, "max_tokens": self.limits.max_tokens}
        self.by_model = [name for name, rule in self.rules.items() if rule == "model"]

    def part(self, given: Document | str) -> Part:
        """A document in pieces. Raises BudgetExceeded where they may cost too much."""
        document = as_document(given)
        pieces = [piece for piece in self.limits.pieces(document, self.backend) if piece_text(piece)]
        cost = self.limits.cost(pieces, self.retries, bool(self.by_model))
        cost.check(document.source, self.budget, self.max_pieces)
        return Part(document, pieces, cost, [], {name: [] for name in self.rules})

    def results(self, given: Iterable[Document | str]) -> Generator[Questions, list[Any], list[Any]]:
        """Of each document its DocumentExtraction or its error. Yields questions, and is sent their answers."""
        parts = [self.part(one) for one in given]
        texts = [piece_text(piece) for part in parts for piece in part.pieces]
        answers = iter((yield self._questions(texts, self.arguments, self.run)) if texts else [])
        for part in parts:
            part.answers = [next(answers) for _ in part.pieces]
            self._gather(part)
        undecided = [part for part in parts if self._undecided(part)]
        if undecided:
            arguments = {"kind": self.fields.only(self.by_model), "instructions": QUESTION, "retries": self.retries}
            journal = {"journal": f"{self.run['journal']}.merge"} if self.run.get("journal") else {}
            texts = [self._listed(part) for part in undecided]
            decided = yield self._questions(texts, arguments, {**self.run, **journal})
            for part, answer in zip(undecided, decided, strict=True):
                part.decided = answer
        return [self._outcome(part) for part in parts]

    def _questions(self, texts: list[str], arguments: Mapping[str, Any], options: Mapping[str, Any]) -> Questions:
        return Questions([{**arguments, "text": text, "details": True} for text in texts], options)

    def _gather(self, part: Part) -> None:
        """Sort what the pieces say by fields."""
        for piece, answer in zip(part.pieces, part.answers, strict=True):
            if isinstance(answer, Extraction):
                for one in found_values(answer, _fields_of(answer), piece):
                    part.found[one.field].append(one)

    def _undecided(self, part: Part) -> list[str]:
        """The fields of which pieces say different things, where the model is to choose."""
        found = part.found
        return [name for name in self.by_model if any(one.value != found[name][0].value for one in found[name])]

    def _listed(self, part: Part) -> str:
        """What the pieces say of these fields, a line for each."""
        found = [one for name in self._undecided(part) for one in part.found[name]]
        where = [str(one.place).rpartition(", ")[2] for one in found]
        texts = [json.dumps(one.value, ensure_ascii=False) for one in found]
        return "\n".join(f"{one.field}: {text} ({at})" for one, text, at in zip(found, texts, where, strict=True))

    def _outcome(self, part: Part) -> DocumentExtraction[Any] | Exception:
        try:
            for piece, answer in zip(part.pieces, part.answers, strict=True):
                if not isinstance(answer, Extraction):
                    raise PieceError(f"{piece.place}: {error_message_of(answer)}", piece) from answer
            if isinstance(part.decided, Exception):
                raise part.decided
            return self._extraction(part)
        except Exception as error:  # a rule or a validator of the program may raise anything
            return error

    def _extraction(self, part: Part) -> DocumentExtraction[Any]:
        merged = Merged()
        chosen = {} if part.decided is None else _fields_of(part.decided)
        for name, rule in self.rules.items():
            found = part.found[name]
            if chosen.get(name) is not None:
                merged.add(name, chosen[name], [one for one in found if one.value == chosen[name]] or found)
            else:
                merge_field(name, "first" if rule == "model" else rule, found, merged)
        usages = [answer.usage for answer in (*part.answers, part.decided) if answer is not None]
        return DocumentExtraction(
            self._value(part.document, merged.fields),
            merged.places,
            list(zip(part.pieces, part.answers, strict=True)),
            part.found,
            part.cost,
            Usage.total(usages),
        )

    def _value(self, document: Document, fields: Mapping[str, Any]) -> Any:
        try:
            value = self.fields.value(fields, self.backend)
            if self.validate is not None:
                self.validate(value)
        except (ValueError, AssertionError) as error:
            missing = [name for name in self.fields.hints if name not in fields]
            none = f"; no piece has {', '.join(missing)}: what may be missing needs `| None = None`" * bool(missing)
            raise ExtractionError(
                f"extract_document({type_name(self.fields.kind)}): what the pieces of {document.source} say is not "
                f"valid together: {refusal_of(error)}{none}"
            ) from error
        return value


def _fields_of(answer: Extraction[Any]) -> dict[str, Any]:
    return json.loads(unfenced(answer.attempts[-1].text))


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadValueError(f"extract_document: {name} is {value!r}; give a whole number from 0")
    return value


piece_task = PieceTask("extract", extract_program)
