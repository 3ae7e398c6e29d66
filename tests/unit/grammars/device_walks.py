"""What the tests of the grammars' device tables share, on the CPU and on a GPU: walks beside the matchers."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from grammar_support import allowed

from sgl.grammars import Grammar, Matcher, Vocabulary
from sgl.grammars.device import DevicePool
from sgl.grammars.device.device_grammar_pool import position
from sgl.grammars.device.device_state_codes import DEAD


def shown(pool: DevicePool, width: int) -> list[set[int]]:
    """The tokens that the pool's masks leave in logits of zeros, slot by slot."""
    logits = torch.zeros(len(pool.states), width, device=pool.tables.device)
    pool.apply(logits)
    return [set(np.flatnonzero(row == 0).tolist()) for row in logits.cpu().numpy()]


def apply_by_numpy(logits: np.ndarray, rows: Sequence[int], masks: np.ndarray) -> np.ndarray:
    """The oracle of `apply_masks`: float32 [B, width] after the rows' masks."""
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little").astype(bool)
    found = logits.copy()
    for sequence, row in enumerate(rows):
        if row >= 0:
            kept = np.zeros(logits.shape[1], bool)
            kept[: bits.shape[1]] = bits[row, : logits.shape[1]]
            found[sequence, ~kept] = -np.inf
    return found


class Walk:
    """Random texts through a pool, every slot beside its matcher, with free slots between them.

    A slot that has ended starts again with the next grammar.
    """

    def __init__(self, pool: DevicePool, grammars: Sequence[Grammar], rng: random.Random) -> None:
        self.pool, self.grammars, self.rng = pool, list(grammars), rng
        self.vocabulary: Vocabulary = grammars[0].vocabulary
        self.slots = len(pool.states)
        self.matchers: dict[int, Matcher] = {}
        self.missed = self.refused = self.steps = 0
        self.begin(range(0, self.slots - 1))

    def begin(self, slots: Sequence[int]) -> None:
        fresh = {slot: self.rng.choice(self.grammars).matcher() for slot in slots}
        self.matchers |= fresh
        self.pool.assign(fresh)

    def run(self, steps: int, wrong: float = 0.0) -> None:
        for _ in range(steps):
            self.step(wrong)
            self.compare()

    def step(self, wrong: float) -> None:
        tokens = [self.choose(self.matchers.get(slot), wrong) for slot in range(self.slots)]
        refused = {slot for slot, m in self.matchers.items() if not self.accepts(m, tokens[slot])}
        self.pool.advance(torch.tensor(tokens, device=self.pool.tables.device))
        self.compare_before(refused)
        missed = self.pool.sync_misses()
        assert refused <= set(missed)
        self.missed += len(missed) - len(refused)
        self.refused += len(refused)
        self.steps += len(self.matchers)

    def accepts(self, matcher: Matcher, token: int) -> bool:
        """Take a token; an ended text may end again, which a matcher does not count."""
        ended = position(matcher)[1] == DEAD
        return matcher.accept(token) or (ended and token in self.vocabulary.eos_ids)

    def choose(self, matcher: Matcher | None, wrong: float) -> int:
        if matcher is None:
            return self.rng.randrange(self.vocabulary.size)
        if self.rng.random() < wrong:
            return self.rng.randrange(self.vocabulary.size)
        choices = sorted(allowed(matcher.mask()) - set(self.vocabulary.eos_ids))
        return self.rng.choice(choices) if choices else self.vocabulary.eos_ids[0]

    def compare_before(self, refused: set[int]) -> None:
        """Before the host steps in a mask is right or, where a miss is flagged, allows nothing."""
        masks = shown(self.pool, self.vocabulary.size)
        flags = self.pool.misses.tolist()
        for slot, matcher in self.matchers.items():
            assert bool(flags[slot]) or slot not in refused
            assert masks[slot] == (set() if flags[slot] else allowed(matcher.mask())), (slot, flags[slot])

    def compare(self) -> None:
        """Every mask is the matcher's; slots without a grammar are left alone."""
        masks = shown(self.pool, self.vocabulary.size)
        assert not any(self.pool.misses.tolist())
        for slot in range(self.slots):
            matcher = self.matchers.get(slot)
            expected = allowed(matcher.mask()) if matcher else set(range(self.vocabulary.size))
            assert masks[slot] == expected, slot
        done = [slot for slot, matcher in self.matchers.items() if matcher.finished]
        if done and self.rng.random() < 0.5:
            self.begin(done)
