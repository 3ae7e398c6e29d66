"""What a page shows, as plain data: everything is computed here, the page only draws."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from ..backend import Backend
from ..errors import BadValueError
from ..interpreter.run_history import RunBranch
from ..interpreter.state_transcript import PendingText, Piece, TextSpan, ThoughtText, text_of
from ..interpreter.state_variables import Binding
from ..interpreter.stream_executor import StreamExecutor
from ..interpreter.token_usage import Usage
from ..program.program_state import StateBase
from .report_node import different, failure_of, piece_data
from .report_pages import ReportPages
from .value_text import error_data, shown

Where = dict[int, list[int]]  # id of a piece -> number of its branch, number among the branch's own pieces


def page_data(states: Sequence[Any], title: str | None = None, wait: bool = True) -> dict[str, Any]:
    """The data of a page. Raises BadValueError for what is neither a state nor an exception."""
    for state in states:
        if not isinstance(state, StateBase | BaseException):
            raise BadValueError(
                f"a report is made of program states, as run and run_batch give them, not of {state!r:.60}"
            )
        if wait and isinstance(state, StateBase):
            settle(state.stream_executor)
    now = time.perf_counter()
    opened = [state.stream_executor.control.root.opened for state in states if isinstance(state, StateBase)]
    first = min(opened, default=now)
    pages = ReportPages(time.time() - (now - first))
    runs = [_run_or_error(state, pages, first) for state in states]
    return {
        "title": title or _title(runs),
        "made": datetime.now().astimezone().isoformat(timespec="seconds"),
        "runs": runs,
        "vocabulary": pages.vocabulary.data(),
        "files": pages.sources.data(),
    }


def settle(executor: StreamExecutor) -> None:
    """Wait for all that was appended to the run, on all its branches."""
    executor.sync()
    for branch in executor.control.root.all():
        for piece in branch.own:
            piece.wait()


def _title(runs: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(run["program"] for run in runs if run["program"]))
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") or "sgl"


def _run_or_error(state: Any, pages: ReportPages, first: float) -> dict[str, Any]:
    if isinstance(state, StateBase):
        return run_data(state, pages, first)
    error = error_data(state, pages.sources.place)
    return {"program": "", "state": "failed", "error": error, "usage": {}, "branches": [], "variables": []}


def run_data(state: StateBase, pages: ReportPages, first: float) -> dict[str, Any]:
    executor = state.stream_executor
    root = executor.control.root
    pages.zero = root.opened
    branches = root.all()
    own = [branch.own for branch in branches]
    usage = Usage.total(piece.usage for pieces in own for piece in pieces if piece.usage is not None)
    data: dict[str, Any] = {
        "program": root.program,
        **_backend(root.backend),
        "state": _run_state(executor, own),
        "start": round(root.opened - first, 6),
        "now": pages.time(time.perf_counter()),
        "end": pages.time(_end(branches, own)),
        "options": different(executor.options),
        "arguments": {str(name): shown(value) for name, value in executor.arguments.items()},
        "usage": usage_data(usage),
        "unknown": sorted(usage.unknown),
        "branches": _branches(branches, own, pages),
        "branch": branches.index(executor.branch) if executor.branch in branches else 0,
        "variables": _variables(state, _places(own)),
    }
    if executor.control.usage.operations > usage.operations:
        data["with_nested"] = usage_data(executor.control.usage)
    if error := _error(executor, own):
        data["error"] = error_data(error, pages.sources.place)
    return data


def usage_data(usage: Usage) -> dict[str, Any]:
    computing = usage.computing_seconds
    return {
        "prompt": usage.prompt_tokens,
        "cached": usage.cached_tokens,
        "computed": usage.computed_tokens,
        "forced": usage.forced_tokens,
        "drafted": usage.drafted_tokens,
        "accepted": usage.accepted_tokens,
        "generated": usage.generated_tokens,
        "operations": usage.operations,
        "seconds": round(usage.seconds, 6),
        **({"reread": usage.reread_tokens} if usage.reread_tokens else {}),
        **({} if computing is None else {"computing": round(computing, 6)}),
    }


def _backend(backend: Backend) -> dict[str, Any]:
    try:
        model = backend.get_model_name()
    except Exception as error:  # a remote one may have to be asked, and may be gone
        model = f"not known ({type(error).__name__})"
    return {"model": model, "backend": type(backend).__name__}


def _run_state(executor: StreamExecutor, own: list[list[Piece]]) -> str:
    if executor.control.stopped is not None:
        return "stopped"
    if _error(executor, own) is not None:
        return "failed"
    return "done" if executor.ended and _all_done(own) else "running"


def _error(executor: StreamExecutor, own: list[list[Piece]]) -> BaseException | None:
    failed = (error for pieces in own if (error := failure_of(pieces)) is not None)
    return executor.control.stopped or next(failed, None) or executor.failure or executor.body_error


def _all_done(own: list[list[Piece]]) -> bool:
    return all(piece.done for pieces in own for piece in pieces)


def _end(branches: list[RunBranch], own: list[list[Piece]]) -> float | None:
    """When the body had ended and the last operation was done; None before that."""
    if branches[0].closed is None or not _all_done(own):
        return None
    finished = [p.finished for pieces in own for p in pieces if isinstance(p, PendingText) and p.finished]
    return max([branches[0].closed, *finished])


def _branches(branches: list[RunBranch], own: list[list[Piece]], pages: ReportPages) -> list[dict[str, Any]]:
    numbers = {id(branch): number for number, branch in enumerate(branches)}
    return [
        {
            "label": branch.label,
            **({"adapter": branch.adapter} if branch.adapter else {}),
            "parent": numbers.get(id(branch.parent), -1),
            "start": branch.start,
            "opened": pages.time(branch.opened),
            "closed": pages.time(branch.closed),
            "turns": _turns(branch),
            "pieces": _pieces(branch, pieces, pages),
        }
        for branch, pieces in zip(branches, own, strict=True)
    ]


def _turns(branch: RunBranch) -> list[list[Any]]:
    """[role, start, end], end None for the open one; numbers of the branch's pieces, shared ones included."""
    turns = list(branch.turns)
    if branch.conversation is not None and branch.conversation.current is not None:
        turns.append(branch.conversation.current)
    return [[turn.role, turn.start, turn.end] for turn in turns]


def _pieces(branch: RunBranch, own: list[Piece], pages: ReportPages) -> list[dict[str, Any]]:
    shared = branch.pieces.items[: branch.start]
    before = next((piece for piece in reversed(shared) if isinstance(piece, PendingText)), None)
    data = []
    for piece in own:
        data.append(piece_data(piece, before, branch.backend, pages))
        before = piece if isinstance(piece, PendingText) else before
    return data


def _places(own: list[list[Piece]]) -> Where:
    return {id(piece): [b, n] for b, pieces in enumerate(own) for n, piece in enumerate(pieces)}


def _variables(state: StateBase, places: Where) -> list[dict[str, Any]]:
    """The variables of the state, in the order of their making as far as that is known, and what it returned."""
    variables = state._variables
    bindings = variables.pending()
    values = [(name, value) for name, value in variables.ready().items() if name not in bindings]
    data = [_bound(str(name), binding, places) for name, binding in bindings.items()]
    data += [{"name": str(name), "text": shown(value), "type": type(value).__name__} for name, value in values]
    if state.ret_value is not None:
        returned = state.ret_value
        data.append({"returned": True, "text": shown(returned), "type": type(returned).__name__})
    return data


def _bound(name: str, binding: Binding, places: Where) -> dict[str, Any]:
    """A variable that a node makes. Its text is not repeated where the page has it as the text of that node."""
    if isinstance(binding, PendingText) and id(binding) in places:
        return {"name": name, "node": places[id(binding)]}
    state = "failed" if binding.error else "done" if binding.done else "running"
    return {"name": name, "state": state, **dict(_text(binding, places))}


def _text(binding: Binding, places: Where) -> Iterator[tuple[str, Any]]:
    if isinstance(binding, ThoughtText) and id(binding._piece) in places:
        yield "node", places[id(binding._piece)]
    if binding.done and binding.error is None:
        value = text_of(binding._pieces, wait=False) if isinstance(binding, TextSpan) else binding.value
        yield "text", shown(value)
        yield "type", type(value).__name__
