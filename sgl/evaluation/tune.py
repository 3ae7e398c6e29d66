"""`sgl.tune`: choose the examples and the wordings of a prompt by measured score."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sgl.lang.errors import BadValueError, shown
from sgl.lang.sgl_function import SglFunction

from .compare import Comparison, compare
from .evaluate import evaluate
from .row_parts import Pair, as_shown, columns, split_rows
from .text_table import text_table

IDLE = 200  # changes in a row that were tried before, after which the search ends

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Tuned:
    """The result of `sgl.tune`. `print` shows the tries and the test.

    program: the given one with the chosen arguments bound. arguments: these. tries: the arguments of each try with its
    score on the validation rows. test: the program as given (a) and the chosen one (b), on rows that no try has seen.
    """

    program: Any
    arguments: Arguments
    tries: list[tuple[Arguments, float]]
    test: Comparison

    def __str__(self) -> str:
        lines = [[str(i), f"{score:.3f}", _brief(arguments)] for i, (arguments, score) in enumerate(self.tries)]
        return f"{text_table(['try', 'score', 'arguments'], lines)}\n\nOn the test rows:\n{self.test}"


def tune(
    program: Any,
    rows: Sequence[Any],
    gold: Sequence[Any],
    *,
    tries: int = 20,
    examples: str | None = "examples",
    most: int = 4,
    wordings: Mapping[str, Sequence[Any]] | None = None,
    seed: int = 0,
    **options: Any,
) -> Tuned:
    """Try examples and wordings, keep what scores best, and test it on rows that were not used for the choice.

    program, rows, gold, options: of `sgl.evaluate`. With `journal`, a second tuning computes only what is new.
    examples: the parameter of the program that takes a list of (row, gold) pairs; of a row with one argument the pair
        has that argument. None: try wordings only.
    most: examples at once. wordings: by parameter, the values to try; the first one is where the search starts.
    tries: how many programs are scored. seed: of the random choices.

    A digest of each row decides what it is for: half of the rows are examples to choose from, three tenths score the
    tries, and the rest is the test. A try changes one thing in the best arguments so far: it adds, drops or replaces
    the last example, or takes another wording; so the engine has the examples before it in its prefix cache. Raises
    BadValueError if a part has no row; what the rows failed with, if a try failed in every row.
    """
    _check(rows, gold, tries, examples, most, wordings)
    pool, validation, test = split_rows([(row, one) for row, one in zip(rows, gold, strict=True)])
    start: Arguments = {name: values[0] for name, values in (wordings or {}).items()}
    moves: dict[str, Sequence[Any]] = {name: values for name, values in (wordings or {}).items() if _differ(values)}
    if examples is not None:
        start, moves = {**start, examples: []}, {**moves, examples: [(as_shown(row), one) for row, one in pool]}
    if not moves or tries < 1:
        raise BadValueError("there is nothing to try; give examples=, or wordings= with several values, and tries=")
    generator, scored, idle = random.Random(seed), list[tuple[Arguments, float]](), 0
    best = changed = start
    while len(scored) < tries and idle < IDLE:
        idle += 1
        if all(changed != arguments for arguments, _ in scored):
            scored.append((changed, _score(_bound(program, changed), validation, options)))
            best, idle = max(scored, key=lambda one: one[1])[0], 0
        name = generator.choice(list(moves))
        choose = partial(_other_examples, most=most) if name == examples else _other
        changed = {**best, name: choose(best[name], moves[name], generator)}
    chosen = _bound(program, best)
    return Tuned(chosen, best, scored, compare(_bound(program, start), chosen, *columns(test), **options))


def _check(rows: Any, gold: Any, tries: Any, examples: Any, most: Any, wordings: Any) -> None:
    """Raises BadValueError, before anything runs, for what is no list, number or name."""
    if len(rows) != len(gold):
        raise BadValueError(f"there are {len(rows)} rows and {len(gold)} gold values; give one gold value for each row")
    for name, value in (("tries", tries), ("most", most)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadValueError(f"tune: {name} is {shown(value)}; give a whole number")
    if not isinstance(examples, str | None):
        raise BadValueError(f"tune: examples is {shown(examples)}; give the name of the program's parameter, or None")
    for name, values in (wordings or {}).items():
        if not isinstance(values, list | tuple) or not values:
            raise BadValueError(f"tune: wordings[{name!r}] is {shown(values)}; give a list of values to try")


def _score(program: Any, part: list[Pair], options: Mapping[str, Any]) -> float:
    """Raises the first error if every row failed: then the program is wrong, and not its arguments bad."""
    found = evaluate(program, *columns(part), **options)
    if len(found.errors) == len(found.rows) and found.errors[0].error is not None:
        raise found.errors[0].error
    return found.score


def _differ(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values)


def _other(present: Any, values: Sequence[Any], generator: random.Random) -> Any:
    return generator.choice([value for value in values if value != present])


def _other_examples(present: list[Pair], pool: Sequence[Pair], generator: random.Random, most: int) -> list[Pair]:
    """One more at the end, one less, or another at the end."""
    kept = present[:-1] if len(present) >= most or (present and generator.random() < 0.3) else present
    free = [one for one in pool if one not in present]
    return [*kept, generator.choice(free)] if free and len(kept) < most and generator.random() < 0.9 else kept


def _bound(program: Any, arguments: Arguments) -> Any:
    return program.bind(**arguments) if isinstance(program, SglFunction) else partial(program, **arguments)


def _brief(arguments: Arguments) -> str:
    return ", ".join(f"{name}: {len(value) if isinstance(value, list) else value}" for name, value in arguments.items())
