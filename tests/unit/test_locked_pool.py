"""Locked memory that is given out again; the driver is a stand-in that says what it was asked."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from sgl.runtime.errors import ConfigError, RuntimeFailure
from sgl.runtime.memory.pinned_memory_pool import PinnedMemoryDriver, PinnedMemoryPool

PAGE = 4096


class Asked:
    """What the driver was asked, by length of the piece."""

    def __init__(self, spare: int = 0) -> None:
        self.locked: list[int] = []
        self.unpinned_memory: list[int] = []
        self.now: dict[int, int] = {}
        self.pool = PinnedMemoryPool(PinnedMemoryDriver(self.lock, self.unlock), spare)

    def lock(self, piece: Tensor) -> None:
        assert piece.data_ptr() % PAGE == 0 and piece.data_ptr() not in self.now
        self.now[piece.data_ptr()] = len(piece)
        self.locked.append(len(piece))

    def unlock(self, piece: Tensor) -> None:
        piece.fill_(1)  # the memory is still there
        self.unpinned_memory.append(self.now.pop(piece.data_ptr()))


def test_a_piece_comes_back_when_its_last_view_is_gone_and_nothing_is_asked_of_the_driver():
    asked = Asked()
    first = asked.pool.take(10 * PAGE - 5)
    assert first.dtype is torch.uint8 and len(first) == 10 * PAGE - 5
    address, view = first.data_ptr(), first[PAGE:].view(torch.int8)
    del first
    gc.collect()
    other = asked.pool.take(10 * PAGE)
    assert other.data_ptr() != address
    view.fill_(3)
    del view
    assert asked.locked == [10 * PAGE] * 2 and not asked.unpinned_memory
    assert asked.pool.take(9 * PAGE).data_ptr() == address and len(asked.locked) == 2


def test_the_best_fitting_piece_is_taken_and_none_that_is_much_too_large():
    asked = Asked(spare=1 << 30)
    held = [asked.pool.take(size * PAGE) for size in (12, 11, 20)]
    addresses = [each.data_ptr() for each in held]
    held.clear()
    best = asked.pool.take(10 * PAGE)
    next_best = asked.pool.take(10 * PAGE)
    fresh = asked.pool.take(10 * PAGE)
    assert [best.data_ptr(), next_best.data_ptr()] == [addresses[1], addresses[0]]
    assert fresh.data_ptr() not in addresses and asked.locked == [12 * PAGE, 11 * PAGE, 20 * PAGE, 10 * PAGE]


def test_free_pieces_beyond_the_limit_are_unlocked_by_who_takes_the_next_oldest_first():
    asked = Asked(spare=3 * PAGE)
    held = [asked.pool.take(size * PAGE) for size in (4, 2, 5, 1)]
    while held:
        del held[0]
    assert not asked.unpinned_memory and asked.pool.bytes == 12 * PAGE
    kept = asked.pool.take(100 * PAGE)  # the largest piece was 5 pages then
    assert asked.unpinned_memory == [4 * PAGE, 2 * PAGE, 5 * PAGE]
    assert len(kept) == 100 * PAGE and asked.pool.bytes == 101 * PAGE


@pytest.mark.parametrize("how", ["closed", "gone"])
def test_all_is_unlocked_once_and_what_is_out_stays_readable(how):
    asked = Asked()
    out, free = asked.pool.take(PAGE), asked.pool.take(2 * PAGE)
    del free
    if how == "closed":
        asked.pool.close()
        with pytest.raises(RuntimeFailure, match="closed"):
            asked.pool.take(PAGE)
        asked.pool.close()
    else:
        del asked.pool
        gc.collect()
    assert sorted(asked.unpinned_memory) == [PAGE, 2 * PAGE] and not asked.now
    assert int(out[7]) == 1


def test_a_refusal_of_the_driver_is_raised_and_nothing_is_kept():
    def refuse(piece: Tensor) -> None:
        raise ConfigError("adapter_memory: the driver cannot lock")

    unpinned_memory: list[Tensor] = []
    pool = PinnedMemoryPool(PinnedMemoryDriver(refuse, unpinned_memory.append), 0)
    with pytest.raises(ConfigError, match="adapter_memory"):
        pool.take(PAGE)
    pool.close()
    assert pool.bytes == 0 and not unpinned_memory


def test_threads_never_share_a_piece():
    asked = Asked(spare=1 << 30)

    def work(number: int) -> None:
        for turn in range(50):
            mine = asked.pool.take(PAGE * (1 + (turn + number) % 3))
            mine.fill_(number)
            assert bool((mine == number).all())
            del mine

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(1, 5)))
    assert len(asked.locked) <= 12 and not asked.unpinned_memory
