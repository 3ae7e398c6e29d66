"""A model's text, read as it comes: what it thinks, what it says, and which tools it calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial

from .model_output_events import ArgumentsDelta, ContentDelta, Event, ReasoningDelta, ToolCallEnd, ToolCallStart
from .parsing.incremental_text import IncrementalText, Reading
from .parsing.incremental_text import TextMarks as Wanted
from .parsing.json_value_parser import value
from .reasoning_marks import ReasoningMarks


@dataclass(frozen=True)
class ToolCallSyntax:
    """The form of calls in a text. The reader decides what may follow the mark.

    Attributes:
        mark: what calls begin with.
        bare: the mark is a part of the call itself.
        start: at the beginning of a text calls need no mark.
        known: only calls of tools that are there count, all else is text.
        close: what may follow a call.
        between: characters of which one may be between calls.
        silent: the mark is never text, even where no call follows.
        also: another mark of the same meaning that is not bare.
        more: further ones.
    """

    mark: str
    bare: bool = False
    start: bool = False
    known: bool = False
    close: str = ""
    between: str = ""
    silent: bool = False
    also: str = ""
    more: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.mark, self.also, *self.more) if self.also else (self.mark, *self.more)


class TextEmitter:
    """Text on its way out. White space next to calls and thoughts is theirs; text after a call begins a line."""

    def __init__(self, tell: Callable[[str], None], inside: bool = False) -> None:
        self._tell = tell
        self._blank = ""
        self._any = False  # something was emitted
        self.fresh = inside  # a mark was the last thing there was

    def emit_text(self, text: str) -> None:
        body = text.rstrip()
        if not body:
            self._blank += text
            return
        begin = self._blank + body
        if self.fresh:
            begin = "\n" * self._any + begin.lstrip()
        self._blank, self.fresh, self._any = text[len(body) :], False, True
        self._tell(begin)

    def pause(self) -> str:
        """A mark is here; returns the white space before it."""
        blank, self._blank, self.fresh = self._blank, "", True
        return blank

    def resume(self) -> None:
        """What follows belongs to the text so far."""
        self.fresh = False

    def end(self) -> None:
        """The text ends here."""
        if self._blank and not self.fresh:
            self._tell(self._blank)


class ModelOutputParser:
    """Reads one text. Of any text nothing raises and nothing is lost: what is no call is Said.

    It holds back no more than what may still be a mark or a call, and white space at the end. However a text is
    split into pieces, the events are the same once neighbours of a kind are joined.

    Args:
        form: how calls look.
        names: the tools that are there; empty: any.
        marks: those of the model's thoughts; None: there are none, or they are text.
    """

    def __init__(self, form: ToolCallSyntax, names: Collection[str] = (), marks: ReasoningMarks | None = None) -> None:
        self.form, self.names = form, frozenset(names)
        self.tape = IncrementalText()
        self._marks = marks
        self._wanted = _wanted(form, marks)
        self._events: list[Event] = []
        self.thinking = marks is not None and marks.open  # inside a thought
        self._count = 0
        self._speech = TextEmitter(lambda text: self._events.append(ContentDelta(text)))
        self._run = self._read()

    def feed(self, piece: str, last: bool = False) -> list[Event]:
        """The events of the next piece of the text; `last`: nothing comes after it."""
        self.tape.add(piece, last)
        next(self._run, None)
        found, self._events = self._events, []
        return joined(found)

    def _call(self, strict: bool) -> Reading[bool]:
        """Pass one or more calls from here on, with `_commit`; `strict`: only of known tools. False: the calls end
        here.

        What was passed and not committed is text.
        """
        raise NotImplementedError

    # --- the text ----------------------------------------------------------------------------------------

    def _read(self) -> Reading[None]:
        if self._marks is not None and self._marks.open:
            yield from self._opened(self._marks)
        elif self._marks is not None and self._marks.begin:
            yield from self._unopened(self._marks)
        yield from self._start()
        while mark := (yield from self._until(self._wanted, self._speech)):
            yield from self._after(mark)
        self._speech.end()

    def _start(self) -> Reading[None]:
        if not self.form.start:
            return
        yield from self.tape.visible()
        start = self.tape.place
        for mark in self._wanted.texts:
            if (yield from self.tape.skip(mark)):
                self.tape.back(start)
                return
        yield from self._calls(strict=True)

    def _after(self, mark: str) -> Reading[None]:
        """What follows a mark."""
        if self._marks is not None and mark == self._marks.begin:
            yield from self._thought(self._marks)
            yield from self._start()
        elif self._marks is not None and mark in self._marks.silent:
            self.tape.take()
            self._speech.pause()
        else:
            if self.form.bare and mark == self.form.mark:
                self.tape.at -= len(mark)
            if self.form.silent:
                self.tape.take()
                self._speech.pause()
            yield from self._calls(strict=self.form.known)

    def _until(self, wanted: Wanted, speech: TextEmitter) -> Reading[str]:
        """Say what comes before the next of some marks; the mark."""
        self.tape.flow = speech.emit_text
        speech.emit_text(self.tape.take())
        mark = yield from self.tape.until(wanted)
        self.tape.flow = None
        return mark

    # --- thoughts ----------------------------------------------------------------------------------------

    def _opened(self, marks: ReasoningMarks) -> Reading[None]:
        """A thought that the template began; the model may have begun it again."""
        yield from self.tape.visible()
        yield from self.tape.skip(marks.begin)
        yield from self._thought(marks)

    def _unopened(self, marks: ReasoningMarks) -> Reading[None]:
        """A thought that ends before it began: so some models say that there is none."""
        start = self.tape.place
        yield from self.tape.visible()
        if (yield from self.tape.skip(marks.end)):
            self.tape.take()
            self._speech.pause()
        else:
            self.tape.back(start)

    def _thought(self, marks: ReasoningMarks) -> Reading[None]:
        """One thought up to its end; there is only one in a text, but for those with marks for every part of it."""
        self.thinking = True
        self.tape.take()
        self._speech.pause()
        thoughts = TextEmitter(lambda text: self._events.append(ReasoningDelta(text)), inside=True)
        yield from self._until(Wanted([marks.end]), thoughts)
        self.tape.take()
        self.thinking = False
        self._wanted = _wanted(self.form, marks if marks.silent else marks._replace(begin=""))

    # --- calls -------------------------------------------------------------------------------------------

    def _calls(self, strict: bool) -> Reading[None]:
        """Calls from here on, then what may follow them; what was read in vain is text."""
        while (yield from self._call(strict)) and self.form.between:
            yield from self._between()
        if self.form.close and self._speech.fresh and not self.tape.since(0).strip():
            yield from self.tape.visible()
            if (yield from self.tape.skip(self.form.close)):
                self.tape.take()

    def _between(self) -> Reading[None]:
        char = yield from self.tape.visible()
        if char and char in self.form.between:
            self.tape.at += 1
            yield from self.tape.visible()
        if self.form.also:
            yield from self.tape.skip(self.form.also)

    def _begin(self, name: str, id: str = "") -> tuple[int, str]:
        """Tell of a call; its number, and what was written of it so far."""
        blank = self._speech.pause()
        self._events.append(ToolCallStart(self._count, id, name))
        self._count += 1
        return self._count - 1, blank + self.tape.take()

    def _commit(self, name: str, id: str = "") -> Reading[tuple[int, str] | None]:
        """Tell of a call whose arguments are JSON from here on, and of them while they come; None if they break."""
        index, head = self._begin(name, id)
        written = [head]
        self.tape.flow = partial(self._argue, index, written)
        whole = yield from value(self.tape)
        self.tape.flow = None
        self._argue(index, written, self.tape.take())
        if whole:
            return index, id
        self._break(index, "".join(written), id)
        return None

    def _argue(self, index: int, written: list[str], text: str) -> None:
        written.append(text)
        if text:
            self._events.append(ArgumentsDelta(index, text))

    def _end(self, index: int, id: str = "") -> None:
        self.tape.take()
        self._events.append(ToolCallEnd(index, True, id))

    def _break(self, index: int, written: str, id: str = "") -> None:
        self._events.append(ToolCallEnd(index, False, id, written))
        self._speech.resume()


def joined(events: Iterable[Event]) -> list[Event]:
    """Neighbours that are pieces of one text as one."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, ContentDelta | ReasoningDelta | ArgumentsDelta) and type(last) is type(event):
            found[-1] = replace(event, text=last.text + event.text)
        else:
            found.append(event)
    return found


def _wanted(form: ToolCallSyntax, marks: ReasoningMarks | None) -> Wanted:
    thoughts = () if marks is None else (marks.begin, *marks.silent)
    return Wanted(mark for mark in (*form.marks, *thoughts) if mark)
