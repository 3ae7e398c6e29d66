"""`sgl.extract_document` under its four forms. What it does is in `long_documents/document_reading.py`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Literal, TypeVar, Unpack, overload

from sgl.documents import Document
from sgl.lang.errors import BadValueError, shown
from sgl.lang.program.batch_options import BatchOptions
from sgl.lang.program.batch_runs import batch_error

from .extract_program import Examples
from .long_documents.document_cost import DocumentCost
from .long_documents.document_extraction import DocumentExtraction
from .long_documents.document_reading import DocumentReading, Questions, piece_task
from .long_documents.merge_rules import Rule

T = TypeVar("T")
Steps = Generator[Questions, list[Any], list[Any]]


class DocumentOptions(BatchOptions, total=False):
    """What `sgl.extract_document` takes besides the type, the document, `validate` and `details`."""

    tokens: int | None
    overlap: int | None
    merge: Mapping[str, Rule] | None
    max_pieces: int | None
    on_failed_piece: Literal["error", "skip"]
    instructions: str | None
    examples: Examples
    retries: int


class DocumentDisplayOptions(DocumentOptions, total=False):
    """What it takes more where there is no event loop."""

    progress_bar: bool


class ExtractDocument:
    """A value of a type from a document of any length: `sgl.extract_document(Lease, document)` is a Lease.

    The document is cut into pieces (`sgl.documents.pieces`). `sgl.extract` reads all of them in one batch, with every
    field optional, so that a piece may say nothing of a field. What the pieces say of a field becomes one value by the
    field's rule. A call returns the value, `await sgl.extract_document.arun(T, document)` does so on an event loop;
    `batch` and `abatch` take several documents. `sgl.extract_document.cost(T, document)` says what it costs at most.

    kind          the type: a class with fields, or any other that `gen` takes, which is then the field "value"
    document      of `sgl.documents.read`, or a text
    tokens        the most tokens of a piece; by default what fits the model's context, at most 2,000
    overlap       the most tokens that a piece repeats of the one before it (a tenth of `tokens`)
    merge         rules by field: "all" (lists: the items of all pieces, without those that an overlap repeats),
                  "most_certain", "first", "model" (it is shown what was found and chooses), or a function of a list of
                  FoundValues that returns the value in JSON. By default "all" for lists, for other fields
                  "most_certain", or "first" where the backend reports no confidence
    max_pieces    a document of more pieces is refused before anything runs
    budget        tokens or an sgl.Budget: a document that may cost more is refused before anything runs
    max_tokens    the most tokens of the answer for a piece (1024, or a quarter of the context if that is less)
    on_failed_piece  "skip" leaves pieces out from which no value was read ("error")
    validate      a function of the merged value that raises ValueError for one that is wrong
    instructions, examples, retries  as for `sgl.extract`; the values of examples are of `kind`
    details       True: return a DocumentExtraction, with the places of each field and what each piece says (False)

    Other options are those of `run_batch`, which runs the pieces; the default of `temperature` is 0.

    Raises PieceError, with its pages, for a piece that fails; ExtractionError if the merged value is not valid;
    BudgetExceeded before it runs; BadValueError for types, rules and limits. A batch raises BatchError for the first
    document that failed, when all have ended; with return_exceptions=True the document's result is its error.
    """

    __name__ = "extract_document"

    def __repr__(self) -> str:
        return "<sgl.extract_document>"

    def __reduce__(self) -> str:
        return self.__name__

    def cost(self, kind: Any, document: Document | str, /, **options: Unpack[DocumentDisplayOptions]) -> DocumentCost:
        """What a call with the same arguments costs at most. Nothing is asked of the model."""
        return DocumentReading(kind, {**options, "max_pieces": None, "budget": None}).part(document).cost

    @overload
    def __call__(
        self,
        kind: type[T],
        document: Document | str,
        /,
        *,
        validate: Callable[[T], object] | None = ...,
        details: Literal[False] = ...,
        **options: Unpack[DocumentDisplayOptions],
    ) -> T: ...
    @overload
    def __call__(
        self,
        kind: type[T],
        document: Document | str,
        /,
        *,
        validate: Callable[[T], object] | None = ...,
        details: Literal[True],
        **options: Unpack[DocumentDisplayOptions],
    ) -> DocumentExtraction[T]: ...
    @overload
    def __call__(
        self,
        kind: Any,
        document: Document | str,
        /,
        *,
        validate: Callable[[Any], object] | None = ...,
        details: bool = ...,
        **options: Unpack[DocumentDisplayOptions],
    ) -> Any: ...
    def __call__(self, kind: Any, document: Document | str, /, *, details: bool = False, **options: Any) -> Any:
        return _single(_run(DocumentReading(kind, options).results([document])), details)

    @overload
    async def arun(
        self,
        kind: type[T],
        document: Document | str,
        /,
        *,
        validate: Callable[[T], object] | None = ...,
        details: Literal[False] = ...,
        **options: Unpack[DocumentOptions],
    ) -> T: ...
    @overload
    async def arun(
        self,
        kind: type[T],
        document: Document | str,
        /,
        *,
        validate: Callable[[T], object] | None = ...,
        details: Literal[True],
        **options: Unpack[DocumentOptions],
    ) -> DocumentExtraction[T]: ...
    @overload
    async def arun(
        self,
        kind: Any,
        document: Document | str,
        /,
        *,
        validate: Callable[[Any], object] | None = ...,
        details: bool = ...,
        **options: Unpack[DocumentOptions],
    ) -> Any: ...
    async def arun(self, kind: Any, document: Document | str, /, *, details: bool = False, **options: Any) -> Any:
        """As a call, for event loops."""
        return _single(await _arun(DocumentReading(kind, options).results([document])), details)

    def batch(
        self,
        kind: Any,
        documents: Iterable[Document | str],
        /,
        *,
        validate: Callable[[Any], object] | None = None,
        details: bool = False,
        return_exceptions: bool = False,
        **options: Unpack[DocumentDisplayOptions],
    ) -> list[Any]:
        """The value of each document, in their order. The pieces of all of them are one batch."""
        given = _listed(documents)
        results = _run(DocumentReading(kind, {**options, "validate": validate}).results(given))
        return _many(kind, given, results, details, return_exceptions)

    async def abatch(
        self,
        kind: Any,
        documents: Iterable[Document | str],
        /,
        *,
        validate: Callable[[Any], object] | None = None,
        details: bool = False,
        return_exceptions: bool = False,
        **options: Unpack[DocumentOptions],
    ) -> list[Any]:
        """As `batch`, for event loops."""
        given = _listed(documents)
        results = await _arun(DocumentReading(kind, {**options, "validate": validate}).results(given))
        return _many(kind, given, results, details, return_exceptions)


def _listed(documents: Any) -> list[Any]:
    if isinstance(documents, str | bytes | Document) or not isinstance(documents, Iterable):
        raise BadValueError(f"extract_document.batch: documents is {shown(documents)}; give a list of documents")
    return list(documents)


def _run(steps: Steps) -> list[Any]:
    answers: Any = None
    while True:
        try:
            questions = steps.send(answers)
        except StopIteration as end:
            return end.value
        answers = piece_task.answers(questions)


async def _arun(steps: Steps) -> list[Any]:
    answers: Any = None
    while True:
        try:
            questions = steps.send(answers)
        except StopIteration as end:
            return end.value
        answers = await piece_task.async_answers(questions)


def _single(results: list[Any], details: bool) -> Any:
    (result,) = results
    if isinstance(result, Exception):
        raise result
    return result if details else result.value


def _many(kind: Any, given: list[Any], results: list[Any], details: bool, return_exceptions: bool) -> list[Any]:
    failed = {i: result for i, result in enumerate(results) if isinstance(result, Exception)}
    shown = [result if details or i in failed else result.value for i, result in enumerate(results)]
    if failed and not return_exceptions:
        raise batch_error("extract_document", [{"kind": kind, "document": one} for one in given], failed, shown)
    return shown


extract_document = ExtractDocument()
