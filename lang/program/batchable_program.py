"""A program on many items, and with options of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Self, TypeAlias, Unpack, overload

from ..errors import reject_unknown
from . import batch_runs
from .batch_options import BatchDisplayOptions, BatchOptions
from .program import Program, ProgramCall
from .program_run import RunSettings, sampling_options
from .program_state import ProgramState
from .run_options import RunOptions
from .type_parameters import Parameters, Returned_co

# of a batch: dicts of arguments, tuples of them in their order, or what `program.item(...)` gives
Items: TypeAlias = Sequence[dict[str, Any] | Sequence[Any] | ProgramCall]


class BatchableProgram(Program[Parameters, Returned_co]):
    """What `SglFunction` adds to a program for batches."""

    def with_options(self, **options: Unpack[RunOptions]) -> Self:
        """Return the same program with some options of its runs fixed; those that a run is given win.

        The options are those of `run`. Raises UnknownOptionError and BadValueError.
        """
        sampling_options(options)
        return self._changed(run_options={**self.run_options, **options})

    def item(self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> ProgramCall:
        """Return the arguments of one run, as an item of `run_batch`. Raises ArgumentsError if they do not fit."""
        return self.check_all(ProgramCall(args, kwargs))

    @overload
    def run_batch(
        self,
        batch_kwargs: Items,
        *,
        generator_style: Literal[False] = ...,
        return_exceptions: Literal[False] = ...,
        **options: Unpack[BatchDisplayOptions],
    ) -> list[ProgramState[Returned_co]]: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Items,
        *,
        generator_style: Literal[True],
        return_exceptions: Literal[False] = ...,
        **options: Unpack[BatchDisplayOptions],
    ) -> Iterator[ProgramState[Returned_co]]: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Items,
        *,
        generator_style: Literal[False] = ...,
        return_exceptions: bool,
        **options: Unpack[BatchDisplayOptions],
    ) -> list[ProgramState[Returned_co] | Exception]: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Items,
        *,
        generator_style: Literal[True],
        return_exceptions: bool,
        **options: Unpack[BatchDisplayOptions],
    ) -> Iterator[ProgramState[Returned_co] | Exception]: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Items,
        *,
        generator_style: bool,
        return_exceptions: bool = ...,
        **options: Unpack[BatchDisplayOptions],
    ) -> Iterable[Any]: ...
    def run_batch(
        self,
        batch_kwargs: Items,
        *,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        return_exceptions: bool = False,
        **options: Any,
    ) -> Iterable[Any]:
        """Run the program once for each item. An item is a dict of arguments, a tuple of positional ones, or what
        `item` makes of arguments, which type checkers check.

        Returns the finished states in the order of the items; with `generator_style`, an iterator that runs a
        limited number of items ahead. `num_threads` limits how many bodies run at once (1: one item after another
        in this thread). A body that reads no values occupies its thread only for a moment.

        If a node fails, the result is the item's state, and its `error()` is set. If a body itself raises, the
        other items still finish, then the error is raised. With `return_exceptions`, nothing is raised: either
        kind of error replaces the state in the result list.

        `options` are those of `run`, except stream and use_thread; `adapter` may be a list with one for each item.
        """
        options = {**self.run_options, **options}
        reject_unknown("run_batch", options, batch_runs.OPTION_NAMES, batch_runs.meant(options))
        calls = batch_runs.make_calls(self, batch_kwargs)
        plan = batch_runs.BatchRunSettings(num_threads, progress_bar, return_exceptions)
        settings = RunSettings.of(options, return_exceptions, len(calls))
        if generator_style:
            return batch_runs.iterate(self, calls, settings, plan)
        return batch_runs.run_all(self, calls, settings, plan) if calls else []

    @overload
    async def arun_batch(
        self, batch_kwargs: Items, *, return_exceptions: Literal[False] = ..., **options: Unpack[BatchOptions]
    ) -> list[ProgramState[Returned_co]]: ...
    @overload
    async def arun_batch(
        self, batch_kwargs: Items, *, return_exceptions: bool, **options: Unpack[BatchOptions]
    ) -> list[ProgramState[Returned_co] | Exception]: ...
    async def arun_batch(
        self, batch_kwargs: Items, *, num_threads: int | str = "auto", return_exceptions: bool = False, **options: Any
    ) -> list[Any]:
        """`run_batch` for event loops. All `async def` bodies run at once; plain bodies run in threads."""
        options = {**self.run_options, **options}
        reject_unknown("arun_batch", options, batch_runs.OPTION_NAMES, batch_runs.meant(options))
        calls = batch_runs.make_calls(self, batch_kwargs)
        plan = batch_runs.BatchRunSettings(num_threads, False, return_exceptions)
        return await batch_runs.run_all_async(self, calls, RunSettings.of(options, return_exceptions, len(calls)), plan)
