"""`sgl.evaluate`: run a program over rows and score what it gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sgl.lang.errors import BadValueError, nearest, shown
from sgl.lang.sgl_function import SglFunction

from .evaluation import EvaluatedRow, Evaluation
from .field_scores import MISSING, Scores, compared
from .plain_values import plain
from .program_outcomes import ProgramRuns, RowOutcome


def evaluate(
    program: Any,
    rows: Sequence[Any],
    gold: Sequence[Any],
    *,
    value: str | None = None,
    scores: Scores | None = None,
    journal: str | Path | None = None,
    backend: Any = None,
    name: str | None = None,
    **options: Any,
) -> Evaluation:
    """Run a program over rows, compare each value with the gold one, and return the scores.

    program: an @sgl.function, whose body returns the value; a task with its first arguments, such as
    `functools.partial(sgl.extract, Booking, details=True)`; or any function, which is called with each row.
    rows: as `run_batch` takes them: dicts or tuples of arguments; of a task its texts.
    gold: the right value of each row: an object, a dict, a list, a label. Objects of any class are compared by their
    fields; a field that a dict does not have is None.
    value: the variable of the program that holds the value, if its body does not return it.
    scores: by the path of a field (`total`, `lines[].price`, "" for the whole value): 'exact', 'normalised' (the
    default) or a function of (gold, given) that returns 0 to 1.
    journal: a file to keep what was computed. A second evaluation computes only what the first did not.
    backend: where the program runs. name: of the evaluation, by default the program's.
    options: those of `run_batch`: num_threads, progress_bar, seed, ... The temperature is 0 unless you set it.

    A row that fails counts as wrong in every field; its error is in the result. Raises BadValueError for rows and gold
    that do not fit, or for `scores` of a path that no value has.
    """
    _check(program, rows, gold, scores)
    rows, wanted = list(rows), [plain(one) for one in gold]
    if len(rows) != len(wanted) or not rows:
        raise BadValueError(
            f"there are {len(rows)} rows and {len(wanted)} gold values; give one gold value for each row"
        )
    several = any(isinstance(one, list) for one in wanted)
    outcomes, seconds, counts = ProgramRuns(program, value, backend, journal, options, several).outcomes(rows)
    _check_values(outcomes, wanted, value)
    found = tuple(
        _evaluated(index, *parts, scores or {}) for index, parts in enumerate(zip(rows, wanted, outcomes, strict=True))
    )
    _check_scores(scores or {}, found)
    return Evaluation(name or _name(program), found, seconds, counts)


def _evaluated(index: int, row: Any, gold: Any, outcome: RowOutcome, scores: Scores) -> EvaluatedRow:
    fields = compared(gold, outcome.value, scores, outcome.confidence)
    return EvaluatedRow(index, row, gold, outcome.value, outcome.error, fields, outcome.usage, outcome.seconds)


def _check_values(outcomes: list[RowOutcome], gold: list[Any], value: str | None) -> None:
    """Raise where no row gave a value although values were wanted: the body returns nothing."""
    given = [outcome.value for outcome in outcomes if outcome.value is not MISSING]
    if value is None and given and all(one is None for one in given) and any(one is not None for one in gold):
        raise BadValueError(
            "the program returned None for every row; return the value from its body, or name its variable: value='...'"
        )


def _check(program: Any, rows: Any, gold: Any, scores: Any) -> None:
    """Raises BadValueError for what no row could be run with."""
    if not callable(program) and not isinstance(program, SglFunction):
        raise BadValueError(f"the program is {shown(program)}; give an @sgl.function, a task or a function of a row")
    for name, given in (("rows", rows), ("gold", gold)):
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            raise BadValueError(f"{name} is {shown(given)}; give a list with one item for each row")
    if not isinstance(scores, Mapping | None):
        raise BadValueError(f"scores is {shown(scores)}; give a dict of scores by the path of a field")


def _check_scores(scores: Scores, rows: tuple[EvaluatedRow, ...]) -> None:
    known = {field.path for row in rows for field in row.fields}
    for path in scores:
        if path not in known:
            raise BadValueError(f"scores has {path!r}, but no value has this field; {nearest(path, known)}")


def _name(program: Any) -> str:
    while not hasattr(program, "__name__") and hasattr(program, "func"):
        program = program.func
    return str(getattr(program, "__name__", type(program).__name__))
