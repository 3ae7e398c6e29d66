"""Spans for OpenTelemetry: one a request, and within it one for what the model did. Needs the extra `otel`."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context

from sgl.runtime.errors import ConfigError

from ..sgl_version import own_version
from .request_record import RequestRecord

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/embeddings": "embeddings",
}  # else: text_completion
OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
REQUESTED = ("max_tokens", "temperature", "top_p", "seed")  # of SamplingParams, named there as in the conventions
SERVICE = "sgl"
SECOND = 1_000_000_000  # nanoseconds


class Tracing:
    """Makes the spans of a request when it has ended. Those of a trace that the client began are parts of it."""

    def __init__(self, exporter: SpanExporter, model: str) -> None:
        self._model = model
        self._provider = TracerProvider(resource=_resource())
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(SERVICE)

    @classmethod
    def from_environment(cls, model: str) -> Tracing:
        """With the exporter that OTEL_TRACES_EXPORTER names; OTLP, by OTEL_EXPORTER_OTLP_PROTOCOL, where it is not set.

        Raises ConfigError where that exporter is not installed.
        """
        return cls(_exporter(), model)

    def finished(self, record: RequestRecord, headers: Mapping[str, str]) -> None:
        """A request has ended that came with these headers."""
        parent = propagate.extract(headers)
        span = self._span(f"{record.method} {record.route}", parent, SpanKind.SERVER, record, _http_attributes(record))
        if record.worked:
            self._model_span(record, set_span_in_context(span, parent))
        _end(span, record)

    def close(self) -> None:
        """Send what waits."""
        self._provider.shutdown()

    def _model_span(self, record: RequestRecord, parent: Context) -> None:
        operation = OPERATIONS.get(record.route, "text_completion")
        attributes = _model_attributes(record, operation, self._model)
        span = self._span(f"{operation} {self._model}", parent, SpanKind.INTERNAL, record, attributes)
        if record.first_token_seconds is not None:
            span.add_event("first token", timestamp=_moment(record, record.first_token_seconds))
        _end(span, record)

    def _span(
        self, name: str, parent: Context, kind: SpanKind, record: RequestRecord, attributes: dict[str, Any]
    ) -> Span:
        return self._tracer.start_span(name, parent, kind, attributes, start_time=_moment(record, 0.0))


def _end(span: Span, record: RequestRecord) -> None:
    if record.status >= 400:
        span.set_attribute("error.type", record.error or str(record.status))
    if record.status >= 500:
        span.set_status(StatusCode.ERROR)
    span.end(_moment(record, record.seconds))


def _moment(record: RequestRecord, seconds: float) -> int:
    """Nanoseconds of the calendar, so long after the request came."""
    return int((record.clock + seconds) * SECOND)


def _http_attributes(record: RequestRecord) -> dict[str, Any]:
    return {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "sgl.request.id": record.id,
        "sgl.tenant": record.tenant,
        **({"sgl.adapter": record.adapter} if record.adapter else {}),
    }


def _model_attributes(record: RequestRecord, operation: str, model: str) -> dict[str, Any]:
    """By the semantic conventions for generative models; what is not one of theirs begins with "sgl."."""
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "sgl",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        **{f"gen_ai.request.{name}": getattr(record.params, name, None) for name in REQUESTED},
        "gen_ai.response.finish_reasons": record.finish_reasons,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.response.time_to_first_chunk": record.first_token_seconds,
        "sgl.queue_seconds": record.queue_seconds,
        "sgl.forced_tokens": record.forced_tokens,
        "sgl.drafted_tokens": record.drafted_tokens,
        "sgl.accepted_tokens": record.accepted_tokens,
    }
    return {name: value for name, value in found.items() if value is not None}


def _resource() -> Resource:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES name the service; without them it is "sgl"."""
    own = {"service.version": own_version()}
    if SERVICE_NAME not in OTELResourceDetector().detect().attributes:
        own[SERVICE_NAME] = SERVICE
    return Resource.create(own)


def _exporter() -> SpanExporter:
    name = os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip()
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    wanted = OTLP.get(protocol or "http/protobuf", name) if name == "otlp" else name
    found = importlib.metadata.entry_points(group="opentelemetry_traces_exporter", name=wanted)
    if not found:
        raise ConfigError(
            f"there is no exporter {wanted!r} for traces; pip install 'sgl[otel]', "
            "or set OTEL_TRACES_EXPORTER to one that is installed"
        )
    return next(iter(found)).load()()
