"""Constrained decoding on a device: the sequences of one batch, each in a slot, and the grammars they follow.

    pool = DevicePool(vocabulary, torch.device("cuda"))
    pool.assign({0: matcher, 3: other})        # between steps
    pool.apply(logits)                         # inside a step, and inside a CUDA graph
    pool.advance(tokens)
    if missed := pool.sync_misses(): ...       # between steps, when all matchers have taken the tokens

A step needs nothing of the host as long as the states it meets are on the device. Where one is not, the slot misses:
it stands still, its mask allows nothing, and whatever is sampled for it must be thrown away until `sync_misses` has
put it back where its matcher is. Masks are never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from sgl.grammars.automaton.grammar_automaton import Automaton
from sgl.grammars.automaton.grammar_matcher import Matcher
from sgl.grammars.automaton.python_automaton_core import DEAD
from sgl.grammars.compile import Grammar
from sgl.grammars.device.device_grammar_tables import DeviceTables, StateUpload
from sgl.grammars.device.device_state_codes import ENDED, FIXED_ROWS, FREE, NO_MASK, NO_TOKEN, SEEN
from sgl.grammars.device.resident_automaton import ResidentAutomaton, StateNumbers
from sgl.grammars.errors import GrammarError, UnsupportedGrammarError
from sgl.grammars.tokens.vocabulary import Vocabulary


class DevicePool:
    """The tables of many grammars over one vocabulary; all calls from one thread, on one stream.

    Attributes:
        states: int32 [slots], where each sequence is; FREE without a grammar.
        rows: int32 [slots], the mask row of each sequence, for `apply`.
        misses: int32 [slots], SEEN, UNSEEN (the host must step in) or REFUSED (the grammar forbids the token).
        stuck: int32 [slots], the token by which a slot that misses could not move, or NO_TOKEN.
        failed: what went wrong with the grammars of some slots, such as a GrammarLimitError; those may only end.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        device: torch.device | str,
        slots: int = 256,
        most_states: int = 32_768,
        most_rows: int = 4096,
    ) -> None:
        if most_states <= 2 * slots or most_rows < slots + FIXED_ROWS:
            raise ValueError(
                f"a pool of {slots} slots needs more than {2 * slots} states and at least {slots + FIXED_ROWS} "
                f"rows, not {most_states} and {most_rows}"
            )
        self.tables = DeviceTables(vocabulary, torch.device(device), slots, most_states, most_rows)
        self.states, self.rows = self._slots(slots, FREE), self._slots(slots, NO_MASK)
        self.misses, self.stuck = self._slots(slots, SEEN), self._slots(slots, NO_TOKEN)
        self._still = self._slots(slots, NO_TOKEN)
        self._numbers = StateNumbers(most_states)
        self._texts = frozenset(vocabulary.text_ids)
        self._matchers: dict[int, Matcher] = {}
        self._residents: dict[int, ResidentAutomaton] = {}
        self.failed: dict[int, GrammarError] = {}

    def _slots(self, count: int, value: int) -> Tensor:
        return torch.full((count,), value, dtype=torch.int32, device=self.tables.device)

    def add(self, grammar: Grammar) -> ResidentAutomaton:
        """Bring a grammar's start to the device, so that sequences that begin with it need not wait."""
        resident = self._resident(grammar.automaton)
        self.start(resident)
        return resident

    def start(self, resident: ResidentAutomaton) -> int:
        """The device's number of a grammar's first state; valid until the next `assign` or `sync_misses`."""
        state = resident.automaton.start
        if not resident.reserve(state):
            self._start_over()
            resident.reserve(state)
            self._resume(sorted(self._matchers))
        self.tables.write([resident.upload([state])])
        return resident.number(state)

    def assign(self, matchers: Mapping[int, Matcher]) -> None:
        """Put sequences into slots, where their matchers are; every other matcher is where its slot is, too."""
        self._matchers.update(matchers)
        for slot in matchers:
            self.failed.pop(slot, None)
        self._resume(sorted({*matchers, *self._missed()}))

    def release(self, slots: Iterable[int]) -> None:
        """Leave slots without a grammar."""
        at = torch.tensor(list(slots), dtype=torch.int64, device=self.tables.device)
        for slot in at.tolist():
            self._matchers.pop(slot, None)
            self.failed.pop(slot, None)
        self.states[at], self.rows[at], self.misses[at], self.stuck[at] = FREE, NO_MASK, SEEN, NO_TOKEN

    def apply(self, logits: Tensor) -> None:
        """Forbid in logits [n, width], n <= slots, what the grammars of the first n slots forbid; in place."""
        self.tables.apply(logits, self.rows)

    def advance(self, tokens: Tensor) -> None:
        """Move the first n slots by tokens, int [n]; NO_TOKEN leaves a slot where it is."""
        self.tables.advance(self.states, tokens, self.misses, self.stuck, self.rows)

    def sync_misses(self) -> list[int]:
        """Put the slots that missed where their matchers are; which they were.

        Waits for the device. The matchers must have taken (or refused) all tokens that `advance` was given.
        """
        missed = self._missed()
        if missed:
            self._resume(missed, self._paths(missed))
        return missed

    def grow(self, most: int = 64) -> int:
        """Upload about `most` more of the states that the grammars lead to, last used first; how many there were."""
        uploads: list[StateUpload] = []
        for resident in reversed(self._residents.values()):
            room = most - sum(len(upload.states) for upload in uploads)
            if room > 0:
                uploads.append(resident.grow(room))
        return self.tables.write(uploads)

    def _resident(self, automaton: Automaton) -> ResidentAutomaton:
        if automaton.names:
            raise UnsupportedGrammarError(
                "a grammar with tokens as terminals", "the device", "its masks come from the host"
            )
        found = self._residents.pop(id(automaton), None) or ResidentAutomaton(automaton, self._numbers)
        self._residents[id(automaton)] = found
        return found

    def _missed(self) -> list[int]:
        return torch.nonzero(self.misses).flatten().tolist()

    def _paths(self, slots: list[int]) -> list[StateUpload]:
        """What stood in the way of some slots' tokens."""
        found = []
        for state, token in torch.stack([self.states, self.stuck], 1).cpu()[slots].tolist():
            if token in self._texts and state != ENDED:
                resident, at = self._numbers.owner(state)
                found.append(resident.path(at, token))
        return found

    def _resume(self, slots: list[int], uploads: Iterable[StateUpload] = ()) -> None:
        """Put slots where their matchers are, with some states more, and see to it that they have mask rows."""
        if not self._reserve(slots):
            self._start_over()
            slots, uploads = sorted(self._matchers), ()
            self._reserve(slots)
        slots = [slot for slot in slots if slot in self._matchers]
        needed = (resident.upload(states) for resident, states in self._positions(slots).items())
        self.tables.write([*uploads, *needed])
        self._put(slots)
        self._complete()

    def _reserve(self, slots: list[int]) -> bool:
        """Give numbers to the states of some slots' matchers; False where the pool is full."""
        return all(self._reserve_for(slot) for slot in slots)

    def _reserve_for(self, slot: int) -> bool:
        automaton, state = position(self._matchers[slot])
        try:
            return state == DEAD or self._resident(automaton).reserve(state)
        except GrammarError as error:
            self._fail(slot, error)
            return True

    def _fail(self, slot: int, error: GrammarError) -> None:
        """Note what went wrong with a slot's grammar; all it may do is end."""
        self.failed[slot] = error
        del self._matchers[slot]
        self.states[slot], self.misses[slot] = ENDED, SEEN

    def _put(self, slots: list[int]) -> None:
        at = torch.tensor(slots, dtype=torch.int64, device=self.tables.device)
        numbers = [self._number(self._matchers[slot]) for slot in slots]
        self.states[at] = torch.tensor(numbers, dtype=torch.int32, device=self.tables.device)
        self.misses[at], self.stuck[at] = SEEN, NO_TOKEN
        self.advance(self._still)

    def _complete(self) -> None:
        """Upload the masks that the device cannot work out; a full pool of rows starts over first."""
        while missed := self._missed():
            if not self._set_masks(missed):
                self.tables.forget_rows()
            self.misses[torch.tensor(missed, device=self.tables.device)] = SEEN
            self.advance(self._still)

    def _set_masks(self, slots: list[int]) -> bool:
        """Upload the masks of some slots' matchers; False where there is no room for one."""
        masks: dict[int, np.ndarray] = {}
        for slot in slots:
            automaton, state = position(self._matchers[slot])
            resident = self._resident(automaton)
            try:
                masks[resident.number(resident.canonical(state))] = automaton.mask(state)
            except GrammarError as error:
                self._fail(slot, error)
        return not masks or self.tables.set_masks(list(masks), list(masks.values()))

    def _positions(self, slots: list[int]) -> dict[ResidentAutomaton, set[int]]:
        """The states of some slots' matchers, by automaton; those that have ended need none."""
        found: dict[ResidentAutomaton, set[int]] = {}
        for slot in slots:
            automaton, state = position(self._matchers[slot])
            if state != DEAD:
                found.setdefault(self._resident(automaton), set()).add(state)
        return found

    def _number(self, matcher: Matcher) -> int:
        automaton, state = position(matcher)
        return ENDED if state == DEAD else self._resident(automaton).number(state)

    def _start_over(self) -> None:
        """Empty a full pool; grammars that no slot follows are forgotten."""
        used = {id(position(matcher)[0]) for matcher in self._matchers.values()}
        self._residents = {key: value for key, value in self._residents.items() if key in used}
        self._numbers.start_over()
        self.tables.forget_states()


def position(matcher: Matcher) -> tuple[Automaton, int]:
    """The automaton of a matcher and the state it is in; DEAD after the end."""
    return matcher._automaton, matcher._states[-1]
