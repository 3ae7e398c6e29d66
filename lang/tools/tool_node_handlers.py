"""What the nodes of a step with tools do to a state."""

from __future__ import annotations

from functools import partial

from ..backend import Generated, GenRequest
from ..errors import node_failure
from ..interpreter.node_handlers import Rule, apply, gen
from ..interpreter.state_transcript import PendingText
from ..interpreter.state_writer import StateWriter
from ..interpreter.text_limit_check import check_limit
from ..nodes.ir import SglExpr, SglPastCalls, SglTools, flatten
from ..nodes.primitives import role_turn
from ..places.source_location import SourceLocation
from ..sampling.options import SamplingOptions
from ..sampling.text_limits import with_limit
from .formats import as_written, choose_format
from .gated_stream import GatedStream
from .tool_nodes import SglContinued, SglToolCall


def append_description(executor: StateWriter, node: SglTools, where: SourceLocation | None) -> None:
    """The description of the tools for the model, in a separate system turn where no turn is open."""
    text = as_written(node.toolbox.describe(executor.backend))
    for part in flatten(text if executor.conversation.role else role_turn("system", text), executor):
        apply(executor, part, where)


def append_past_calls(executor: StateWriter, node: SglPastCalls, where: SourceLocation | None) -> None:
    """Calls that were made earlier, as the format of the model writes them."""
    format = node.format or choose_format(executor.backend)
    for part in format.past(node.text, node.calls):
        apply(executor, part, where)


def append_step(executor: StateWriter, node: SglToolCall, where: SourceLocation | None) -> None:
    """A step: one gen, or what the format of the model makes of it."""
    try:
        parts = node.reading.toolbox.nodes_of(node, executor.backend)
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


def append_continued(executor: StateWriter, node: SglContinued, where: SourceLocation | None) -> None:
    """A gen that depends on the operation before it, which went through the same gated stream."""
    piece = executor.bind(node.name, PendingText(node, where))
    stream = executor.stream
    assert isinstance(stream, GatedStream)

    asked: list[SamplingOptions] = []

    def request(options: SamplingOptions) -> GenRequest:
        asked.append(with_limit(options.over(executor.options), typed=True))
        return GenRequest(asked[-1], executor.chat_template.stops, node.name, where)

    def check(made: Generated) -> None:
        for options in asked:
            check_limit(node, options, executor.backend, where, made)

    on_chunk = piece.chunk if executor.streaming else None
    timeout = node.sampling_params.over(executor.options).timeout
    executor.start(piece, 0, partial(stream.go_on, node.go_on, request, on_chunk), timeout, check=check)


TOOL_RULES: dict[type[SglExpr], Rule] = {
    SglTools: append_description,
    SglPastCalls: append_past_calls,
    SglToolCall: append_step,
    SglContinued: append_continued,
}
