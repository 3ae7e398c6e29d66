"""What Prometheus scrapes: the engine's counters, and the latencies and sizes of requests as clients see them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from sgl.runtime.engine import Engine
from sgl.runtime.errors import RuntimeFailure
from sgl.runtime.watch.engine_stats import STEP_BOUNDS, Stats

from .request_record import RequestRecord

WAITS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)  # seconds
GAPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 5)
LENGTHS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
COMPILES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
IDLE_WINDOW = 60.0  # seconds over which the idle share is taken


class ServerMetrics:
    """The metrics of one server, in their own registry.

    The observing methods are thread-safe and take microseconds.
    """

    def __init__(self, engine: Engine, allows: Callable[[str], bool] = lambda name: True) -> None:
        """allows: whether the reader of a page may see the name of an adapter."""
        self.registry = _Registry(allows)
        self._requests = self._counter("sgl_requests", "Answered requests", "route", "status")
        self._refused = self._counter("sgl_refused_requests", "Requests answered with an error, by its code", "reason")
        self._adapted = self._counter("sgl_adapter_requests", "Requests that an adapter computed", "adapter")
        self._generated = self._counter("sgl_adapter_generated_tokens", "Tokens of their results", "adapter")
        self._first = self._histogram(
            "sgl_time_to_first_token_seconds", "From a request's arrival to its first token", WAITS
        )
        self._gaps = self._histogram("sgl_inter_token_seconds", "Between tokens of a stream after the first", GAPS)
        self._seconds = self._histogram("sgl_request_seconds", "From a request's arrival to its end", LENGTHS, "route")
        self._queued = self._histogram("sgl_queue_seconds", "Until a request's samples had a place in the batch", WAITS)
        self._compiles = self._histogram(
            "sgl_grammar_compile_seconds", "To compile a grammar that was not kept", COMPILES
        )
        self.registry.register(EngineCollector(engine))

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """All of it in the format that the header Accept asks for, and that format's media type."""
        encode, media_type = choose_encoder(accept)
        return encode(self.registry), media_type

    def gap(self, seconds: float, tokens: int) -> None:
        """So many tokens of a stream have come, each so long after the one before."""
        for _ in range(tokens):
            self._gaps.observe(seconds)

    def compiled(self, seconds: float) -> None:
        """A grammar was compiled."""
        self._compiles.observe(seconds)

    def finished(self, record: RequestRecord) -> None:
        """A request has ended."""
        self._requests.labels(record.route, str(record.status)).inc()
        if record.status >= 400:
            self._refused.labels(record.error or str(record.status)).inc()
        if not record.worked:
            return
        if record.adapter is not None:
            self._adapted.labels(record.adapter).inc()
            self._generated.labels(record.adapter).inc(record.completion_tokens)
        self._seconds.labels(record.route).observe(record.seconds)
        if record.first_token_seconds is not None:
            self._first.observe(record.first_token_seconds)
        if record.queue_seconds is not None:
            self._queued.observe(record.queue_seconds)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=bounds)


class _Registry(CollectorRegistry):
    """Without the moments at which series began, they would be as many again, and without adapters where there are
    none, or none to be seen.
    """

    def __init__(self, allows: Callable[[str], bool]) -> None:
        super().__init__()
        self._allows = allows

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            metric.samples = [
                sample
                for sample in metric.samples
                if not sample.name.endswith("_created") and self._allows_all(sample.labels)
            ]
            if metric.samples or not metric.name.startswith("sgl_adapter_"):
                yield metric

    def _allows_all(self, labels: Mapping[str, str]) -> bool:
        return "adapter" not in labels or self._allows(labels["adapter"])


class EngineCollector(Collector):
    """Reads the engine's counters when it is asked. Where the engine is gone, those that were read last."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stats = Stats()
        self._up = True
        self._busy: deque[tuple[float, float]] = deque([(time.monotonic(), engine.glance().step_seconds)])

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        self._read()
        stats = self._stats
        yield GaugeMetricFamily("sgl_engine_up", "Whether the engine runs: 1 or 0", self._up)
        yield GaugeMetricFamily("sgl_running_sequences", "Sequences computed in every step", stats.running)
        yield GaugeMetricFamily("sgl_waiting_sequences", "Sequences with work and no place in the batch", stats.waiting)
        yield GaugeMetricFamily("sgl_kv_usage_ratio", "Share of the KV pool that sequences hold", _usage(stats))
        yield GaugeMetricFamily(
            "sgl_cache_hit_ratio", "Share of prompt tokens that came from the prefix cache", stats.hit_rate
        )
        yield GaugeMetricFamily("sgl_idle_ratio", "Share of the last minute without a step", self._idle())
        yield CounterMetricFamily("sgl_computed_tokens", "Tokens that went through the model", stats.computed_tokens)
        yield CounterMetricFamily("sgl_cached_tokens", "Prompt tokens taken from the prefix cache", stats.cached_tokens)
        yield CounterMetricFamily(
            "sgl_generated_tokens", "Tokens of results, sampled and forced", stats.generated_tokens
        )
        yield CounterMetricFamily("sgl_forced_tokens", "Tokens appended without sampling", stats.forced_tokens)
        yield CounterMetricFamily("sgl_drafted_tokens", "Tokens guessed ahead", stats.drafted_tokens)
        yield CounterMetricFamily("sgl_accepted_tokens", "Guessed tokens that were kept", stats.accepted_tokens)
        yield CounterMetricFamily("sgl_preemptions", "Running sequences that lost their pages", stats.preemptions)
        yield CounterMetricFamily("sgl_aborts", "Sequences whose owner gave them up", stats.aborts)
        yield from _of_adapters(stats)
        yield HistogramMetricFamily("sgl_step_seconds", "Steps of the engine", _buckets(stats), stats.step_seconds)

    def _read(self) -> None:
        self._up = self._engine.up
        try:
            self._stats = self._engine.glance()
        except RuntimeFailure:
            pass

    def _idle(self) -> float:
        """Since the reading that is a minute old, or the oldest; several readers share them."""
        now, busy = time.monotonic(), self._stats.step_seconds
        while len(self._busy) > 1 and now - self._busy[1][0] >= IDLE_WINDOW:
            self._busy.popleft()
        then, busy_then = self._busy[0]
        if now - self._busy[-1][0] >= 1:
            self._busy.append((now, busy))
        return min(1.0, max(0.0, 1 - (busy - busy_then) / max(now - then, 1e-3)))


def _of_adapters(stats: Stats) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
    """Of engines that have some loaded, by name where it is one's own."""
    adapters = stats.adapters
    if not adapters.get("loaded"):
        return
    opened = CounterMetricFamily(
        "sgl_adapter_sequences", "Sequences that were opened with an adapter", labels=["adapter"]
    )
    used = GaugeMetricFamily(
        "sgl_adapter_open_sequences", "Sequences that are open with an adapter", labels=["adapter"]
    )
    for name, of_name in adapters["by_name"].items():
        opened.add_metric([name], of_name["opened"])
        used.add_metric([name], of_name["uses"])
    yield from (opened, used)
    yield CounterMetricFamily(
        "sgl_adapter_slot_hits", "Sequences that found their adapter on the device", adapters["hits"]
    )
    yield CounterMetricFamily("sgl_adapter_slot_misses", "Sequences that waited for their adapter", adapters["misses"])
    yield CounterMetricFamily(
        "sgl_adapter_slot_evictions", "Adapters that left the device for others", adapters["slot_evictions"]
    )
    yield GaugeMetricFamily("sgl_adapter_host_bytes", "Main memory that adapters take", adapters["host_bytes"])
    yield GaugeMetricFamily(
        "sgl_adapter_device_bytes", "Memory of the device that slots take", adapters["device_bytes"]
    )


def _usage(stats: Stats) -> float:
    used = stats.pages_total - stats.pages_free - stats.pages_cached
    return used / stats.pages_total if stats.pages_total else 0.0


def _buckets(stats: Stats) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in STEP_BOUNDS), "+Inf"]
    return list(zip(bounds, accumulate(stats.step_counts), strict=True))
