"""Which steps wait for the one before, where steps otherwise run ahead of the host: drafts go on from known tokens."""

from __future__ import annotations

LONGEST = 16  # steps that run ahead between two that waited for nothing


class RunAheadPolicy:
    """A step that waited and got no draft kept the device idle for nothing: the next comes after twice as many steps.

    waits: whether the next step is to be planned when the one before is finished.
    """

    def __init__(self) -> None:
        self.waits = False
        self._between = self._left = 0

    def planned(self, known: bool, hopes: bool, drafted: bool) -> None:
        """A step was. known: every token was.  hopes: drafts could pay.  drafted: there are some."""
        if known:
            self._between = 0 if drafted else min(LONGEST, max(1, 2 * self._between))
            self._left, self.waits = self._between, False
        elif hopes:
            self._left -= 1
            self.waits = self._left <= 0
