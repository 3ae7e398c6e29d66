"""Spans for OpenTelemetry of the programs of this process: runs, gens and selects, and tools. Needs the extra `otel`.

Names and attributes are those of the semantic conventions for generative AI; others begin with "sgl.".
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from sgl.lang.backend import Backend
from sgl.lang.errors import BadValueError, shown
from sgl.lang.interpreter.run_observer import observe
from sgl.lang.interpreter.state_transcript import PendingText
from sgl.lang.interpreter.stream_executor import StreamExecutor
from sgl.lang.nodes.ir import SglGen, SglSelect

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

REQUESTED = {
    "max_tokens": "max_new_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "stop_sequences": "stop",
    "choice.count": "n",
}  # gen_ai.request.*, and how the options of a gen call it


def instrument(tracer_provider: TracerProvider | None = None, *, content: bool = False) -> None:
    """Send a span to OpenTelemetry for each run of a program, each gen and select, and each tool that a toolbox runs.

    The span of a run is part of the span that is current where it starts, and current inside the body: spans of your
    functions and of HTTP clients are parts of it. A gen's span ends when its text is complete.

    tracer_provider  an opentelemetry.sdk.trace.TracerProvider; None: the global one, which you have set up
    content          True: spans also carry texts, and the arguments and results of tools. They may be private

    Calling it again replaces the settings. `uninstrument()` ends it. Raises BadValueError where opentelemetry is not
    installed, and for what is no tracer provider.
    """
    try:
        from opentelemetry import trace
    except ImportError:
        raise BadValueError("sgl.instrument() needs opentelemetry: pip install 'sgl[otel]'") from None
    if not isinstance(tracer_provider, trace.TracerProvider | None):
        raise BadValueError(
            f"sgl.instrument({shown(tracer_provider)}): give a TracerProvider of opentelemetry, or None for the global "
            "one"
        )
    observe(ProgramSpans(trace.get_tracer("sgl", tracer_provider=tracer_provider), content))


def uninstrument() -> None:
    """Send no more spans of programs. Runs that have begun still send theirs."""
    observe(None)


class ProgramSpans:
    """Makes the spans of all programs. A `ProgramObserver` of the interpreter."""

    def __init__(self, tracer: Tracer, content: bool) -> None:
        self.tracer = tracer
        self.content = content

    def run(self, program: str, backend: Backend) -> RunSpans:
        return RunSpans(self, program, backend)

    @contextmanager
    def tool(self, name: str, arguments: Any, id: str | None) -> Iterator[Callable[[Any], None]]:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": id or None,
            "gen_ai.tool.call.arguments": _json(arguments) if self.content else None,
        }
        with self.current(f"execute_tool {name}", attributes) as span:
            yield partial(self._result, span)

    def _result(self, span: Span, result: Any) -> None:
        if self.content:
            span.set_attribute("gen_ai.tool.call.result", _json(result))

    @contextmanager
    def current(self, name: str, attributes: dict[str, Any]) -> Iterator[Span]:
        """A span that is current inside; an error that leaves it is its error."""
        with self.tracer.start_as_current_span(
            name, attributes=_known(attributes), record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                _failed(span, error)
                raise


class RunSpans:
    """Makes the spans of one run. A `RunObserver` of the interpreter."""

    def __init__(self, all: ProgramSpans, program: str, backend: Backend) -> None:
        self._all = all
        self.model = str(backend.get_model_name())
        self.provider = backend.provider
        self._span = all.tracer.start_span(f"invoke_workflow {program}", attributes=_workflow(program))

    def scope(self) -> AbstractContextManager[Span]:
        from opentelemetry.trace import use_span

        return use_span(self._span, record_exception=False, set_status_on_exception=False)

    def called(self, program: str) -> AbstractContextManager[Span]:
        return self._all.current(f"invoke_workflow {program}", _workflow(program))

    def began(self, piece: PendingText, state: StreamExecutor) -> Callable[[], None]:
        operation = "chat" if state.conversation.role else "text_completion"
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": self.provider,
            "gen_ai.request.model": self.model,
            **_requested(piece, state),
            **_where(piece, state),
        }
        span = self._all.tracer.start_span(f"{operation} {self.model}", attributes=_known(attributes))
        return partial(self._done, span, piece, time.time_ns() - time.perf_counter_ns())

    def _done(self, span: Span, piece: PendingText, epoch: int) -> None:
        """`epoch`: nanoseconds of the calendar at 0 of time.perf_counter_ns()."""
        if piece.error is not None:
            _failed(span, piece.error.__cause__ or piece.error)
        else:
            span.set_attributes(_known(_used(piece)))
            if self._all.content:
                span.set_attribute("gen_ai.output.messages", _json(_messages(piece)))
        if piece.first is not None:
            span.set_attribute("gen_ai.response.time_to_first_chunk", piece.first - piece.submitted)
        span.end(None if piece.finished is None else epoch + int(piece.finished * 1e9))

    def ended(self, error: BaseException | None) -> None:
        if error is not None:
            _failed(self._span, error)
        self._span.end()


def _workflow(program: str) -> dict[str, Any]:
    return {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": program}


def _requested(piece: PendingText, state: StreamExecutor) -> dict[str, Any]:
    node = piece.node
    if isinstance(node, SglSelect):
        return {"gen_ai.request.temperature": node.temperature, "sgl.choices": list(map(str, node.choices))}
    options = node.sampling_params.over(state.options) if isinstance(node, SglGen) else state.options
    found = {f"gen_ai.request.{name}": getattr(options, own) for name, own in REQUESTED.items() if options.asks(own)}
    kind = "json" if options.json_schema or getattr(node, "reading", None) is not None else "text"
    return {**found, "gen_ai.output.type": kind}


def _where(piece: PendingText, state: StreamExecutor) -> dict[str, Any]:
    where = piece.where
    return {
        "sgl.variable": getattr(piece.node, "name", None),
        "sgl.branch": state.branch.label,
        "code.file.path": where and where.file,
        "code.line.number": where and where.line,
    }


def _used(piece: PendingText) -> dict[str, Any]:
    usage, meta = piece.usage, piece.meta_info
    ends = [each.get("finish_reason") for each in (meta if isinstance(meta, list) else [meta or {}])]
    reasons = [end["type"] for end in ends if isinstance(end, dict) and "type" in end]
    if usage is None:
        return {"gen_ai.response.finish_reasons": reasons}
    unknown = usage.unknown
    return {
        "gen_ai.response.finish_reasons": reasons,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.generated_tokens,
        "gen_ai.usage.cache_read.input_tokens": None if "cached_tokens" in unknown else usage.cached_tokens,
        "sgl.forced_tokens": None if "forced_tokens" in unknown else usage.forced_tokens,
        "sgl.drafted_tokens": usage.drafted_tokens or None,
        "sgl.accepted_tokens": usage.accepted_tokens or None,
        "sgl.computing_seconds": usage.computing_seconds,
        "sgl.cost": usage.cost,
    }


def _messages(piece: PendingText) -> list[dict[str, Any]]:
    texts = piece.value if isinstance(piece.value, list) else [piece.value]
    return [{"role": "assistant", "parts": [{"type": "text", "content": str(text)}]} for text in texts]


def _failed(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(StatusCode.ERROR, str(error))


def _known(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value not in (None, (), [])}


def _json(value: Any) -> str:
    from pydantic_core import to_jsonable_python

    return json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)
