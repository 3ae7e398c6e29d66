"""`sgl.extract` under its four forms. The program that it runs is in `extract_program.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, Unpack, overload

from sgl.lang.program.batch_options import BatchOptions
from sgl.lang.program.run_options import RunOptions

from .extract_program import Examples, Extraction, extract_program
from .extract_request import ExtractRequest, checked_text, value_of
from .task import Task

T = TypeVar("T")
Arguments = dict[str, Any]


class ExtractOptions(RunOptions, total=False):
    """What `sgl.extract` takes besides the type, the text, `validate` and `details`."""

    instructions: str | None
    examples: Examples
    retries: int
    on_too_long: Literal["error", "pieces"]
    copied_from: str | None


class ExtractBatchOptions(BatchOptions, total=False):
    """What `sgl.extract.abatch` takes besides the same."""

    instructions: str | None
    examples: Examples
    retries: int
    on_too_long: Literal["error", "pieces"]
    copied_from: str | None


class ExtractDisplayOptions(ExtractBatchOptions, total=False):
    """What `sgl.extract.batch` takes more."""

    progress_bar: bool


class Extract(Task):
    """A value of a type from a text: `sgl.extract(Invoice, text)` is an Invoice.

    A call returns the value, `await sgl.extract.arun(T, text)` does so on an event loop, `sgl.extract.batch(T, texts)`
    returns a list of values, and so does `await sgl.extract.abatch(T, texts)`.

    kind          the type: any that `gen` takes, such as a dataclass or pydantic model
    text          what the value is read from
    instructions  more words for the model, below the description of the fields
    examples      pairs of a text and its value, which the model reads first
    retries       how often a value that a validator refuses may be written again, with the validator's message in the
                  conversation (0)
    validate      a function of the value that raises ValueError for one that is wrong; what it returns is not used
    on_too_long   what becomes of a text that does not fit the model's context: "error", or "pieces", which reads it as
                  `sgl.extract_document` does
    copied_from   of what text copied fields (`sgl.Quote`) are pieces; by default the text
    details       True: return an `sgl.Extraction`, with confidence, places, usage and attempts (False)

    Other options are those of `sgl.SglFunction.run`, in batches of `run_batch`; the default of `temperature` is 0.

    Raises ExtractionError if no attempt gave a valid value, TooLongError for a text that does not fit, ProgramError for
    what else a run fails with, BadValueError for options and types. A batch raises BatchError for the first item that
    failed, when all have ended; with return_exceptions=True the item's result is its error.
    """

    @overload
    def __call__(
        self,
        kind: type[T],
        text: str,
        /,
        *,
        validate: Callable[[T], object] | None = ...,
        details: Literal[False] = ...,
        **options: Unpack[ExtractOptions],
    ) -> T: ...
    @overload
    def __call__(
        self,
        kind: type[T],
        text: str,
        /,
        *,
        validate: Callable[[T], object] | None = ...,
        details: Literal[True],
        **options: Unpack[ExtractOptions],
    ) -> Extraction[T]: ...
    @overload
    def __call__(
        self,
        kind: Any,
        text: str,
        /,
        *,
        validate: Callable[[Any], object] | None = ...,
        details: bool = ...,
        **options: Unpack[ExtractOptions],
    ) -> Any: ...
    def __call__(self, kind: Any, text: str, /, **given: Any) -> Any:
        request = ExtractRequest.of(kind, [checked_text(text)], given, self.program.parameter_names)
        if not request.pieces:
            return self._run(request.items[0], request.options)
        return value_of(request.with_pieces(self._run_batch(request.items, request.options, True))[0])

    @overload
    async def arun(
        self,
        kind: type[T],
        text: str,
        /,
        *,
        validate: Callable[[T], object] | None = ...,
        details: Literal[False] = ...,
        **options: Unpack[ExtractOptions],
    ) -> T: ...
    @overload
    async def arun(
        self,
        kind: type[T],
        text: str,
        /,
        *,
        validate: Callable[[T], object] | None = ...,
        details: Literal[True],
        **options: Unpack[ExtractOptions],
    ) -> Extraction[T]: ...
    @overload
    async def arun(
        self,
        kind: Any,
        text: str,
        /,
        *,
        validate: Callable[[Any], object] | None = ...,
        details: bool = ...,
        **options: Unpack[ExtractOptions],
    ) -> Any: ...
    async def arun(self, kind: Any, text: str, /, **given: Any) -> Any:
        """As a call, for event loops."""
        request = ExtractRequest.of(kind, [checked_text(text)], given, self.program.parameter_names)
        if not request.pieces:
            return await self._arun(request.items[0], request.options)
        results = await self._arun_batch(request.items, request.options, True)
        return value_of((await request.with_pieces_async(results))[0])

    @overload
    def batch(
        self,
        kind: type[T],
        texts: Iterable[str],
        /,
        *,
        validate: Callable[[T], object] | None = ...,
        details: Literal[False] = ...,
        return_exceptions: Literal[False] = ...,
        **options: Unpack[ExtractDisplayOptions],
    ) -> list[T]: ...
    @overload
    def batch(
        self,
        kind: type[T],
        texts: Iterable[str],
        /,
        *,
        validate: Callable[[T], object] | None = ...,
        details: Literal[True],
        return_exceptions: Literal[False] = ...,
        **options: Unpack[ExtractDisplayOptions],
    ) -> list[Extraction[T]]: ...
    @overload
    def batch(
        self,
        kind: Any,
        texts: Iterable[str],
        /,
        *,
        validate: Callable[[Any], object] | None = ...,
        details: bool = ...,
        return_exceptions: bool = ...,
        **options: Unpack[ExtractDisplayOptions],
    ) -> list[Any]: ...
    def batch(self, kind: Any, texts: Iterable[str], /, *, return_exceptions: bool = False, **given: Any) -> list[Any]:
        """The value of each text, in their order."""
        request = ExtractRequest.of(kind, texts, given, self.program.parameter_names)
        results = self._run_batch(request.items, request.options, return_exceptions or request.pieces)
        if request.pieces:
            results = request.with_pieces(results)
        return results if return_exceptions else self._without_errors(request.items, results)

    @overload
    async def abatch(
        self,
        kind: type[T],
        texts: Iterable[str],
        /,
        *,
        validate: Callable[[T], object] | None = ...,
        details: Literal[False] = ...,
        return_exceptions: Literal[False] = ...,
        **options: Unpack[ExtractBatchOptions],
    ) -> list[T]: ...
    @overload
    async def abatch(
        self,
        kind: type[T],
        texts: Iterable[str],
        /,
        *,
        validate: Callable[[T], object] | None = ...,
        details: Literal[True],
        return_exceptions: Literal[False] = ...,
        **options: Unpack[ExtractBatchOptions],
    ) -> list[Extraction[T]]: ...
    @overload
    async def abatch(
        self,
        kind: Any,
        texts: Iterable[str],
        /,
        *,
        validate: Callable[[Any], object] | None = ...,
        details: bool = ...,
        return_exceptions: bool = ...,
        **options: Unpack[ExtractBatchOptions],
    ) -> list[Any]: ...
    async def abatch(
        self, kind: Any, texts: Iterable[str], /, *, return_exceptions: bool = False, **given: Any
    ) -> list[Any]:
        """As `batch`, for event loops."""
        request = ExtractRequest.of(kind, texts, given, self.program.parameter_names)
        results = await self._arun_batch(request.items, request.options, return_exceptions or request.pieces)
        if request.pieces:
            results = await request.with_pieces_async(results)
        return results if return_exceptions else self._without_errors(request.items, results)


extract = Extract("extract", extract_program)
