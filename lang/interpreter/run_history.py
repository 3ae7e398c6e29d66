"""What a run has made, for those who look at it: its branches, with their pieces of text and their times."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from ..concurrency.replay_feed import ReplayFeed
from .detached_backend import detached, resting, set_slots, slots_of

if TYPE_CHECKING:
    from ..backend import Backend
    from ..chat import ConversationTurn, ConversationTurns
    from .state_transcript import Piece
    from .token_usage import Usage


class RunBranch:
    """The text of one state, as pieces. The pieces before `start` are shared with the branch it forked off.

    `adapter` computes it, None: the base. `opened` and `closed` are times of time.perf_counter() in seconds, `closed`
        None while it runs.
    """

    __slots__ = (
        "__weakref__",
        "_parent",
        "adapter",
        "backend",
        "children",
        "closed",
        "conversation",
        "label",
        "opened",
        "pieces",
        "program",
        "start",
        "turns",
    )

    def __init__(self, backend: Backend, program: str = "", parent: RunBranch | None = None) -> None:
        self.backend = backend
        self.program = program
        self.adapter: str | None = None
        self._parent = parent and weakref.ref(parent)
        self.pieces: ReplayFeed[Piece] = ReplayFeed(parent.pieces.items if parent else None)
        self.turns: list[ConversationTurn] = []
        self.conversation: ConversationTurns | None = None
        self.children: list[RunBranch] = []
        self.label: str = "0" if parent is None else f"{parent.label}.{len(parent.children) + 1}"
        self.start = len(self.pieces)
        self.opened = time.perf_counter()
        self.closed: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        slots = slots_of(self, "_parent")
        return {**slots, "backend": detached(self.backend), "conversation": resting(self.conversation)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.adapter = None  # of those that were written down before there were any
        set_slots(self, state)
        for child in self.children:
            child._parent = weakref.ref(self)

    @property
    def parent(self) -> RunBranch | None:
        return self._parent() if self._parent else None

    def fork(self, adapter: str | None) -> RunBranch:
        """A branch that continues from here."""
        child = RunBranch(self.backend, self.program, self)
        child.adapter = adapter
        self.children.append(child)
        return child

    def close(self) -> None:
        if self.closed is None:
            self.closed = time.perf_counter()

    @property
    def own(self) -> list[Piece]:
        """The pieces that this branch has added."""
        return self.pieces.items[self.start :]

    def all(self) -> list[RunBranch]:
        """This branch and all that forked off it, each before its own children."""
        return [self, *(branch for child in self.children for branch in child.all())]

    def usage(self) -> Usage:
        """What this branch and its children have used so far."""
        from .token_usage import Usage

        pieces = (piece for branch in self.all() for piece in branch.own)
        return Usage.total(piece.usage for piece in pieces if piece.usage is not None)
