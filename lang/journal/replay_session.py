"""One pass of programs over a journal: which nodes are there to be served, and which of them have been."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable

from ..backend import Backend, Stream
from ..errors import JournalError
from ..sampling.options import derive_seed
from .journal import Journal
from .journal_node import JournalNode
from .journal_request import JournalRequest, Path

_DRAIN = 600.0  # seconds that leaving a recording waits for what is still being made


class ReplaySession:
    """What all streams of a journalled backend share. `inner` computes what the journal has not (None: nothing).

    Nodes that this session adds are not served by it: asking twice gives two answers, as without a journal.
    """

    def __init__(self, journal: Journal, inner: Backend | None) -> None:
        self.journal = journal
        self.inner = inner
        self.served: list[JournalNode] = []
        self.computed: list[JournalNode] = []
        self._closed = False
        self._unwritten: JournalError | None = None
        self._changed = threading.Condition()
        self._unfinished = 0
        self._counts: Counter[tuple[str, Path]] = Counter()
        self._by_id = {node.id: node for node in journal.nodes if self._serves(node)}
        self._by_key: defaultdict[str, list[JournalNode]] = defaultdict(list)
        for node in self._by_id.values():
            self._by_key[node.key].append(node)
        self._shapes = Counter(node.shape for node in self._by_id.values())
        if inner is not None:
            journal.acquire()

    def _serves(self, node: JournalNode) -> bool:
        return node.error is None or self.inner is None

    @property
    def seed(self) -> int:
        return int(self.journal.header["seed"])

    # --- asking --------------------------------------------------------------------------------------------

    def number(self, shape: str, path: Path) -> int:
        """How many of this shape have been asked in this place before."""
        with self._changed:
            self._counts[shape, path] += 1
            return self._counts[shape, path] - 1

    def may_have(self, shape: str) -> bool:
        """Could a node of this shape be served? If not, its key need not be waited for."""
        return self._shapes[shape] > 0 or self.inner is None

    @property
    def nothing_to_serve(self) -> bool:
        """True when there is nothing (more) to serve."""
        return self.inner is not None and not self._by_id

    def take(self, key: str, request: JournalRequest) -> JournalNode | None:
        """The recorded node, once; an equal one from another place where the place does not matter."""
        with self._changed:
            node = self._by_id.pop((key, request.place, request.occurrence), None)
            if node is None and not request.content.placed:
                node = next((n for n in self._by_key[key] if n.id in self._by_id), None)
                self._by_id.pop(node.id if node else ("", "", 0), None)
            if node is not None:
                self._shapes[node.shape] -= 1
                self.served.append(node)
            return node

    def seed_for(self, request: JournalRequest) -> int | None:
        """The seed of a node whose program gives none: drawn from the run's seed and the node's place."""
        if self.inner is None or not self.inner.takes_seed or not request.content.placed:
            return None
        return derive_seed(self.seed, int(request.shape[:15], 16), *request.path, request.occurrence)

    # --- computing -----------------------------------------------------------------------------------------

    def open_inner(self, opener: Callable[[Backend], Stream]) -> Stream:
        if self.inner is None:
            raise JournalError("a replay computes nothing")  # never: what it misses raises ReplayMismatch
        return opener(self.inner)

    def begin(self) -> float:
        """A node is being computed. Returns the time (perf_counter). JournalError if the journal is closed."""
        with self._changed:
            if self._closed:
                raise JournalError(f"{self.journal.path} is closed; run inside its `with` block")
            self._unfinished += 1
        return time.perf_counter()

    def add(self, node: JournalNode) -> None:
        self.journal.add(node)
        self.computed.append(node)

    def end(self) -> None:
        with self._changed:
            self._unfinished -= 1
            self._changed.notify_all()

    def unwritten(self, error: JournalError) -> None:
        """A value is not in the file, and no caller waits that could get the error."""
        self._unwritten = self._unwritten or error

    def close(self, wait: bool = True) -> None:
        """Wait for the nodes that are being computed (not after Ctrl-C), then release the file.

        Raises JournalError, once, for a value of `once` that could not be written.
        """
        with self._changed:
            self._changed.wait_for(lambda: not (wait and self._unfinished), _DRAIN)
            closed, self._closed = self._closed, True
        if not closed and self.inner is not None:
            self.journal.release()
        error, self._unwritten = self._unwritten, None
        if error is not None:
            raise error

    def unserved(self) -> list[JournalNode]:
        """The nodes that were not asked for."""
        with self._changed:
            return list(self._by_id.values())
