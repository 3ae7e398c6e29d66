"""Where experts and their copies lie, so that every card has about as much to do: pure functions of how often each was
chosen.

After EPLB (DeepSeek-AI, 2025): experts of a group lie on one node, where groups can be shared out among nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...errors import ConfigError

Held = tuple[tuple[int, ...], ...]  # of each card, the expert of each of its places


class ExpertMove(NamedTuple):
    """An expert that goes from one place to another. source, target: a card and one of its places."""

    expert: int
    source: tuple[int, int]
    target: tuple[int, int]


def initial_placement(experts: int, cards: int, redundant: int = 0) -> Held:
    """Before anything is known: as many on each card but for one, those of a card follow
    each other; copies where the expert is not yet.
    """
    each, more = divmod(experts, cards)
    starts = [card * each + min(card, more) for card in range(cards + 1)]
    found = [list(range(starts[card], starts[card + 1])) for card in range(cards)]
    copies = [1] * experts
    for _ in range(redundant):
        own = min(found, key=len)
        expert = min((item for item in range(experts) if item not in own), key=copies.__getitem__)
        copies[expert] += 1
        own.append(expert)
    return tuple(map(tuple, found))


def place_experts(weights: Sequence[float], sizes: Sequence[int], nodes: int = 1, groups: int = 1) -> Held:
    """sizes: places of each card, the cards of a node following each other.  weights: of each expert, from 0.  groups:
    of experts that follow each other.

    Where groups cannot be shared out among the nodes, all experts are placed as on one. Raises ConfigError for what
    does not divide.
    """
    _require(len(weights), sizes, nodes, groups)
    if groups % nodes:
        groups = nodes = 1
    size, cards, found = len(weights) // groups, len(sizes) // nodes, list[list[int]]()
    by_group = [sum(weights[start : start + size]) for start in range(0, len(weights), size)]
    for node, held in enumerate(pack_experts(by_group, [groups // nodes] * nodes)):
        own = [expert for group in sorted(held) for expert in range(group * size, (group + 1) * size)]
        found += _on_node(own, weights, sizes[node * cards : (node + 1) * cards])
    return tuple(map(tuple, found))


def _on_node(own: list[int], weights: Sequence[float], sizes: Sequence[int]) -> list[list[int]]:
    """The experts of each card of a node that holds these."""
    copies = copies_of_experts([weights[expert] for expert in own], sum(sizes))
    each = [expert for expert, count in zip(own, copies, strict=True) for _ in range(count)]
    shares = [weights[expert] / count for expert, count in zip(own, copies, strict=True) for _ in range(count)]
    return [[each[item] for item in pack] for pack in pack_experts(shares, sizes, each)]


def pack_experts(weights: Sequence[float], sizes: Sequence[int], kinds: Sequence[int] | None = None) -> list[list[int]]:
    """Items into packs of so many items: the heaviest first, each into the lightest pack that is not full; ties in
    their order.

    kinds: of each item; a pack that has one of its kind is taken where all others are full.
    """
    found, held, loads = [list[int]() for _ in sizes], [set[int]() for _ in sizes], [0.0] * len(sizes)
    for item in sorted(range(len(weights)), key=lambda item: -weights[item]):
        free = [pack for pack, size in enumerate(sizes) if len(found[pack]) < size]
        kind = item if kinds is None else kinds[item]
        lightest = min([pack for pack in free if kind not in held[pack]] or free, key=loads.__getitem__)
        found[lightest].append(item)
        held[lightest].add(kind)
        loads[lightest] += weights[item]
    return found


def copies_of_experts(weights: Sequence[float], places: int) -> list[int]:
    """How many copies of each, so that the heaviest share is as small as can be: every place
    that is left goes to where a copy has most to do.
    """
    copies = [1] * len(weights)
    for _ in range(places - len(weights)):
        copies[max(range(len(weights)), key=lambda item: weights[item] / copies[item])] += 1
    return copies


def loads(held: Held, weights: Sequence[float]) -> list[float]:
    """Of each card, where an expert's tokens are shared out among its copies. weights: of each expert."""
    copies = [0] * len(weights)
    for card in held:
        for expert in card:
            copies[expert] += 1
    return [sum(weights[expert] / copies[expert] for expert in card) for card in held]


def balance(rows: Sequence[Sequence[float]]) -> float:
    """How busy ranks are beside the busiest of each layer, on average: 1.0 is the best, 1 /
    ranks the worst. rows: of each layer and rank.
    """
    most = sum(max(each) for each in rows if each)
    return sum(sum(each) / len(each) for each in rows if each) / most if most else 1.0


def keep_in_place(before: Held, after: Held, nodes: int = 1) -> Held:
    """`after` with the cards of each node exchanged so that most experts stay where they are, those on their places."""
    found, cards = list[tuple[int, ...]](), len(before) // nodes
    for start in range(0, len(before), cards):
        found += _assign_to_gpus(before[start : start + cards], after[start : start + cards])
    return tuple(found)


def _assign_to_gpus(before: Held, packs: Held) -> list[tuple[int, ...]]:
    pairs = [
        (-_common(card, pack), at, which)
        for at, card in enumerate(before)
        for which, pack in enumerate(packs)
        if len(card) == len(pack)
    ]
    found: dict[int, tuple[int, ...]] = {}
    taken = set[int]()
    for _, at, which in sorted(pairs):
        if at not in found and which not in taken:
            found[at] = _on_places(before[at], packs[which])
            taken.add(which)
    return [found[at] for at in range(len(before))]


def _common(card: Sequence[int], pack: Sequence[int]) -> int:
    return len({*card} & {*pack})


def _on_places(card: Sequence[int], pack: Sequence[int]) -> tuple[int, ...]:
    left = list(pack)
    kept = [left.pop(left.index(expert)) if expert in left else None for expert in card]
    coming = iter(left)
    return tuple(next(coming) if expert is None else expert for expert in kept)


def moves(before: Held, after: Held) -> list[ExpertMove]:
    """What to copy when places change; of several copies each is asked for about as many."""
    sources: dict[int, list[tuple[int, int]]] = {}
    for card, own in enumerate(before):
        for number, expert in enumerate(own):
            sources.setdefault(expert, []).append((card, number))
    asked, found = [0] * len(before), list[ExpertMove]()
    for card, (old, new) in enumerate(zip(before, after, strict=True)):
        for number, expert in enumerate(new):
            if old[number] != expert:
                here = [source for source in sources[expert] if source[0] == card]
                source = min(here or sources[expert], key=lambda source: asked[source[0]])
                asked[source[0]] += source[0] != card
                found.append(ExpertMove(expert, source, (card, number)))
    return found


def _require(experts: int, sizes: Sequence[int], nodes: int, groups: int) -> None:
    for what, many, few in (("cards among nodes", len(sizes), nodes), ("experts among groups", experts, groups)):
        if many % few:
            raise ConfigError(f"{many} {what.replace(' among', f' among {few}')}: they must divide")
    apart = nodes if groups % nodes == 0 else 1
    cards = len(sizes) // apart
    for places in (sum(sizes[start : start + cards]) for start in range(0, len(sizes), cards)):
        if places * apart < experts:
            raise ConfigError(f"{places} places for {experts // apart} experts: each needs one at least")
