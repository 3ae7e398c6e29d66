"""What the nodes of a step with tools do to a state."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..backend import GenRequest
from ..errors import Place, node_failure
from ..interpreter.rules import apply, gen
from ..interpreter.transcript import Pending
from ..sampling.options import SamplingOptions
from .gated import GatedStream
from .nodes import SglContinued, SglToolCall

if TYPE_CHECKING:
    from ..interpreter.executor import StreamExecutor


def append_step(executor: StreamExecutor, node: SglToolCall, where: Place | None) -> None:
    """A step: one gen, or what the format of the model makes of it."""
    try:
        parts = node.reading.toolbox.format_for(executor.backend).nodes(node, executor.backend)
    except Exception as error:
        raise node_failure(node, error, where) from error
    if parts is None:
        gen(executor, node, where)
        return
    dependent = any(isinstance(part, SglContinued) for part in parts)
    if dependent and not isinstance(executor.stream, GatedStream):
        executor.stream = GatedStream(executor.stream)
    for part in parts:
        apply(executor, part, where)


def append_continued(executor: StreamExecutor, node: SglContinued, where: Place | None) -> None:
    """A gen that depends on the operation before it, which went through the same gated stream."""
    piece = executor.bind(node.name, Pending(node, where))
    stream = executor.stream
    assert isinstance(stream, GatedStream)

    def request(options: SamplingOptions) -> GenRequest:
        return GenRequest(options.over(executor.options), executor.chat_template.stops, node.name, where)

    on_chunk = piece.chunk if executor.streaming else None
    timeout = node.sampling_params.over(executor.options).timeout
    executor.start(piece, 0, partial(stream.go_on, node.go_on, request, on_chunk), timeout)
