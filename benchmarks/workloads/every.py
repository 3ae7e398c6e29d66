"""All workloads, in the order of the table."""

from __future__ import annotations

from . import agents, chat, classification, json_decoding, judge, react, retrieval, skeleton_of_thought, tree_of_thought
from .work import Workload

WORKLOADS: dict[str, Workload] = {
    w.name: w
    for w in (
        classification.WORKLOAD,
        agents.WORKLOAD,
        react.WORKLOAD,
        tree_of_thought.WORKLOAD,
        skeleton_of_thought.WORKLOAD,
        judge.WORKLOAD,
        json_decoding.WORKLOAD,
        chat.SHORT,
        chat.LONG,
        retrieval.WORKLOAD,
    )
}
