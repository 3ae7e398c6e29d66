"""Places of experts and their copies, so that every GPU has about as much to do, by how often each was chosen.

After EPLB (DeepSeek-AI, 2025): experts of a group are on one node, where groups can be shared out among nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...errors import ConfigError

Held = tuple[tuple[int, ...], ...]  # of each GPU, the expert of each of its places


class ExpertMove(NamedTuple):
    """An expert that goes from one place to another. source, target: a GPU and one of its places."""

    expert: int
    source: tuple[int, int]
    target: tuple[int, int]


def initial_placement(experts: int, gpus: int, redundant: int = 0) -> Held:
    """Before anything is known: as many on each GPU but for one.

    Those of a GPU follow each other; copies are where the expert is not yet.
    """
    each, more = divmod(experts, gpus)
    starts = [gpu * each + min(gpu, more) for gpu in range(gpus + 1)]
    found = [list(range(starts[gpu], starts[gpu + 1])) for gpu in range(gpus)]
    copies = [1] * experts
    for _ in range(redundant):
        own = min(found, key=len)
        expert = min((item for item in range(experts) if item not in own), key=copies.__getitem__)
        copies[expert] += 1
        own.append(expert)
    return tuple(map(tuple, found))


def place_experts(weights: Sequence[float], sizes: Sequence[int], nodes: int = 1, groups: int = 1) -> Held:
    """sizes: places of each GPU, the GPUs of a node following each other.

    weights: of each expert, from 0.  groups: of experts that follow each other.

    Where groups cannot be shared out among the nodes, all experts are placed as on one. Raises ConfigError for what
    does not divide.
    """
    _require(len(weights), sizes, nodes, groups)
    if groups % nodes:
        groups = nodes = 1
    size, gpus, found = len(weights) // groups, len(sizes) // nodes, list[list[int]]()
    by_group = [sum(weights[start : start + size]) for start in range(0, len(weights), size)]
    for node, held in enumerate(pack_experts(by_group, [groups // nodes] * nodes)):
        own = [expert for group in sorted(held) for expert in range(group * size, (group + 1) * size)]
        found += _on_node(own, weights, sizes[node * gpus : (node + 1) * gpus])
    return tuple(map(tuple, found))


def _on_node(own: list[int], weights: Sequence[float], sizes: Sequence[int]) -> list[list[int]]:
    """The experts of each GPU of a node that holds these."""
    copies = copies_of_experts([weights[expert] for expert in own], sum(sizes))
    each = [expert for expert, count in zip(own, copies, strict=True) for _ in range(count)]
    shares = [weights[expert] / count for expert, count in zip(own, copies, strict=True) for _ in range(count)]
    return [[each[item] for item in pack] for pack in pack_experts(shares, sizes, each)]


def pack_experts(weights: Sequence[float], sizes: Sequence[int], kinds: Sequence[int] | None = None) -> list[list[int]]:
    """Items into packs of so many: the heaviest first, each into the lightest pack with room; ties in their order.

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
    """How many copies of each, so that the heaviest share is as small as can be.

    Every place that is left goes to where a copy has most to do.
    """
    copies = [1] * len(weights)
    for _ in range(places - len(weights)):
        copies[max(range(len(weights)), key=lambda item: weights[item] / copies[item])] += 1
    return copies


def loads(held: Held, weights: Sequence[float]) -> list[float]:
    """Of each GPU, where an expert's tokens are shared out among its copies. weights: of each expert."""
    copies = [0] * len(weights)
    for gpu in held:
        for expert in gpu:
            copies[expert] += 1
    return [sum(weights[expert] / copies[expert] for expert in gpu) for gpu in held]


def balance(rows: Sequence[Sequence[float]]) -> float:
    """How busy ranks are relative to the busiest of each layer, on average: 1.0 is the best, 1 / ranks the worst.

    rows: of each layer and rank.
    """
    most = sum(max(each) for each in rows if each)
    return sum(sum(each) / len(each) for each in rows if each) / most if most else 1.0


def keep_in_place(before: Held, after: Held, nodes: int = 1) -> Held:
    """`after` with the GPUs of each node exchanged so that most experts stay where they are, those on their places."""
    found, gpus = list[tuple[int, ...]](), len(before) // nodes
    for start in range(0, len(before), gpus):
        found += _assign_to_gpus(before[start : start + gpus], after[start : start + gpus])
    return tuple(found)


def _assign_to_gpus(before: Held, packs: Held) -> list[tuple[int, ...]]:
    pairs = [
        (-_common(gpu, pack), at, which)
        for at, gpu in enumerate(before)
        for which, pack in enumerate(packs)
        if len(gpu) == len(pack)
    ]
    found: dict[int, tuple[int, ...]] = {}
    taken = set[int]()
    for _, at, which in sorted(pairs):
        if at not in found and which not in taken:
            found[at] = _on_places(before[at], packs[which])
            taken.add(which)
    return [found[at] for at in range(len(before))]


def _common(gpu: Sequence[int], pack: Sequence[int]) -> int:
    return len({*gpu} & {*pack})


def _on_places(gpu: Sequence[int], pack: Sequence[int]) -> tuple[int, ...]:
    left = list(pack)
    kept = [left.pop(left.index(expert)) if expert in left else None for expert in gpu]
    coming = iter(left)
    return tuple(next(coming) if expert is None else expert for expert in kept)


def moves(before: Held, after: Held) -> list[ExpertMove]:
    """What to copy when places change; of several copies each is asked for about as many."""
    sources: dict[int, list[tuple[int, int]]] = {}
    for gpu, own in enumerate(before):
        for number, expert in enumerate(own):
            sources.setdefault(expert, []).append((gpu, number))
    asked, found = [0] * len(before), list[ExpertMove]()
    for gpu, (old, new) in enumerate(zip(before, after, strict=True)):
        for number, expert in enumerate(new):
            if old[number] != expert:
                here = [source for source in sources[expert] if source[0] == gpu]
                source = min(here or sources[expert], key=lambda source: asked[source[0]])
                asked[source[0]] += source[0] != gpu
                found.append(ExpertMove(expert, source, (gpu, number)))
    return found


def _require(experts: int, sizes: Sequence[int], nodes: int, groups: int) -> None:
    for what, many, few in (("GPUs among nodes", len(sizes), nodes), ("experts among groups", experts, groups)):
        if many % few:
            raise ConfigError(f"{many} {what.replace(' among', f' among {few}')}: they must divide")
    apart = nodes if groups % nodes == 0 else 1
    gpus = len(sizes) // apart
    for places in (sum(sizes[start : start + gpus]) for start in range(0, len(sizes), gpus)):
        if places * apart < experts:
            raise ConfigError(f"{places} places for {experts // apart} experts: each needs one at least")
