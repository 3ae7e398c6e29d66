"""The states of a text whose written items matter, and how they follow each other byte by byte."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from sgl.grammars.algebra.byte_marks import BEGIN, NEW, OPENED, OPENED_UNIQUE, REPEATED
from sgl.grammars.automaton.automaton_work_budget import UNLIMITED, WorkBudget
from sgl.grammars.automaton.python_automaton_core import DEAD
from sgl.grammars.automaton.state_closure import PAUSED

if TYPE_CHECKING:
    from sgl.grammars.automaton.native_automaton_core import NativeCore
    from sgl.grammars.automaton.python_automaton_core import PythonCore

    Core = PythonCore | NativeCore

_QUOTE, _BACKSLASH = 0x22, 0x5C
_SCALAR = frozenset(b"+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
STEP_WORK = 300  # a step in Python takes so many of those that `meter.py` counts
_BLANK = frozenset(b" \t\n\r,:")
UNFINISHED = object()


class OpenContainer:
    """An array or object that is not closed yet; immutable.

    `outer` is the number of arrays and objects around the outermost one whose items must differ, None outside of any;
    only within it are values kept: the items of an array, or pairs of names and members. `names` are those of the
    members of an object whose names must differ, None for any other.
    """

    __slots__ = ("depth", "items", "key", "known", "names", "outer", "square", "under", "unique")

    def __init__(
        self,
        under: OpenContainer | None,
        square: bool,
        unique: bool = False,
        items: tuple[Any, ...] = (),
        key: str | None = None,
        names: frozenset[str] | None = None,
    ) -> None:
        self.under, self.square, self.unique, self.items, self.key, self.names = (
            under,
            square,
            unique,
            items,
            key,
            names,
        )
        self.depth: int = 0 if under is None else under.depth + 1
        around = None if under is None else under.outer
        self.outer: int | None = self.depth if around is None and unique else around
        self.known = frozenset(items) if unique else frozenset()

    def named(self, key: str | None) -> OpenContainer:
        """The object whose next member has a name; no name is kept where no value is."""
        names = None if self.names is None or key is None else self.names | {key}
        return OpenContainer(self.under, False, False, self.items, "" if self.outer is None else key, names)

    def added(self, value: Any) -> OpenContainer:
        """With one more item or member."""
        if self.outer is None:
            return self if self.square else OpenContainer(self.under, False, names=self.names)
        more = value if self.square else (self.key, value)
        return OpenContainer(self.under, self.square, self.unique, (*self.items, more), names=self.names)

    def closed(self) -> Any:
        """The value, once it ends; of a name that comes twice the last member counts."""
        return ("[", self.items) if self.square else ("{", frozenset(dict(self.items).items()))

    def identity(self) -> tuple[Any, ...]:
        """Equal for what goes on alike; that of `under` is interned before."""
        return (id(self.under), self.square, self.unique, self.items, self.key, self.names)

    def strings(self) -> set[str]:
        """All texts and names in the values that are kept here and around."""
        found: set[str] = set()
        here: OpenContainer | None = self
        while here is not None and here.outer is not None:
            for item in here.items:
                _collect(item, found)
            here = here.under
        return found


def _collect(value: Any, found: set[str]) -> None:
    if isinstance(value, str):
        found.add(value)
    elif isinstance(value, tuple | frozenset):
        for part in value:
            _collect(part, found)


def scalar(text: bytes) -> Any:
    """A value by which equal numbers and constants are known: 1 is 1.0, but
    not true. UNFINISHED: only a part of one.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = _long_number(text)
    return ("?", value) if isinstance(value, bool) else value


def _long_number(text: bytes) -> Any:
    """More digits than Python reads."""
    try:
        return Decimal(text.decode())
    except ArithmeticError:
        return UNFINISHED


def string(text: bytes) -> str:
    return str(json.loads(text.decode("utf-8", "surrogatepass")))


def ends_string(text: bytes) -> bool:
    """Whether a quote after this beginning of a string ends it: no backslash is before it, or an even number."""
    return (len(text) - len(text.rstrip(b"\\"))) % 2 == 0


class DistinctItemsState(NamedTuple):
    """A state: `base` is the network's, `part` the value that is being written, as far as it matters."""

    base: int
    part: bytes
    open: OpenContainer | None


class DistinctItemsHalt(Exception):
    """The network's core stopped, or had to: a rule must be built, a limit was reached, or there is no time left."""

    def __init__(self, code: int) -> None:
        self.code = code


class DistinctItemsStates:
    """How states follow each other, byte by byte; None where nothing does."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._step = core.step
        self._opens: dict[tuple[object, ...], OpenContainer] = {}
        self._meter: WorkBudget | None = None
        self._spare = UNLIMITED  # of the work that the meter says may still be done now

    def interned(self, made: OpenContainer) -> OpenContainer:
        return self._opens.setdefault(made.identity(), made)

    def allow(self, meter: WorkBudget) -> None:
        self._meter, self._spare = meter, max(meter.left, 0)

    def charge(self) -> None:
        """Charge the work done to the meter, and work without it."""
        assert self._meter is not None
        self._meter.spend(max(self._meter.left, 0) - self._spare)
        self._meter, self._spare = None, UNLIMITED

    def _rest(self) -> None:
        meter = self._meter
        assert meter is not None
        meter.spend(max(meter.left, 0) - self._spare)
        self._spare = meter.more()
        if not self._spare:
            raise DistinctItemsHalt(PAUSED)

    def base(self, state: int, byte: int) -> int:
        """A step of the network's core; DEAD, or a state."""
        found = self._step(state, byte)
        if found < DEAD:
            raise DistinctItemsHalt(found)
        return found

    def step(self, text: DistinctItemsState, byte: int) -> DistinctItemsState | None:
        self._spare -= STEP_WORK
        if self._spare < 0:
            self._rest()
        if byte >= BEGIN:
            return None
        if text.part[:1] == b'"':
            return self._in_string(text, byte)
        if text.part:
            if byte in _SCALAR:
                after = self.base(text.base, byte)
                return None if after == DEAD else DistinctItemsState(after, self._grown(text, byte), text.open)
            ended = self._scalar_ended(text)
            return None if ended is None else self._between(ended, byte)
        return self._between(text, byte)

    def _scalar_ended(self, text: DistinctItemsState) -> DistinctItemsState | None:
        value = scalar(text.part) if kept(text) else None
        return None if value is UNFINISHED else self._ended(text.base, value, text.open)

    def _grown(self, text: DistinctItemsState, byte: int) -> bytes:
        return text.part + bytes((byte,)) if kept(text) else text.part

    def _in_string(self, text: DistinctItemsState, byte: int) -> DistinctItemsState | None:
        after = self.base(text.base, byte)
        if after == DEAD:
            return None
        if byte == _QUOTE and ends_string(text.part[1:]):
            return self._string_ended(after, text)
        if spelled(text):
            return DistinctItemsState(after, text.part + bytes((byte,)), text.open)
        escaping = byte == _BACKSLASH and len(text.part) == 1
        return DistinctItemsState(after, b'"\\' if escaping else b'"', text.open)

    def _string_ended(self, base: int, text: DistinctItemsState) -> DistinctItemsState | None:
        value = string(text.part + b'"') if spelled(text) else ""
        if names_member(text):
            return self._named(base, value, text.open)
        return self._ended(base, value, text.open)

    def _named(self, base: int, name: str, around: OpenContainer | None) -> DistinctItemsState | None:
        """The name of a member has ended."""
        assert around is not None
        known = around.names is not None and name in around.names
        if self.core.live(base) >> NEW & 1 or known:
            base = self.base(base, REPEATED if known else NEW)
        return None if base == DEAD else DistinctItemsState(base, b"", self.interned(around.named(name)))

    def _between(self, text: DistinctItemsState, byte: int) -> DistinctItemsState | None:
        after = self.base(text.base, byte)
        if after == DEAD:
            return None
        if byte in _BLANK:
            return DistinctItemsState(after, b"", text.open)
        if byte == 0x5B:
            return self._opened(after, text.open)
        if byte == 0x7B:
            return self._opened_object(after, text.open)
        if byte in (0x5D, 0x7D):
            assert text.open is not None
            value = text.open.closed() if kept(text) else None
            return self._ended(after, value, text.open.under)
        return DistinctItemsState(after, bytes((byte,)), text.open)

    def _opened(self, base: int, under: OpenContainer | None) -> DistinctItemsState | None:
        live = self.core.live(base)
        if not live >> OPENED & 1:
            return DistinctItemsState(base, b"", self.interned(OpenContainer(under, True, False)))
        unique = bool(live >> OPENED_UNIQUE & 1)
        return DistinctItemsState(self.base(base, OPENED), b"", self.interned(OpenContainer(under, True, unique)))

    def _opened_object(self, base: int, under: OpenContainer | None) -> DistinctItemsState | None:
        live = self.core.live(base)
        base = self.base(base, OPENED) if live >> OPENED & 1 else base
        names = frozenset[str]() if live >> OPENED_UNIQUE & 1 else None
        return DistinctItemsState(base, b"", self.interned(OpenContainer(under, False, names=names)))

    def _ended(self, base: int, value: object, around: OpenContainer | None) -> DistinctItemsState | None:
        """A value has ended within what is around it."""
        if around is None:
            return DistinctItemsState(base, b"", None)
        if around.square:
            base = self.base(base, REPEATED if value in around.known else NEW)
            if base == DEAD:
                return None
        return DistinctItemsState(base, b"", self.interned(around.added(value)))


def kept(text: DistinctItemsState) -> bool:
    """Whether the values that are being written matter."""
    return text.open is not None and text.open.outer is not None


def names_member(text: DistinctItemsState) -> bool:
    """Whether a string here is the name of a member."""
    return text.open is not None and not text.open.square and text.open.key is None


def spelled(text: DistinctItemsState) -> bool:
    """Whether it matters which string is being written."""
    return kept(text) or (text.open is not None and text.open.names is not None and text.open.key is None)
