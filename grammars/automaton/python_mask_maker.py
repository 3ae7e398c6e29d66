"""How the Python core makes masks: in plain Python what the files of `core/masks` do in C.

A state that takes every character of a family alike begins with a row of the family's tokens and walks only what the
other tokens do after such a beginning. That is done over the deepest frame that all threads of the state share, so
that it is done once for all places from which a rule is called; what the caller adds is walked from the nodes where
the text may return to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from sgl.grammars.algebra.byte_marks import NUMBER_BYTES, TOKEN
from sgl.grammars.automaton.state_closure import ClosureStopped
from sgl.grammars.network.transition_network import PICK
from sgl.grammars.tokens.character_families import MOST_CHARS, PLAIN, CharacterFamily
from sgl.grammars.tokens.token_trie import TokenTrie

if TYPE_CHECKING:
    from sgl.grammars.automaton.state_closure import InternTables, Thread
    from sgl.grammars.network.transition_network import TransitionNetwork
    from sgl.grammars.tokens.vocabulary import Vocabulary

DEAD, UNKNOWN = -1, -5
CHARACTER = 4
MOST_LOOPS = 8
MOST_RAISED = 64
MOST_TRIES = 4
DENSE = 20
MOST_DEEP = 16
PRINTABLE = range(0x20, 0x7F)


class MaskCore(Protocol):
    """What a PythonMaskMaker asks of its core: a PythonCore."""

    network: TransitionNetwork
    vocabulary: Vocabulary
    registers: InternTables
    states: list[tuple[tuple[Thread, ...], bool]]
    wanted: int

    def step(self, state: int, byte: int) -> int: ...
    def live(self, state: int) -> int: ...
    def takes_plain(self, state: int) -> bool: ...
    def accepting(self, state: int) -> bool: ...
    def frame(self, index: int) -> list[Thread]: ...
    def closure(self, seeds: list[Thread]) -> int: ...
    def intern(self, threads: Iterable[Thread], final: bool) -> int: ...


class LocalMask(NamedTuple):
    """What a state allows by itself, and the nodes of the family's exits where its text may return.

    `open` if it may return after text of the family alone.
    """

    row: np.ndarray
    returns: list[int]
    family: CharacterFamily
    open: bool


class PythonMaskMaker:
    """Fills mask rows for one core; remembers what states have in common wherever they are called from."""

    def __init__(self, core: MaskCore) -> None:
        self._core = core
        self._vocabulary = core.vocabulary
        self._locals: dict[int, LocalMask | None] = {}
        self._open: set[int] = set()
        self._onward: dict[tuple[int, int], int] = {}
        self._shifted: dict[int, int] = {}
        self._popped: dict[int, int] = {}

    def fill(self, state: int, out: np.ndarray) -> None:
        """Set the bits of the tokens that keep the text viable, in a zeroed uint32 row; may raise Stop."""
        if self._core.live(state).bit_count() < DENSE:
            self._fill_by_walk(state, out)
        elif self._fill_by_local(state, out):
            return
        elif self._core.takes_plain(state):
            self._fill_by_promise(state, out)
        else:
            other = self._mainstream(state)
            if other != DEAD and self._fill_by_local(other, out):
                self._correct(state, other, out)
            else:
                self._fill_by_walk(state, out)

    def name(self, state: int, out: np.ndarray) -> None:
        """Add the tokens of which the grammar itself speaks here; may raise Stop."""
        states = {0: self._step(state, TOKEN)} if self._core.live(state) >> TOKEN & 1 else {}
        for _ in range(NUMBER_BYTES):
            states = {
                number << 8 | byte: target
                for number, at in states.items()
                for byte in range(256)
                if (target := self._step(at, byte)) != DEAD
            }
        _set(out, list(states))

    def _step(self, state: int, byte: int) -> int:
        return self._checked(self._core.step(state, byte))

    def _checked(self, state: int) -> int:
        if state < DEAD:
            raise ClosureStopped(state, self._core.wanted)
        return state

    def _fill_by_promise(self, state: int, out: np.ndarray) -> None:
        """All plain text, and a walk of the tokens that are not."""
        rest = self._vocabulary.rest
        out[:] = self._vocabulary.families[PLAIN].rows[-1]
        self._walk(rest, {0: state}, (), 0, len(rest), out, None)

    def _fill_by_walk(self, state: int, out: np.ndarray) -> None:
        trie = self._vocabulary.trie
        self._walk(trie, {0: state}, (), 0, len(trie), out, None)

    def _walk(
        self,
        trie: TokenTrie,
        path: dict[int, int],
        roots: Sequence[int],
        begin: int,
        end: int,
        out: np.ndarray,
        returns: list[int] | None,
    ) -> None:
        """Set the bits of the tokens that some nodes lead to; `path` holds the state above them.

        The states of the uppermost nodes may be given in `roots`, by their bytes. Where the bottom may be left, the
        node goes to `returns`, and a token that ends there waits for the caller unless threads remain.
        """
        bytes_, depths, skips, first, ids = trie.lists
        states = self._core.states
        found: list[int] = []
        i = begin
        while i < end:
            depth, byte = depths[i], bytes_[i]
            target = roots[byte] if roots and depth == 1 else self._step(path[depth - 1], byte)
            if target == DEAD:
                i = skips[i]
                continue
            path[depth] = target
            threads, final = states[target]
            if returns is not None and final:
                returns.append(i)
            if threads or returns is None or not final:
                found += ids[first[i] : first[i + 1]]
            i += 1
        _set(out, found)

    def _correct(self, state: int, other: int, out: np.ndarray) -> None:
        """Make the row of `other` that of `state`: only where the two part is there anything to do."""
        bytes_, depths, skips, first, ids = self._vocabulary.trie.lists
        path, side = {0: state}, {0: other}
        allowed: list[int] = []
        barred: list[int] = []
        i = 0
        while i < len(bytes_):
            depth, byte = depths[i], bytes_[i]
            left = path[depth] = self._step(path[depth - 1], byte)
            right = side[depth - 1]
            right = side[depth] = right if right < 0 else self._step(right, byte)
            following = skips[i] if left in (right, DEAD) else i + 1
            if left != right:
                (barred if left == DEAD else allowed).extend(ids[first[i] : first[following]])
            i = following
        _set(out, allowed)
        _clear(out, barred)

    def _fill_by_local(self, state: int, out: np.ndarray) -> bool:
        """Fill the row if the state has a local mask, over the common frame or one further down."""
        bottom = self._common_frame(state)
        for _ in range(MOST_TRIES):
            base, bottom = self._relative(state, bottom)
            local = self._local(base, bottom)
            if local is not None:
                self._apply(local, bottom, out)
                return True
            if not bottom:
                break
            bottom = self._under(bottom)
        return False

    def _apply(self, local: LocalMask, bottom: int, out: np.ndarray) -> None:
        """The local row, and what the caller goes on with where the text returns; at the bottom it only ends."""
        trie = local.family.exits
        out[:] = local.row
        caller = self._caller(bottom) if bottom and local.returns else UNKNOWN
        for node in local.returns if caller != DEAD else ():
            _set(out, trie.ids[trie.first[node] : trie.first[node + 1]].tolist())
            if caller != UNKNOWN:
                path = {int(trie.depth[node]): caller}
                self._walk(trie, path, (), node + 1, int(trie.skip[node]), out, None)

    def _caller(self, frame: int) -> int:
        """The state after a frame is popped."""
        found = self._popped.get(frame)
        if found is None:
            found = self._popped[frame] = self._checked(self._core.closure(self._core.frame(frame)))
        return found

    def _mainstream(self, state: int) -> int:
        """The state that most printable bytes lead to, if it agrees on most of them; DEAD if there is none."""
        found, votes = DEAD, 0
        targets = [self._step(state, byte) for byte in PRINTABLE]
        for target in targets:
            if target == found != DEAD:
                votes += 1
            elif target != DEAD:
                if not votes:
                    found = target
                votes = votes - 1 if votes else 1
        if found == DEAD:
            return DEAD
        kept = [self._step(found, byte) for byte in PRINTABLE]
        live = sum(target != DEAD for target in kept)
        agreed = sum(a == b == found for a, b in zip(targets, kept, strict=True))
        return found if agreed >= 16 and agreed * 4 >= live * 3 else DEAD

    def _under(self, frame: int) -> int:
        """The one frame under all threads of a frame; the bottom where there are several."""
        under = {below for _, _, below in self._core.frame(frame)}
        return under.pop() if len(under) == 1 else 0

    def _chain(self, frame: int) -> list[int]:
        """A frame and those under it but the bottom, from the top, as long as each rests on one only."""
        found: list[int] = []
        while frame:
            found.append(frame)
            frame = self._under(frame)
        return found

    def _common_frame(self, state: int) -> int:
        """The deepest frame under all threads of a state, as long as each frame rests on one only."""
        threads, final = self._core.states[state]
        shared = [] if final else self._chain(threads[0][2])
        for _, _, frame in threads[1:]:
            under = set(self._chain(frame))
            shared = [f for f in shared if f in under]
        return shared[0] if shared else 0

    def _relative(self, state: int, bottom: int) -> tuple[int, int]:
        """The state with `bottom` as its bottom frame; as it is, over the true bottom, where that is too far down."""
        threads, _ = self._core.states[state]
        if not bottom or any((*self._chain(frame), 0).index(bottom) > MOST_RAISED for _, _, frame in threads):
            return state, 0
        raised = {(node, count, self._raised(frame, bottom)) for node, count, frame in threads}
        return self._intern(raised, False), bottom

    def _raised(self, frame: int, bottom: int) -> int:
        if frame == bottom:
            return 0
        under = self._raised(self._under(frame), bottom)
        return self._core.registers.frame_id((node, count, under) for node, count, _ in self._core.frame(frame))

    def _intern(self, threads: set[Thread], final: bool) -> int:
        return self._checked(self._core.intern(threads, final))

    def _local(self, state: int, bottom: int) -> LocalMask | None:
        """The local mask of a state that takes all of a family alike.

        None where there is no such family, where the next state is the better one to begin with, or where it may
        return to a caller before it leaves the family.
        """
        if state in self._locals:
            known = self._locals[state]
            return None if known is not None and known.open and bottom else known
        if state in self._open and bottom:
            return None
        found = self._made_local(state, bottom)
        if found is not None or state not in self._open:
            self._locals[state] = found
        return found

    def _made_local(self, state: int, bottom: int) -> LocalMask | None:
        families = self._vocabulary.families
        for number, family in enumerate(families[: PLAIN + 1] if self._core.takes_plain(state) else families):
            if not self._may_begin(state, family):
                continue
            after = self._follow(state, number)
            if after is None:
                continue
            if after[1] not in (state, DEAD) and self._absorbs_more(after[1], number):
                return None
            can_return = any(at >= 0 and self._core.accepting(at) for at in after[1:])
            if can_return and bottom:
                self._open.add(state)
                return None
            return self._filled(family, after, can_return)
        return None

    def _filled(self, family: CharacterFamily, after: list[int], can_return: bool) -> LocalMask:
        room = max(k for k in range(len(family.rows)) if not k or after[k] != DEAD)
        row = family.rows[room].copy()
        returns: list[int] = []
        self._walk(family.exits, {}, after, 0, len(family.exits), row, returns)
        return LocalMask(row, returns, family, can_return)

    def _absorbs_more(self, state: int, number: int) -> bool:
        """Whether a state takes a family larger than this one and stays as it is: a row to begin with."""
        larger = enumerate(self._vocabulary.families[:number])
        return any(self._may_begin(state, family) and self._after(state, i) == state for i, family in larger)

    def _may_begin(self, state: int, family: CharacterFamily) -> bool:
        """Whether a byte of each spelling's first range can come at all."""
        live = self._core.live(state)
        return all(live >> spelling[1] & 1 for spelling in family.spellings.tolist())

    def _follow(self, state: int, number: int) -> list[int] | None:
        """The states after 0, 1, 2 ... characters of a family; None where they depend on the characters."""
        after = [state]
        for k in range(1, MOST_CHARS + 1):
            settled = after[-1] == DEAD or (k > 1 and after[-1] == after[-2])
            following = after[-1] if settled else self._after(after[-1], number)
            if following == UNKNOWN:
                return None
            after.append(following)
        return after

    def _after(self, state: int, number: int) -> int:
        """The state after any character of a family; whether there is one is asked of the shifted state, once."""
        alike = self._shift(state)
        found = self._onward.get((alike, number))
        family = self._vocabulary.families[number]
        if found is None:
            found = self._onward[alike, number] = self._after_any(alike, family)
        return found if found < 0 or alike == state else self._step(state, int(family.spellings[0][1]))

    def _after_any(self, state: int, family: CharacterFamily) -> int:
        """The state after any character of a family: UNKNOWN where it depends on the character."""
        found = UNKNOWN
        for number, spelling in enumerate(family.spellings.tolist()):
            at = state
            for k in range(1, 2 * spelling[0], 2):
                if at >= 0:
                    at = self._after_range(at, spelling[k], spelling[k + 1])
            if at == UNKNOWN or (number and at != found):
                return UNKNOWN
            found = at
        return found

    def _after_range(self, state: int, low: int, high: int) -> int:
        found = self._step(state, low)
        return found if all(self._step(state, byte) == found for byte in range(low + 1, high + 1)) else UNKNOWN

    def _shift(self, state: int) -> int:
        """The state with all counts of a loop lowered together, where one character cannot tell.

        States that differ only so take the same families.
        """
        if state not in self._shifted:
            threads, final = self._core.states[state]
            spans = self._spans(threads)
            if spans is None:
                self._shifted[state] = state
            else:
                self._shifted[state] = self._intern({self._lowered(t, spans) for t in threads}, final)
        return self._shifted[state]

    def _spans(self, threads: Sequence[Thread]) -> dict[int, tuple[int, int]] | None:
        """The least and the most count of every loop; None where a frame rests on several, or they are many."""
        counted: list[Thread] = []
        for thread in threads:
            chain = self._chain(thread[2])
            under = [t for frame in chain for t in self._core.frame(frame)]
            if len(chain) > MOST_DEEP or (chain and any(t[2] for t in self._core.frame(chain[-1]))):
                return None
            counted += [thread, *under]
        spans: dict[int, tuple[int, int]] = {}
        for node, count, _ in counted:
            loop = self._core.network.node(node)[4]
            if loop >= 0 and self._core.network.node(loop)[0] != PICK and (loop in spans or len(spans) < MOST_LOOPS):
                least, most = spans.get(loop, (count, count))
                spans[loop] = (min(least, count), max(most, count))
        return spans

    def _lowered(self, thread: Thread, spans: dict[int, tuple[int, int]]) -> Thread:
        node, count, frame = thread
        by = self._sinking(self._core.network.node(node)[4], spans)
        if not frame:
            return node, count - by, 0
        under = [self._lowered(t, spans) for t in self._core.frame(frame)]
        return node, count - by, self._core.registers.frame_id(under)

    def _sinking(self, loop: int, spans: dict[int, tuple[int, int]]) -> int:
        """By how much the counts of a loop may sink; they stay above those of a loop entered by the character."""
        if loop not in spans:
            return 0
        low, high = spans[loop]
        least, most = self._core.network.node(loop)[2:4]
        floor = 2 * CHARACTER
        between = low >= least and most - high > CHARACTER
        if between:
            floor = max(floor, least)
        return max(low - floor, 0) if between or high + CHARACTER < least else 0


def _set(out: np.ndarray, ids: list[int]) -> None:
    where = np.array(ids, np.int64)
    np.bitwise_or.at(out, where >> 5, np.uint32(1) << (where & 31).astype(np.uint32))


def _clear(out: np.ndarray, ids: list[int]) -> None:
    where = np.array(ids, np.int64)
    np.bitwise_and.at(out, where >> 5, ~(np.uint32(1) << (where & 31).astype(np.uint32)))
