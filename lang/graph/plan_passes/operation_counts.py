"""Counts what a plan hands to a backend, by executing it on one that makes no text.

Nothing is answered until nothing more is handed over; then everything is. Each time that more operations
follow such an answer is a round trip: a wait for a result before the next operation could be handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ...backend import Backend, Generated, GenRequest, Media, OnChunk, SelectRequest, Stream
from ...chat import ChatTemplate
from ...interpreter.stream_executor import StreamExecutor
from ...sampling.choices import ChoicesDecision
from ...sampling.options import DEFAULTS
from ..graph_plan import GraphPlan
from ..plan_executor import PlanExecution
from ..trace_steps import CallStep


@dataclass(frozen=True)
class OperationCounts:
    """Of one run: nodes executed, calls of a backend's operations, and waits between them."""

    nodes: int
    operations: int
    round_trips: int


def count(
    plan: GraphPlan, arguments: dict[str, Any], template: ChatTemplate, model_name: str = "a backend"
) -> OperationCounts:
    """What a run of the plan does. A plan with a head starts on a fork of a stream that has it."""
    backend = CountingBackend(template, model_name)
    root = StreamExecutor(backend, DEFAULTS, stream=backend.open().fork(1)[0] if plan.head else None)
    root.conversation.quiet = True
    if plan.head:
        backend.operations -= 1  # the pinned stream was opened for all runs
    PlanExecution(plan, root, arguments, _at_once, lambda step, caller: _nested(backend, step, caller)).start()
    round_trips = 0
    while backend.unanswered:
        before = backend.operations
        backend.answer()
        round_trips += backend.operations > before
    if root.body_error is not None:
        raise root.body_error
    return OperationCounts(plan.nodes, backend.operations, round_trips)


class CountingBackend(Backend):
    """Counts operations: open, append, turns, attach, generate, select, fork, prefill."""

    def __init__(self, template: ChatTemplate, model_name: str) -> None:
        self.chat_template = template
        self.model_name = model_name
        self.operations = 0
        self.unanswered: list[Callable[[], object]] = []

    def get_model_name(self) -> str:
        return self.model_name

    def open(self) -> Stream:
        self.operations += 1
        return CountingStream(self)

    def answer(self) -> None:
        """All that was asked so far is answered."""
        answers, self.unanswered = self.unanswered, []
        for give in answers:
            give()


class CountingStream(Stream):
    def __init__(self, backend: CountingBackend) -> None:
        self.backend = backend

    def _counted_answer(self, answer: Any) -> Future[Any]:
        self.backend.operations += 1
        future: Future[Any] = Future()
        self.backend.unanswered.append(lambda: future.set_result(answer))
        return future

    def append(self, text: str) -> None:
        self.backend.operations += 1

    def attach(self, media: Media, token: str) -> None:
        self.backend.operations += 1

    def generate(self, request: GenRequest, on_chunk: OnChunk | None = None) -> Future[Generated]:
        return self._counted_answer(Generated(""))

    def select(self, request: SelectRequest) -> Future[ChoicesDecision]:
        return self._counted_answer(ChoicesDecision(request.choices[0], {}))

    def prefill(self) -> Future[None]:
        return self._counted_answer(None)

    def fork(self, size: int) -> list[Stream]:
        self.backend.operations += 1
        return [CountingStream(self.backend) for _ in range(size)]

    def fork_adapted(self, adapters: Sequence[str | None]) -> list[Stream]:
        return self.fork(len(adapters))

    def close(self) -> None:
        """Nothing to give back."""


def _at_once(call: Callable[[], object]) -> None:
    call()


def _nested(backend: CountingBackend, step: CallStep, caller: StreamExecutor) -> StreamExecutor:
    executor = StreamExecutor(backend, DEFAULTS, stream=backend.open())
    executor.conversation.quiet = True
    return executor
