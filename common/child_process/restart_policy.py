"""How often a process that dies is started again."""

from __future__ import annotations

from collections.abc import Sequence


class RestartPolicy:
    """pauses: seconds before each restart in a row; after the last one the process stays down."""

    def __init__(self, pauses: Sequence[float]) -> None:
        self.pauses, self.deaths = pauses, 0

    def pause(self, useful: bool) -> float | None:
        """Seconds before the next start, None where there is none. useful: the life that ended begins a new row."""
        self.deaths = 1 if useful else self.deaths + 1
        return self.pauses[self.deaths - 1] if self.deaths <= len(self.pauses) else None
