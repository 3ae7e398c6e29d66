"""`sgl.extract` under its four forms. The program that it runs is in `extract_program.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar, Unpack, overload

from sgl.lang.errors import BadValueError, TooLongError
from sgl.lang.program.batch_options import BatchOptions, RunOptions
from sgl.lang.program.batch_runs import batch_error

from .extract_document import extract_document
from .extract_program import Examples, Extraction, extract_program
from .nearest_examples import as_given
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
    examples      pairs of a text and its value, which the model reads first; or `sgl.nearest(pairs, k)`
    retries       how often a value that a validator refuses may be written again, with the validator's message in the
                  conversation (0)
    validate      a function of the value that raises ValueError for one that is wrong; what it returns is not used
    on_too_long   what becomes of a text that does not fit the model's context: "error", or "pieces", which reads it as
                  `sgl.extract_document` does; with details=True its result is a DocumentExtraction
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
        arguments, options, in_pieces = self._request(kind, given)
        try:
            return self._run({**arguments, "text": text}, options)
        except TooLongError:
            if in_pieces is None:
                raise
        return extract_document(kind, text, **in_pieces)

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
        arguments, options, in_pieces = self._request(kind, given)
        try:
            return await self._arun({**arguments, "text": text}, options)
        except TooLongError:
            if in_pieces is None:
                raise
        return await extract_document.arun(kind, text, **in_pieces)

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
        arguments, options, in_pieces = self._request(kind, given)
        items = [{**arguments, "text": text} for text in texts]
        if in_pieces is None:
            return self._run_batch(items, options, return_exceptions)
        results = self._run_batch(items, options, True)
        long = _too_long(results)
        read = extract_document.batch(kind, [items[i]["text"] for i in long], return_exceptions=True, **in_pieces)
        return self._with(items, results, long, read, return_exceptions)

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
        arguments, options, in_pieces = self._request(kind, given)
        items = [{**arguments, "text": text} for text in texts]
        if in_pieces is None:
            return await self._arun_batch(items, options, return_exceptions)
        results = await self._arun_batch(items, options, True)
        long = _too_long(results)
        read = await extract_document.abatch(
            kind, [items[i]["text"] for i in long], return_exceptions=True, **in_pieces
        )
        return self._with(items, results, long, read, return_exceptions)

    def _with(
        self, items: Sequence[Any], results: list[Any], long: list[int], read: list[Any], return_exceptions: bool
    ) -> list[Any]:
        """The results of a batch, where those of long texts are what was read of their pieces."""
        for i, result in zip(long, read, strict=True):
            results[i] = result
        failed = {i: result for i, result in enumerate(results) if isinstance(result, Exception)}
        if failed and not return_exceptions:
            raise batch_error(self.__name__, items, failed, results)
        return results

    def _request(
        self, kind: Any, given: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]:
        """The arguments of the program but the text, the options of the run, and those of reading in pieces.

        The last are None where a text that is too long is an error. Raises BadValueError.
        """
        asked = {name: value for name, value in given.items() if name not in ("on_too_long", "copied_from", "journal")}
        own = {name: given.pop(name) for name in self.program.parameter_names & given.keys()}
        retries, too_long = own.get("retries", 0), given.pop("on_too_long", "error")
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise BadValueError(f"extract: retries is {retries!r}; give a whole number from 0")
        if too_long not in ("error", "pieces"):
            raise BadValueError(f'extract: on_too_long is {too_long!r}; give "error" or "pieces"')
        if too_long == "pieces" and own.get("copied_from") is not None:
            raise BadValueError(
                'extract: on_too_long="pieces" copies from the pieces of the text; leave out copied_from='
            )
        own["examples"] = asked["examples"] = as_given(own.get("examples", ()))
        if given.get("journal") is not None:
            asked["journal"] = f"{given['journal']}.pieces"
        return {**own, "kind": kind}, given, asked if too_long == "pieces" else None


def _too_long(results: Sequence[Any]) -> list[int]:
    return [i for i, result in enumerate(results) if isinstance(result, TooLongError)]


extract = Extract("extract", extract_program)
