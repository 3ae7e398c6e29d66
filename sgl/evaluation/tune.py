"""`sgl.tune`: choose the examples and the wordings of a prompt by measured score."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

from sgl.lang.errors import BadValueError
from sgl.lang.sgl_function import SglFunction

from .compare import Comparison, compare
from .evaluate import evaluate
from .text_table import text_table

TRAIN, VALIDATION = 0.5, 0.8  # of the rows: up to here examples, then the scores of tries, then the test
IDLE = 200  # changes in a row that were tried before, after which the search ends

Pair = tuple[Any, Any]  # a row and its gold value
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
    BadValueError if a part has no row.
    """
    pool, validation, test = _parts([(row, one) for row, one in zip(rows, gold, strict=True)])
    start: Arguments = {name: values[0] for name, values in (wordings or {}).items()}
    moves: dict[str, Sequence[Any]] = {name: values for name, values in (wordings or {}).items() if _differ(values)}
    if examples is not None:
        start, moves = {**start, examples: []}, {**moves, examples: [(_shown(row), one) for row, one in pool]}
    generator, scored, idle = random.Random(seed), list[tuple[Arguments, float]](), 0
    best = changed = start
    while moves and len(scored) < tries and idle < IDLE:
        idle += 1
        if all(changed != arguments for arguments, _ in scored):
            scored.append((changed, evaluate(_bound(program, changed), *_columns(validation), **options).score))
            best, idle = max(scored, key=lambda one: one[1])[0], 0
        name = generator.choice(list(moves))
        choose = partial(_other_examples, most=most) if name == examples else _other
        changed = {**best, name: choose(best[name], moves[name], generator)}
    chosen = _bound(program, best)
    return Tuned(chosen, best, scored, compare(_bound(program, start), chosen, *_columns(test), **options))


def _differ(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values)


def _other(present: Any, values: Sequence[Any], generator: random.Random) -> Any:
    return generator.choice([value for value in values if value != present])


def _other_examples(present: list[Pair], pool: Sequence[Pair], generator: random.Random, most: int) -> list[Pair]:
    """One more at the end, one less, or another at the end."""
    kept = present[:-1] if len(present) >= most or (present and generator.random() < 0.3) else present
    free = [one for one in pool if one not in present]
    return [*kept, generator.choice(free)] if free and generator.random() < 0.9 else kept


def _parts(pairs: list[Pair]) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Examples, validation and test. Equal rows are in the same part."""
    parts: tuple[list[Pair], list[Pair], list[Pair]] = ([], [], [])
    for row, gold in pairs:
        place = int.from_bytes(blake2b(repr(row).encode(), digest_size=8).digest()) / 2**64
        parts[(place >= TRAIN) + (place >= VALIDATION)].append((row, gold))
    if not all(parts):
        raise BadValueError(f"{len(pairs)} rows are too few for examples, validation and test; give more")
    return parts


def _columns(pairs: list[Pair]) -> tuple[list[Any], list[Any]]:
    return [row for row, _ in pairs], [gold for _, gold in pairs]


def _bound(program: Any, arguments: Arguments) -> Any:
    return program.bind(**arguments) if isinstance(program, SglFunction) else partial(program, **arguments)


def _shown(row: Any) -> Any:
    values = list(row.values()) if isinstance(row, dict) else list(row) if isinstance(row, tuple) else [row]
    return values[0] if len(values) == 1 else row


def _brief(arguments: Arguments) -> str:
    return ", ".join(f"{name}: {len(value) if isinstance(value, list) else value}" for name, value in arguments.items())
