"""Of a step that several ranks compute together, which rows are whose."""

from __future__ import annotations

from typing import NamedTuple


class RankRowShare(NamedTuple):
    """Which part of a step's rows is this rank's."""

    rank: int
    ranks: int
