"""What several engines say, as if one had said it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from ..cache.growable_int_array import Space
from ..cache.view.cache_snapshot import CacheSnapshot, HeldSequence
from ..watch.engine_stats import Stats

SHARES = ("window_saved",)  # of `Stats`: means instead of sums
FIRST = ("adapters", "expert_places", "rebalanced")  # the same everywhere
SUMS = (
    "kv_tokens",
    "kv_bytes",
    "max_running",
    "window_tokens",
    "states",
    "state_bytes",
    "host_kv_bytes",
    "restarts",
)  # of `Engine.info`


def merged_stats(each: Sequence[Stats]) -> Stats:
    """The sums of the counters."""
    return Stats(
        **{field.name: _counted(field.name, [getattr(one, field.name) for one in each]) for field in fields(Stats)}
    )


def _counted(name: str, values: list[Any]) -> Any:
    if name in FIRST:
        return values[0]
    return sum(values) / len(values) if name in SHARES else _sum(values)


def _sum(values: Sequence[Any]) -> Any:
    if isinstance(values[0], list):
        return (
            [_sum(column) for column in zip(*values, strict=True)]
            if len({len(value) for value in values}) == 1
            else values[0]
        )
    return sum(values)


def merged_infos(each: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first one's, with sums where there are several of something."""
    sums = {name: sum(one[name] for one in each) for name in SUMS if name in each[0]}
    ranks = {"rank_pids": [pid for one in each for pid in one["rank_pids"]]} if "rank_pids" in each[0] else {}
    return {
        **each[0],
        **sums,
        **ranks,
        "replicas": len(each),
        "pids": [one["pid"] for one in each],
        "devices": [one["device"] for one in each],
    }


def merged_trees(each: Sequence[CacheSnapshot]) -> CacheSnapshot:
    """All of them next to each other; a namespace is named with its replica. Roots come first."""
    numbers: list[tuple[int, int]] = [
        (replica, node) for replica, one in enumerate(each) for node in range(len(one.parents))
    ]
    numbers.sort(key=lambda number: each[number[0]].parents[number[1]] >= 0)  # roots first, the rest in its order
    place = {number: index for index, number in enumerate(numbers)}

    def all_of(name: str) -> list[Any]:
        return [getattr(each[replica], name)[node] for replica, node in numbers]

    parents = [
        place[replica, parent] if (parent := each[replica].parents[node]) >= 0 else -1 for replica, node in numbers
    ]
    held = [
        HeldSequence(seq, status, place[replica, node], beyond)
        for replica, one in enumerate(each)
        for seq, status, node, beyond in one.held
    ]
    namespaces = [_with_replica_label(space, replica) for replica, one in enumerate(each) for space in one.namespaces]
    sizes = each[0].page_size, sum(one.pages_total for one in each), sum(one.pages_free for one in each)
    return CacheSnapshot(namespaces, parents, all_of("tokens"), all_of("locks"), all_of("last_used"), held, *sizes)


def _with_replica_label(space: Space, replica: int) -> Space:
    begin = f"replica {replica}: "
    return begin + space if isinstance(space, str) else (begin + space[0], space[1])


TOGETHER: dict[str, Callable[[list[Any]], Any]] = {  # by the name of what an engine's core is asked
    "snapshot": merged_stats,
    "tree": merged_trees,
    "check": lambda answers: None,
    "wake": lambda answers: None,
    "flush": sum,
    "sleep": sum,
    "update": lambda answers: (sum(size for size, _ in answers), answers[0][1]),
    "rebalance": lambda answers: None if None in answers else {"replicas": answers},
    "begin_trace": tuple,
    "begin_recording": tuple,
    "end_trace": lambda answers: sorted(
        (record for records in answers for record in records), key=lambda record: record.began
    ),
    "end_recording": lambda answers: [text for texts in answers for text in texts],
}
