"""What all tasks share: the four forms in which one program is run for its value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sgl.lang.errors import reject_unknown
from sgl.lang.program import batch_runs
from sgl.lang.program.program_state import ProgramState
from sgl.lang.sgl_function import SglFunction

Arguments = Mapping[str, Any]


class Task:
    """A program under four forms: a call, `arun`, `batch` and `abatch`.

    A subclass gives the forms their parameters and types, and calls the four methods below with the arguments of its
    program by name. The program's body returns the value; to change what a task does, copy `program` and edit it.
    Options of a run are passed on. Without `temperature`, a task runs at 0.
    """

    def __init__(self, name: str, program: SglFunction[..., Any]) -> None:
        """`name`: of the task in its module; messages and reports give it to the program too."""
        self.program = program
        self.__name__ = program.__name__ = name

    def __repr__(self) -> str:
        return f"<sgl.{self.__name__}>"

    def __reduce__(self) -> str:
        return self.__name__

    def _run(self, arguments: Arguments, options: Arguments) -> Any:
        """The value of one run. Raises what the run failed with."""
        return _value(self.program.run(**arguments, **_at_zero(options)))

    async def _arun(self, arguments: Arguments, options: Arguments) -> Any:
        """`_run` for event loops."""
        return _value(await self.program.arun(**arguments, **_at_zero(options)))

    def _run_batch(self, items: Sequence[Arguments], options: Arguments, return_exceptions: bool) -> list[Any]:
        """The values of many runs, in the order of `items`, which are the arguments of each.

        Raises BatchError for the first item that failed, when all have ended; its `results` are the values of the
        others. With `return_exceptions` an item's error is its result.
        """
        self._check_batch("batch", options, {"num_threads", "progress_bar"})
        run: Callable[..., list[Any]] = self.program.run_batch
        states = run([dict(item) for item in items], return_exceptions=True, **_at_zero(options))
        return self._values(items, states, return_exceptions)

    async def _arun_batch(self, items: Sequence[Arguments], options: Arguments, return_exceptions: bool) -> list[Any]:
        """`_run_batch` for event loops."""
        self._check_batch("abatch", options, {"num_threads"})
        run: Callable[..., Any] = self.program.arun_batch
        states = await run([dict(item) for item in items], return_exceptions=True, **_at_zero(options))
        return self._values(items, states, return_exceptions)

    def _check_batch(self, form: str, options: Arguments, switches: set[str]) -> None:
        reject_unknown(f"{self.__name__}.{form}", options, batch_runs.OPTION_NAMES | switches)

    def _values(self, items: Sequence[Arguments], states: Sequence[Any], return_exceptions: bool) -> list[Any]:
        results = [state.ret_value if isinstance(state, ProgramState) else state for state in states]
        return results if return_exceptions else self._without_errors(items, results)

    def _without_errors(self, items: Sequence[Arguments], results: list[Any]) -> list[Any]:
        """The results, unless one of them is an error: then BatchError of the first."""
        failed = {i: result for i, result in enumerate(results) if isinstance(result, BaseException)}
        if failed:
            raise batch_runs.batch_error(self.__name__, items, failed, results)
        return results


def _at_zero(options: Arguments) -> dict[str, Any]:
    return {"temperature": 0.0, **options}


def _value(state: ProgramState) -> Any:
    """What the body returned, once the whole run has ended well."""
    if error := state.error():
        raise error
    return state.ret_value
