"""Record the steps of a service as spans of OpenTelemetry, if it is installed.

The spans go to the tracer provider of the process, which `opentelemetry-instrument` configures from the environment.
Without one they go nowhere.
"""

from __future__ import annotations

from collections.abc import Callable

from lancelsm.cli.service_event import Event

_NANOSECONDS = 1_000_000_000


def span_recorder() -> Callable[[Event], None] | None:
    """Return a function that records an event as a span; None if OpenTelemetry is not installed."""
    try:
        from opentelemetry import trace
        from opentelemetry.trace import Status, StatusCode
    except ModuleNotFoundError:
        return None
    tracer = trace.get_tracer("lancelsm")

    def record(event: Event) -> None:
        facts = {f"lancelsm.{name}": value for name, value in event.facts.items()}
        began = round((event.time - event.seconds) * _NANOSECONDS)
        attributes = {"lancelsm.table": event.table, **facts}
        span = tracer.start_span(f"lancelsm {event.step}", start_time=began, attributes=attributes)
        if event.error:
            span.set_status(Status(StatusCode.ERROR, event.error))
        span.end(end_time=round(event.time * _NANOSECONDS))

    return record
