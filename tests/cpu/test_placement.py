"""Experts on cards: copies as few as can be where it matters, packs close to the best there is, groups on one node."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest

from sgl.runtime.errors import ConfigError
from sgl.runtime.parallel.ep.expert_placement import (
    copies_of_experts,
    initial_placement,
    keep_in_place,
    loads,
    moves,
    pack_experts,
    place_experts,
)


def best_packing(weights: tuple[float, ...], sizes: tuple[int, ...]) -> float:
    """The smallest heaviest pack of all ways to share items out."""

    @cache
    def best(items: tuple[int, ...], packs: tuple[int, ...]) -> float:
        if len(packs) == 1:
            return sum(weights[item] for item in items)
        ways = combinations(items, packs[0])
        return min(
            max(sum(weights[i] for i in chosen), best(tuple(i for i in items if i not in chosen), packs[1:]))
            for chosen in ways
        )

    return best(tuple(range(len(weights))), sizes)


@pytest.mark.parametrize("seed", range(40))
def test_packs_are_full_and_close_to_the_best(seed):
    rng = np.random.default_rng(seed)
    sizes = [(2, 2), (4, 4), (3, 3, 3), (2, 2, 2, 2), (4, 4), (3, 2, 2), (4, 3), (2, 2, 1)][seed % 8]
    weights = tuple(rng.integers(0, 100, sum(sizes)).tolist()) if seed % 2 else tuple(rng.exponential(10, sum(sizes)))
    found = pack_experts(weights, sizes)
    assert (
        sorted(item for pack in found for item in pack) == list(range(sum(sizes))) and tuple(map(len, found)) == sizes
    )
    heaviest, best = max(sum(weights[i] for i in pack) for pack in found), best_packing(weights, sizes)
    assert heaviest <= 4 / 3 * best + 1e-9 or len(set(sizes)) > 1
    assert heaviest <= best + max(weights) + 1e-9


@pytest.mark.parametrize("seed", range(30))
def test_no_other_numbers_of_copies_have_a_smaller_heaviest_share(seed):
    rng = np.random.default_rng(seed)
    count, spare = int(rng.integers(1, 5)), int(rng.integers(0, 5))
    weights = rng.exponential(10, count).tolist()
    found = copies_of_experts(weights, count + spare)
    ways = (way for way in product(range(1, spare + 2), repeat=count) if sum(way) == count + spare)
    assert sum(found) == count + spare and min(found) >= 1
    assert max(w / c for w, c in zip(weights, found, strict=True)) == min(
        max(w / c for w, c in zip(weights, way, strict=True)) for way in ways
    )


@pytest.mark.parametrize("seed", range(30))
def test_every_expert_has_a_place_and_groups_lie_on_one_node(seed):
    rng = np.random.default_rng(seed)
    nodes, groups, experts, sizes = [
        (2, 4, 16, [3] * 8),
        (1, 1, 8, [2] * 4),
        (4, 8, 32, [6] * 8),
        (2, 3, 12, [4] * 4),
        (3, 6, 12, [3] * 6),
        (1, 1, 7, [3, 3, 2]),
    ][seed % 6]
    weights = rng.exponential(1, experts).tolist()
    found = place_experts(weights, sizes, nodes, groups)
    assert [*map(len, found)] == sizes and {expert for card in found for expert in card} == set(range(experts))
    assert sum(loads(found, weights)) == pytest.approx(sum(weights))
    if groups % nodes == 0:
        size, each = experts // groups, len(sizes) // nodes
        where = [{card // each for card, own in enumerate(found) if expert in own} for expert in range(experts)]
        assert all(len(set.union(*where[start : start + size])) == 1 for start in range(0, experts, size))


def test_copies_of_the_busiest_level_the_cards():
    weights = [90.0, 10, 10, 10, 10, 10, 10, 10]
    plain, spread = place_experts(weights, [2] * 4), place_experts(weights, [3] * 4)
    assert max(loads(plain, weights)) == 100 and max(loads(spread, weights)) < 50
    assert sum(0 in card for card in spread) > 2 and place_experts(weights, [3] * 4) == spread


@pytest.mark.parametrize(
    "experts, cards, redundant", [(8, 2, 0), (8, 2, 3), (7, 3, 0), (5, 4, 9), (4, 4, 12), (3, 2, 3), (1, 3, 2)]
)
def test_the_first_places_are_even_and_hold_no_expert_twice(experts, cards, redundant):
    found = initial_placement(experts, cards, redundant)
    assert {expert for card in found for expert in card} == set(range(experts)) and sum(
        map(len, found)
    ) == experts + redundant
    assert all(len(set(card)) == len(card) for card in found) and max(map(len, found)) - min(map(len, found)) <= 1
    copies = Counter(expert for card in found for expert in card)
    assert max(copies.values()) - min(copies.values()) <= 1


@pytest.mark.parametrize("seed", range(30))
def test_what_stays_is_not_copied_and_what_is_copied_was_there(seed):
    rng = np.random.default_rng(seed)
    experts, cards, redundant = [(8, 2, 2), (7, 3, 0), (16, 4, 6), (5, 4, 3)][seed % 4]
    before = initial_placement(experts, cards, redundant)
    for _ in range(4):
        fresh = place_experts(rng.exponential(1, experts).tolist(), [*map(len, before)])
        after = keep_in_place(before, fresh)
        assert sorted(map(sorted, after)) == sorted(map(sorted, fresh))
        held = [list(card) for card in before]
        for expert, (card, number), (target, into) in moves(before, after):
            assert before[card][number] == expert and before[target][into] != expert
            held[target][into] = expert
        assert tuple(map(tuple, held)) == after
        assert keep_in_place(after, after) == after and moves(after, after) == []
        kept = sum(old == new for a, b in zip(before, after, strict=True) for old, new in zip(a, b, strict=True))
        assert kept >= sum(
            old == new for a, b in zip(before, fresh, strict=True) for old, new in zip(a, b, strict=True)
        )
        before = after


@pytest.mark.parametrize(
    "sizes, nodes, groups", [([2, 2, 2, 1], 1, 1), ([2] * 4, 3, 1), ([2] * 4, 1, 3), ([3, 3, 1, 1], 2, 2)]
)
def test_what_does_not_divide_is_refused(sizes, nodes, groups):
    with pytest.raises(ConfigError, match=r"must divide|needs one at least"):
        place_experts([1.0] * 8, sizes, nodes, groups)
