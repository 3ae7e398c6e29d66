"""Which item of one list belongs to which of another: the pairs with the largest sum of similarities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def best_matching(similarities: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Pairs (row, column) with the largest sum, each row and column at most once; as many as the shorter side has.

    `similarities`: a number for each row and column. The Hungarian method with potentials, which adds the rows in turn;
    O(n²) steps of numpy for n items.
    """
    matrix = np.asarray(similarities, dtype=np.float64)
    if matrix.size == 0:
        return []
    if matrix.shape[0] > matrix.shape[1]:
        return sorted((row, column) for column, row in _assigned(-matrix.T))
    return _assigned(-matrix)


def _assigned(costs: Floats) -> list[tuple[int, int]]:
    """The cheapest column for each row; there are at least as many columns as rows."""
    rows, columns = costs.shape
    row_of = np.full(columns + 1, -1)  # the last column is where a new row begins
    row_potential, column_potential = np.zeros(rows), np.zeros(columns + 1)
    for row in range(rows):
        _add_row(row, costs, row_of, row_potential, column_potential)
    return sorted((int(row_of[column]), column) for column in range(columns) if row_of[column] >= 0)


def _add_row(row: int, costs: Floats, row_of: npt.NDArray[np.int_], rows: Floats, columns: Floats) -> None:
    """Find the cheapest chain of changes that gives `row` a column, and apply it."""
    count = costs.shape[1]
    least, came_from = np.full(count, np.inf), np.full(count, count)
    used = np.zeros(count + 1, dtype=bool)
    column, row_of[count] = count, row
    while row_of[column] >= 0:
        used[column] = True
        reduced = costs[row_of[column]] - rows[row_of[column]] - columns[:count]
        better = ~used[:count] & (reduced < least)
        least[better], came_from[better] = reduced[better], column
        following = int(np.argmin(np.where(used[:count], np.inf, least)))
        step = least[following]
        rows[row_of[used]] += step
        columns[used] -= step
        least[~used[:count]] -= step
        column = following
    while column != count:
        row_of[column] = row_of[came_from[column]]
        column = int(came_from[column])
    row_of[count] = -1
