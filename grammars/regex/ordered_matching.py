"""The texts that Python's `re.match` takes from their first character to their last.

That is what a lexer does with the regex of a terminal: lazy repeats stop as early as they may, the first alternative
that matches is taken, and look-around sees the text of the terminal and nothing around it. The states of the automaton
are Pike's lists of threads, most preferred first. A look-ahead stays with its thread until it is decided;
what a look-behind looks for is tracked from the start of the text.
"""

from __future__ import annotations

from sgl.grammars.algebra.character_partition import CharacterPartition
from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.algebra.expr import CharClass, Expr
from sgl.grammars.algebra.language_operations import trimmed
from sgl.grammars.errors import GrammarLimitError
from sgl.grammars.regex.pike_programs import LookaroundCondition, PikeProgram, program_of

MOST_STATES = 4000
MOST_VISITS = 400_000  # of instructions, a second or so
Places = frozenset[int]
Pending = frozenset[tuple[int, Places]]  # conditions by their index, and how far each has come
Thread = tuple[int, Pending, Pending]  # the instruction, what must still come, what must not
State = tuple[tuple[Thread, ...], tuple[Places, ...]]
_DONE = -1  # a thread that matched an earlier end, if what it waits for holds
_NOTHING: Pending = frozenset()
_NOWHERE: Places = frozenset()


def matched_texts(expr: Expr) -> Expr:
    """A deterministic graph of characters; NEVER where there is no text.

    Raises:
        GrammarLimitError: it needs too many states.
        UnsupportedGrammarError: look-around in look-around.
    """
    return _Machine(program_of(expr)).graph()


class _Machine:
    def __init__(self, program: PikeProgram) -> None:
        self._program = program
        self._visits = 0
        self._entries = frozenset(program.rounds.values())
        conditions = [look for look in program.looks if look is not None]
        self._ahead = [c for c in conditions if c.ahead]
        self._lookbehinds = [c for c in conditions if not c.ahead]
        programs = [program, *(c.program for c in conditions)]
        sets = list(dict.fromkeys(chars for p in programs for chars in p.sets if chars is not None))
        self._alphabet = CharacterPartition(sets)
        self._masks: dict[CharSet, int] = dict(zip(sets, self._alphabet.masks, strict=True))

    def graph(self) -> Expr:
        start = self._start()
        states = {start: 0}
        order = [start]
        edges: list[list[tuple[CharClass, int]]] = []
        for state in order:
            edges.append([])
            for target, mask in self._moves(state).items():
                if target not in states:
                    states[target] = len(order)
                    order.append(target)
                edges[-1].append((CharClass(self._alphabet.chars(mask)), states[target]))
            if len(order) > MOST_STATES:
                raise _too_large(f"{MOST_STATES} states")
        return trimmed(edges, [self._accepts(threads) for threads, _ in order])

    def _start(self) -> State:
        looked_back = tuple(_closure(c.program, [c.program.start]) for c in self._lookbehinds)
        return self._threads([(self._program.start, _NOTHING, _NOTHING)], looked_back), looked_back

    def _accepts(self, threads: tuple[Thread, ...]) -> bool:
        """Whether the most preferred match ends here; what must still come does not."""
        for place, needed, _ in threads:
            if place in (self._program.end, _DONE) and not needed:
                return place != _DONE
        return False

    def _moves(self, state: State) -> dict[State, int]:
        """Where the classes of characters lead, those with the same target together."""
        grouped: dict[State, int] = {}
        for i in range(self._alphabet.everything.bit_length()):
            target = self._step(state, 1 << i)
            if target is not None:
                grouped[target] = grouped.get(target, 0) | 1 << i
        return grouped

    def _step(self, state: State, bit: int) -> State | None:
        threads, looked_back = state
        moved = tuple(
            _closure(c.program, [*self._after(c.program, places, bit), c.program.start])
            for c, places in zip(self._lookbehinds, looked_back, strict=True)
        )
        after = self._threads([t for thread in threads for t in self._stepped(thread, bit)], moved)
        return (after, moved) if any(place != _DONE for place, _, _ in after) else None

    def _stepped(self, thread: Thread, bit: int) -> list[Thread]:
        """The thread after a character, or nothing."""
        place, needed, banned = thread
        chars = self._program.sets[place] if place != _DONE else None
        if place in (_DONE, self._program.end):
            after = _DONE
        elif chars is not None and self._masks[chars] & bit:
            after = self._program.ways[place][0]
        else:
            return []
        needed_next = self._pending(needed, bit)
        banned_next = self._pending(banned, bit)
        if None in needed_next or self._any_met(banned_next):
            return []
        return [(after, self._open(needed_next), self._open(banned_next))]

    def _pending(self, conditions: Pending, bit: int) -> list[tuple[int, Places] | None]:
        """What is awaited after a character; None for what can no longer come."""
        found: list[tuple[int, Places] | None] = []
        for index, places in sorted(conditions, key=lambda item: item[0]):
            program = self._ahead[index].program
            after = _closure(program, self._after(program, places, bit))
            found.append((index, after) if after else None)
        return found

    def _met(self, item: tuple[int, Places]) -> bool:
        return self._ahead[item[0]].program.end in item[1]

    def _any_met(self, conditions: list[tuple[int, Places] | None]) -> bool:
        return any(item is not None and self._met(item) for item in conditions)

    def _open(self, conditions: list[tuple[int, Places] | None]) -> Pending:
        return frozenset(item for item in conditions if item is not None and not self._met(item))

    def _after(self, program: PikeProgram, places: Places, bit: int) -> list[int]:
        found = []
        for place in places:
            chars = program.sets[place]
            if chars is not None and self._masks[chars] & bit:
                found.append(program.ways[place][0])
        return found

    def _threads(self, threads: list[Thread], looked_back: tuple[Places, ...]) -> tuple[Thread, ...]:
        """All ways on that take no text, most preferred first, up to one that is sure to match."""
        program = self._program
        found: list[Thread] = []
        seen: set[tuple[Thread, Places]] = set()
        work = [(thread, _NOWHERE) for thread in reversed(threads)]
        while work:
            thread, entered = work.pop()
            place, needed, banned = thread
            if (thread, entered) in seen:
                continue
            seen.add((thread, entered))
            if place in (_DONE, program.end):
                if place == program.end or needed or banned:
                    found.append(thread)
                if not needed and not banned:
                    break
            elif program.sets[place] is not None:
                found.append(thread)
            elif (look := program.looks[place]) is not None:
                work += [(on, entered) for on in self._looked(look, program.ways[place][0], thread, looked_back)]
            else:
                ways, entered = self._ways(place, entered)
                work += [((way, needed, banned), entered) for way in reversed(ways)]
        self._visits += len(seen)
        if self._visits > MOST_VISITS:
            raise _too_large(f"{MOST_VISITS} visits of its parts")
        return tuple(dict.fromkeys(found))

    def _ways(self, place: int, entered: Places) -> tuple[tuple[int, ...], Places]:
        """Where an instruction leads, once the repeats of which a round has begun here are `entered`."""
        again, ways = self._program.rounds.get(place), self._program.ways[place]
        if again is None:
            return ways, entered | {place} if place in self._entries else entered
        return (ways[1:], entered) if again in entered else (ways[:1], entered)

    def _looked(
        self, look: LookaroundCondition, on: int, thread: Thread, looked_back: tuple[Places, ...]
    ) -> list[Thread]:
        """The thread past a condition, if it may hold."""
        _, needed, banned = thread
        if not look.ahead:
            holds = look.program.end in looked_back[self._index(self._lookbehinds, look)]
            return [(on, needed, banned)] if holds != look.negative else []
        item = self._index(self._ahead, look), _closure(look.program, [look.program.start])
        if self._met(item):
            return [] if look.negative else [(on, needed, banned)]
        return [(on, needed, banned | {item}) if look.negative else (on, needed | {item}, banned)]

    def _index(self, conditions: list[LookaroundCondition], look: LookaroundCondition) -> int:
        return next(i for i, found in enumerate(conditions) if found is look)


def _too_large(what: str) -> GrammarLimitError:
    return GrammarLimitError(f"a terminal with look-around or lazy repeats needs more than {what}")


def _closure(program: PikeProgram, places: list[int]) -> Places:
    """The sets of characters, and the end, that places lead to without a character."""
    found: set[int] = set()
    seen: set[int] = set()
    work = list(places)
    while work:
        place = work.pop()
        if place in seen:
            continue
        seen.add(place)
        if place == program.end or program.sets[place] is not None:
            found.add(place)
        else:
            work += program.ways[place]
    return frozenset(found)
