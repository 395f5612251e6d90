"""What the server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

from ringflow.infer.serve.served import ServedModel

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_EVENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_ELEMENTS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)


class Metrics:
    """The counters of one server, apart from those of any other in the process."""

    def __init__(self, model: ServedModel, waiting: Callable[[], int]) -> None:
        self._registry = own = CollectorRegistry()
        self._requests = Counter(
            "ringflow_requests",
            "Inference requests by HTTP status; 499 is a client that left",
            ["status"],
            registry=own,
        )
        self._latency = Histogram(
            "ringflow_request_seconds", "From the head of a request to its answer", buckets=_SECONDS, registry=own
        )
        self._computing = Histogram("ringflow_batch_seconds", "Computing of a batch", buckets=_SECONDS, registry=own)
        self._events = Histogram("ringflow_batch_events", "Events computed at a time", buckets=_EVENTS, registry=own)
        self._elements = Histogram(
            "ringflow_batch_elements", "Elements computed at a time", buckets=_ELEMENTS, registry=own
        )
        self._total_events = Counter("ringflow_computed_events", "Events computed", registry=own)
        self._total_elements = Counter("ringflow_computed_elements", "Elements computed", registry=own)
        Gauge("ringflow_queue_requests", "Requests that wait to be computed", registry=own).set_function(waiting)
        Info("ringflow_model", "The model", registry=own).info(
            {
                "name": model.name,
                "engine": model.engine,
                "detector": model.description.detector or "",
                "weights_sha256": model.description.weights_sha256,
                "ringflow_version": model.description.ringflow,
            }
        )
        ProcessCollector(registry=self._registry)

    def answered(self, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(str(status)).inc()
        self._latency.observe(seconds)

    def computed(self, events: int, elements: int, seconds: float) -> None:
        """Count a batch."""
        self._events.observe(events)
        self._elements.observe(elements)
        self._computing.observe(seconds)
        self._total_events.inc(events)
        self._total_elements.inc(elements)

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self._registry)
