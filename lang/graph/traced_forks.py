"""The branches of a traced fork, and their joins."""

from __future__ import annotations

from typing import Any

from ..nodes.traced_nodes import SglConcateAndAppend
from ..places.source_location import caller_place
from ..program.state_group import ProgramStateGroup
from .trace_recording import SglGather
from .trace_steps import ConcatenateStep, GatherStep, WaitStep


class TracerGroup(ProgramStateGroup[Any]):
    """The branches of a traced fork."""

    def join(self, mode: str = "gather_variable") -> None:
        self._check_mode(mode)
        children = tuple(child.traced.index for child in self.states)
        self._wait_for(children)
        closed = tuple(child.end() for child in self.states)
        bring = self._gather_traced if mode == "gather_variable" else self._concatenate_traced
        bring(children, closed)

    def _wait_for(self, children: tuple[int, ...]) -> None:
        parent = self.src_state
        if children:
            where = caller_place()
            parent.recording.steps.append(WaitStep(parent.traced.index, where, parent.scope, states=children))

    def _gather_traced(self, children: tuple[int, ...], closed: tuple[Any, ...]) -> None:
        parent = self.src_state
        parent.traced.note(SglGather([child.last_node for child in self.states]))
        step = GatherStep(parent.traced.index, caller_place(), parent.scope, children, closed)
        parent.recording.steps.append(step)
        known = set(parent.variables)
        for child in self.states:
            for name, value in child.variables.items():
                if name not in known:
                    parent.variables.setdefault(name, []).append(value)

    def _concatenate_traced(self, children: tuple[int, ...], closed: tuple[Any, ...]) -> None:
        parent = self.src_state
        parent.traced.place(SglConcateAndAppend([child.last_node for child in self.states]))
        parent.traced.forget_constant_text()
        step = ConcatenateStep(parent.traced.index, caller_place(), parent.scope, children, closed)
        parent.recording.steps.append(step)
