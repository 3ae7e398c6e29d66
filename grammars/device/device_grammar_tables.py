"""The tables of many automata on one device, and the launches that read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from sgl.grammars.device import grammar_mask_kernels
from sgl.grammars.device.device_state_codes import BLOCKED, DEAD, ENDED, FIXED_ROWS, LANES, NO_ROW, UNKNOWN
from sgl.grammars.device.device_token_blocks import TokenBlocks
from sgl.grammars.tokens.vocabulary import Vocabulary

_APPLIED = {"BLOCK": 1024, "PIECE": 128, "num_warps": 4}
_ORDERED = {"TOKENS": 4096, "num_warps": 8}
_WALKERS, _WRITERS = 16, 4  # programs on each multiprocessor: they fill a GPU, and cost little when idle


class StateUpload(NamedTuple):
    """Numbers of states, int32 [n], and what the tables hold of them: see `DeviceTables`."""

    states: np.ndarray
    targets: np.ndarray
    finals: np.ndarray
    canonical: np.ndarray


class DeviceTables:
    """Fixed in size and place, written in place: CUDA graphs that read them stay valid.

    Everything runs on the current stream and nothing waits for the host, but for what says so.

    Attributes:
        transitions: int32 [most_states, 256], the state after each byte, DEAD or UNKNOWN.
        finals: int32 [most_states], whether the text may end, UNKNOWN where the state is not here.
        canonical: int32 [most_states], the state with the same mask whose row is kept, or UNKNOWN.
        rows_of: int32 [most_states], the mask row of a canonical state, or NO_ROW.
        masks: int32 [most_rows, ceil(V / 32)], bit i % 32 of word i // 32 for token i.
        row_states, incomplete: int32 [most_rows], the state of a row; whether its walk met UNKNOWN.
        counters: int32 [2], rows worked out and rows numbered.
        bits: int32 [slots, blocks * LANES / 32], the rows just walked, in the order of the token blocks.
    """

    def __init__(
        self, vocabulary: Vocabulary, device: torch.device, slots: int, most_states: int, most_rows: int
    ) -> None:
        self.vocabulary, self.device = vocabulary, device
        blocks = TokenBlocks(vocabulary)
        self.blocks = len(blocks)
        self.places, self.lengths = self._upload(blocks.places), self._upload(blocks.lengths)
        self.offsets, self.words = self._upload(blocks.offsets), self._upload(blocks.words)
        self.transitions = self._full(UNKNOWN, most_states, 256)
        self.finals = self._full(UNKNOWN, most_states)
        self.canonical = self._full(UNKNOWN, most_states)
        self.rows_of = self._full(NO_ROW, most_states)
        self.masks = self._full(0, most_rows, vocabulary.words)
        self.row_states, self.incomplete = self._full(ENDED, most_rows), self._full(0, most_rows)
        self.counters = self._full(FIXED_ROWS, 2)
        self.bits = self._full(0, slots, max(self.blocks, 1) * LANES // 32)
        self.walkers, self.writers = _programs(device, _WALKERS), _programs(device, _WRITERS)
        self.forget_states()

    def _full(self, value: int, *shape: int) -> Tensor:
        return torch.full(shape, value, dtype=torch.int32, device=self.device)

    def _upload(self, data: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(data, np.int32)).to(self.device)

    @property
    def nbytes(self) -> int:
        """Device memory of all tables."""
        return sum(t.numel() * t.element_size() for t in vars(self).values() if isinstance(t, Tensor))

    def forget_states(self) -> None:
        """Empty all tables but for the state ENDED."""
        for table in (self.transitions, self.finals, self.canonical):
            table.fill_(UNKNOWN)
        self.transitions[ENDED], self.finals[ENDED], self.canonical[ENDED] = DEAD, 1, ENDED
        self.forget_rows()

    def forget_rows(self) -> None:
        """Empty the pool of mask rows but for those of ENDED and BLOCKED."""
        self.rows_of.fill_(NO_ROW)
        self.rows_of[ENDED] = ENDED
        self.counters.fill_(FIXED_ROWS)
        self.masks[ENDED] = self._upload(self.vocabulary.eos_row.view(np.int32))
        self.masks[BLOCKED] = 0

    def write(self, uploads: Iterable[StateUpload]) -> int:
        """Put states in their places, what came last where one comes twice; how many."""
        parts = [upload for upload in uploads if len(upload.states)]
        if not parts:
            return 0
        columns = [np.concatenate(column)[::-1] for column in zip(*parts, strict=True)]
        _, last = np.unique(columns[0], return_index=True)
        states, targets, finals, canonical = (self._upload(column[last]) for column in columns)
        at = states.long()
        self.transitions[at], self.finals[at], self.canonical[at] = targets, finals, canonical
        return len(at)

    def set_masks(self, states: list[int], masks: list[np.ndarray]) -> bool:
        """Complete the rows that canonical states were given; False where one has none. Waits for the device."""
        rows = self.rows_of[self._upload(np.array(states)).long()].long()
        if bool((rows < 0).any()):
            return False
        self.masks[rows] = self._upload(np.stack(masks))
        self.incomplete[rows] = 0
        return True

    def advance(self, states: Tensor, tokens: Tensor, misses: Tensor, stuck: Tensor, rows: Tensor) -> None:
        """Move sequences by a token each and find their mask rows, working out those that are new.

        Args:
            states, misses, stuck, rows: int32 [slots], rewritten for the first n slots.
            tokens: int [n], n <= slots; NO_TOKEN where a sequence stays.

        Raises:
            ValueError: there are more tokens than slots.
        """
        count, tokens = len(tokens), tokens.contiguous()
        if count > len(states):
            raise ValueError(f"{count} tokens for {len(states)} slots")
        lanes = triton.next_power_of_2(max(count, 32))
        walk = (self.lengths, self.offsets, self.words, self.transitions)
        memo = (self.rows_of, self.row_states, self.incomplete, self.counters)
        grammar_mask_kernels.advance[(1,)](
            *(states, tokens, misses, stuck, count, len(self.places), len(self.masks), self.places),
            *(*walk, self.finals, self.canonical, *memo),
            BLOCK=lanes,
            num_warps=min(lanes // 32, 8),
        )
        grammar_mask_kernels.walk_tokens[(self.walkers,)](
            self.counters, self.row_states, self.incomplete, self.blocks, *walk, self.bits, num_warps=1
        )
        grammar_mask_kernels.order_rows[(self.writers,)](
            *(self.counters, self.row_states, self.finals, self.places, self.bits, self.blocks, self.masks),
            *(len(self.places), self.masks.shape[1], states, misses, rows, count, self.canonical),
            *(self.rows_of, self.incomplete),
            BLOCK=lanes,
            **_ORDERED,
        )

    def apply(self, logits: Tensor, rows: Tensor) -> None:
        """Set logits [B, width] to -inf where the rows [B] have no bit, in place; NO_MASK leaves a row alone.

        Columns after the mask's words are forbidden too.

        Raises:
            ValueError: there are more logits than rows, or their columns are not contiguous.
        """
        if len(logits) > len(rows) or logits.stride(1) != 1:
            raise ValueError(f"logits {list(logits.shape)} of strides {logits.stride()} for {len(rows)} slots")
        grid = (triton.cdiv(logits.shape[1], _APPLIED["BLOCK"]), len(logits))
        grammar_mask_kernels.apply_masks[grid](
            logits, rows, self.masks, logits.shape[1], self.masks.shape[1], logits.stride(0), **_APPLIED
        )


def _programs(device: torch.device, each: int) -> int:
    """How many programs to launch, `each` on a multiprocessor."""
    if device.type != "cuda":
        return 2
    return each * int(torch.cuda.get_device_properties(device).multi_processor_count)
