"""A journal: the nodes of recorded runs, which you can read, search and edit."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from ..errors import BadValueError, JournalError
from .journal_file import JournalFile, JournalLine, read_lines
from .journal_node import LOST, JournalNode

FORMAT, BEFORE = 2, 1  # every line has a checksum; none had


class Journal:
    """The nodes of a journal file, in the order in which they finished. `header` is the file's first line.

    `damaged`: the numbers of the damaged lines that `open` skipped.
    While a file is being written, its process has one Journal of it, which every `open` returns.
    """

    _written: ClassVar[weakref.WeakValueDictionary[Path, Journal]] = weakref.WeakValueDictionary()

    def __init__(self, path: Path, header: dict[str, Any], nodes: list[JournalNode], size: int) -> None:
        self.path = path
        self.header = header
        self.turns: dict[tuple[tuple[str, ...], str], tuple[str, str]] = {}
        self.damaged: list[int] = []
        self._all = nodes
        self._size = size
        self._file: JournalFile | None = None
        self._writers = 0
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: str | Path, *, skip_damaged: bool = False) -> Journal:
        """Read a journal.

        `skip_damaged`: skip damaged lines, with a warning that names them. A resumed run computes their nodes again;
        their edits are lost. A journal with a damaged first line cannot be used.

        Raises JournalError if the file is not a journal or has a damaged line, which the message names;
        MissingJournalError (a FileNotFoundError) if there is no file.
        """
        path = Path(path)
        live = cls._written.get(path.resolve())
        if live is not None and live._file is not None and live._file.is_at(path):
            return live
        lines, size = read_lines(path)
        if not lines:
            return cls(path, {}, [], 0)
        journal = cls(path, _header(path, lines[0]), [], size)
        for line in lines[1:]:
            journal._read(line, skip_damaged)
        if journal.damaged:
            shown = ", ".join(map(str, journal.damaged[:8])) + (" ..." if len(journal.damaged) > 8 else "")
            warnings.warn(f"{path}: {len(journal.damaged)} damaged lines are skipped: {shown}", stacklevel=2)
        return journal

    @classmethod
    def create(cls, path: str | Path, header: dict[str, Any]) -> Journal:
        """Begin a new file. Raises JournalError if a journal is there already."""
        path = Path(path)
        if path.exists() and Journal.open(path).header:
            raise JournalError(f"{path} is there already; continue it with sgl.resume({str(path)!r}), or delete it")
        journal = cls(path, {}, [], 0)
        with journal.writing():
            journal.begin(header)
        return journal

    # --- reading -------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[JournalNode]:
        """Every node, without failures that a later run replaced."""
        kept = [node for node in self._all if node.kind != LOST]
        latest = {node.id: node for node in kept}
        return [node for node in kept if latest[node.id] is node]

    def find(
        self,
        name: str | None = None,
        *,
        program: str | None = None,
        path: str | None = None,
        line: int | None = None,
        index: int | None = None,
    ) -> JournalNode:
        """Return the newest version of the one node with this name (and program, path, line).

        `index`: which one if there are several, as in a loop; they count in the order of the program. Raises
        JournalError if there is no such node, or several and no index.
        """
        wanted = {"name": name, "program": program, "path": path, "line": line}
        wanted = {field: value for field, value in wanted.items() if value is not None}
        found = [node for node in self.nodes if all(getattr(node, f) == v for f, v in wanted.items())]
        versions = {self._place(node): node for node in found}
        places = [versions[place] for place in sorted(versions)]
        if index is not None and index < len(places):
            return places[index]
        if not found or index is not None:
            names = ", ".join(sorted({str(node.name) for node in self.nodes}))
            raise JournalError(f"{self.path} has {len(places)} nodes with {wanted}; its nodes are named {names}")
        if len(places) > 1:
            shown = "\n  ".join(str(node) for node in places[:10])
            raise JournalError(
                f"{len(places)} nodes have {wanted}; select one with program=, path=, line= or index=:\n  {shown}"
            )
        return places[0]

    def _place(self, node: JournalNode) -> tuple[Any, ...]:
        """Where a node is in its program, whatever its content. Sorts as the program runs."""
        depth, number = 0, node.previous
        while number is not None:
            depth, number = depth + 1, self._all[number].previous
        path = tuple(map(int, node.path.split(".")))
        return (path[0], depth, path, node.line or 0, node.kind, str(node.name), node.occurrence)

    def prompt(self, node: JournalNode) -> str:
        """Return all text before the node, except that of skipped lines."""
        return self.text_after(node.previous) + node.before

    def text_after(self, number: int | None) -> str:
        """Return the text of a stream up to and including node `number` ("" for None)."""
        parts: list[str] = []
        while number is not None:
            node = self._all[number]
            parts += (node.added, node.before)
            number = node.previous
        return "".join(reversed(parts))

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[JournalNode]:
        return iter(self.nodes)

    def __repr__(self) -> str:
        return f"<Journal {self.path}: {len(self)} nodes>"

    # --- writing -------------------------------------------------------------------------------------------

    def edit(self, node: JournalNode, text: Any) -> None:
        """Replace the node's text (the value of a `once` node).

        The next resumed run computes everything that depends on it again. Raises JournalError for a node of
        another journal, BadValueError for a text that is not one of a select's choices.
        """
        if not (0 <= node.number < len(self._all) and self._all[node.number] is node):
            raise JournalError(f"{node} is not a node of {self!r}; take one from its `nodes` or `find`")
        if node.kind != "once" and not isinstance(text, str):
            raise BadValueError(f"the text of {node} cannot be {text!r}; give a string")
        if node.kind == "select" and text not in node.request["choices"]:
            raise BadValueError(f"{text!r} is not one of the choices {node.request['choices']} of {node}")
        with self.writing():
            self.write({"edit": node.number, "text": text})
            node.edit(text)

    def begin(self, header: dict[str, Any]) -> None:
        self.header = {"journal": FORMAT, "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **header}
        self.write(self.header)

    def add(self, node: JournalNode) -> None:
        """A node has been finished; it gets its number."""
        with self._lock:
            node.number = len(self._all)
            self.write(node.as_json())
            self._all.append(node)

    def add_turn(self, history: tuple[str, ...], role: str, prefix: str, suffix: str) -> None:
        """How the chat template of the run writes a turn."""
        with self._lock:
            if (history, role) not in self.turns:
                self.write({"turn": [*history, role], "prefix": prefix, "suffix": suffix})
                self.turns[history, role] = (prefix, suffix)

    def write(self, entry: dict[str, Any]) -> None:
        if self._file is None:
            raise JournalError(f"{self.path} is closed; run inside its `with` block")
        self._file.append(entry)

    def acquire(self) -> None:
        """One more writer. Raises JournalError if another process writes the file."""
        with self._lock:
            if self._file is None:
                self._file = JournalFile(self.path, self._size)
                self._written[self.path.resolve()] = self
            self._writers += 1

    def release(self) -> None:
        """One writer less; without any, others may write. This object stays readable."""
        with self._lock:
            self._writers -= 1
            if self._file is not None and not self._writers:
                self._size = self._file.size
                self._file.close()
                self._file = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def _read(self, line: JournalLine, skip_damaged: bool) -> None:
        """Take in a line. Raises JournalError for a damaged one, unless it is to be skipped."""
        try:
            if line.why:
                raise ValueError(line.why)
            self._take_in(line.entry, skip_damaged)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            if not skip_damaged:
                raise _damage(self.path, line.number, error) from error
            self.damaged.append(line.number)

    def _take_in(self, entry: dict[str, Any], skip_damaged: bool) -> None:
        if "edit" in entry:
            self._recorded(entry["edit"]).edit(entry["text"])
        elif "turn" in entry:
            *history, role = entry["turn"]
            if not all(isinstance(part, str) for part in (*history, role, entry["prefix"], entry["suffix"])):
                raise ValueError(f"its turn is {entry!r:.60}")
            self.turns[tuple(history), role] = (entry["prefix"], entry["suffix"])
        else:
            self._append(JournalNode.from_json(entry), skip_damaged)

    def _recorded(self, number: Any) -> JournalNode:
        if type(number) is not int or not 0 <= number < len(self._all) or self._all[number].kind == LOST:
            raise ValueError(f"it edits node {number!r:.40}, which is not there")
        return self._all[number]

    def _append(self, node: JournalNode, skip_damaged: bool) -> None:
        """After the last node; where lines are skipped, those between are lost."""
        due = len(self._all)
        if type(node.number) is not int or not (
            node.number == due or (skip_damaged and due < node.number < self._size // _SHORTEST)
        ):
            raise ValueError(
                f"it holds node {node.number!r:.40} where node {due} is due: lines are missing or there twice"
            )
        if node.previous is not None and (type(node.previous) is not int or not 0 <= node.previous < node.number):
            raise ValueError(f"its node comes after node {node.previous!r:.40}")
        self._all += [*(JournalNode.lost(number) for number in range(due, node.number)), node]


_SHORTEST = 100  # bytes that a node's line has at least
_IN_HEADER = {"model": str, "seed": int, "chat_template": dict}


def _header(path: Path, line: JournalLine) -> dict[str, Any]:
    header = line.entry
    if line.why:
        raise JournalError(
            f"{path}:1 is damaged ({line.why}); a journal cannot be used without its first line. Is this a journal?"
        )
    if header.get("journal") not in (FORMAT, BEFORE):
        raise JournalError(f"{path} does not begin like a journal of format {FORMAT}: {header!r:.80}")
    if header["journal"] == FORMAT and not line.has_sum:
        raise JournalError(
            f"{path}:1 is damaged (it does not end in a checksum); a journal cannot be used without its first line"
        )
    if wrong := [name for name, kind in _IN_HEADER.items() if not isinstance(header.get(name), kind)]:
        raise JournalError(f"{path}:1 lacks {wrong[0]!r}, which the first line of a journal has; is this a journal?")
    return header


def _damage(path: Path, number: int, error: Exception) -> JournalError:
    why = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
    return JournalError(
        f"{path}:{number} is damaged ({why}); restore the file, or skip its damaged lines with skip_damaged=True "
        "(sgl.resume, sgl.replay, sgl.journal, Journal.open)"
    )
