"""Many runs of a compiled program: all are started from the caller's thread, none has its own thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..errors import ProgramError
from ..program.program_state import ProgramState

Start = Callable[[int], ProgramState]


def shared_arguments(items: list[dict[str, Any]]) -> dict[str, str]:
    """The texts that all items of a batch have in common."""
    if len(items) < 2:
        return {}
    first, *others = items
    return {
        name: value
        for name, value in first.items()
        if isinstance(value, str) and all(item.get(name) == value for item in others)
    }


def in_order(count: int, start: Start, window: int, return_exceptions: bool) -> Iterator[Any]:
    """Finished runs 0 to count - 1, at most `window` ahead of the reader. Raises all errors but failures of nodes."""
    ahead: deque[ProgramState] = deque()
    for index in range(count):
        ahead.append(start(index))
        if len(ahead) >= window:
            yield result_of(ahead.popleft(), return_exceptions)
    while ahead:
        yield result_of(ahead.popleft(), return_exceptions)


def counted(results: Iterable[Any], total: int, shown: bool) -> Iterable[Any]:
    """The results, with a bar that counts them if that is wanted."""
    if not shown:
        return results
    from tqdm.auto import tqdm

    return tqdm(results, total=total)


async def finished(state: ProgramState) -> ProgramState:
    """The state, once its run is over. When the task is cancelled, so is the run."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    state.stream_executor.when_finished(lambda: loop.call_soon_threadsafe(over.set))
    try:
        await over.wait()
    except asyncio.CancelledError:
        state.cancel("the task that ran the program was cancelled")
        raise
    return state


def result_of(state: ProgramState, return_exceptions: bool) -> Any:
    """What a batch returns for a run, once it is over. Raises errors other than failures of nodes."""
    state.sync()
    if return_exceptions:
        return state.error() or state
    raised = state.stream_executor.body_error
    if raised is not None and not isinstance(raised, ProgramError):
        raise raised
    return state
