"""Logs and metrics of the functions: JSON lines and CloudWatch's embedded metric format, without values of rows.

Metrics have the dimension function. Each combination of dimensions costs money, so there is a dimension table only if
the deployment asks for it (`-c table_metrics=true`). Then each metric is there for all tables and for its own.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

from lancelsm.errors import LsmError

NAMESPACE = "lancelsm"
TABLE_METRICS = "LANCELSM_TABLE_METRICS"  # "true" in the environment adds the dimension table
Unit = Literal["Count", "Bytes", "Seconds", "Milliseconds"]


def load() -> None:
    """Load the logging libraries when a function starts, so that its first call does not wait for them."""
    _logger()
    _metrics()


class Telemetry:
    """Logs and metrics of one invocation. Powertools writes them.

    Own code adds up a metric over the invocation, since each value that is written is a line of the log, and keeps the
    texts of errors and events out of the log: Powertools' decorators would log them.

    Args:
        function: its name, the first dimension of every metric.
    """

    def __init__(self, *, function: str) -> None:
        self._function = function
        self.measured: dict[str, dict[str, tuple[float, Unit]]] = {}  # by table and name; table is empty for all

    def log(self, message: str, **facts: object) -> None:
        """Write one log line with names and numbers, without values of rows."""
        _logger().info(message, extra=facts)

    def failed(self, error: LsmError) -> None:
        """Log an error of `lancelsm.errors` and count it by kind."""
        _logger().warning(error.redacted, extra={"kind": error.kind, "remedy": error.remedy, "where": error.where})
        self.measure(error.kind, 1, table=str(error.where.get("table", "")))

    def bug(self, error: Exception, **facts: object) -> None:
        """Log an unexpected exception after which the function continues: type and trace, but no text, which may
        contain values of rows.

        The line starts like the runtime's own error lines, so one alarm covers both.
        """
        trace = "".join(traceback.format_tb(error.__traceback__))
        _logger().error(f"[ERROR] {type(error).__name__}", extra={"kind": "Internal", "trace": trace, **facts})

    def measure(self, name: str, value: float, *, table: str = "", unit: Unit = "Count", largest: bool = False) -> None:
        """Add to a metric of this invocation; with `largest`, keep the largest value instead of the sum."""
        for one in {"", table if os.environ.get(TABLE_METRICS) == "true" else ""}:
            measured = self.measured.setdefault(one, {})
            before, _ = measured.get(name, (0.0, unit))
            measured[name] = (max(before, value) if largest else before + value, unit)

    @contextmanager
    def invocation(self, identity: str) -> Iterator[None]:
        """Add the request id to every log line, and write the metrics at the end, also after an error."""
        _logger().append_keys(function_request_id=identity)
        try:
            yield
        finally:
            self._flush()

    def _flush(self) -> None:
        for table, measured in self.measured.items():
            metrics = _metrics()(namespace=NAMESPACE, service="")  # a service name would become a dimension
            metrics.add_dimension(name="function", value=self._function)
            if table:
                metrics.add_dimension(name="table", value=table)
            for name, (value, unit) in measured.items():
                metrics.add_metric(name=name, unit=unit, value=value)
            metrics.flush_metrics()
        self.measured.clear()


@cache
def _metrics() -> Any:
    from aws_lambda_powertools.metrics import EphemeralMetrics  # noqa: PLC0415 - optional dependency

    return EphemeralMetrics


@cache
def _logger() -> Any:
    from aws_lambda_powertools import Logger  # noqa: PLC0415 - optional dependency

    return Logger(service=os.environ.get("LANCELSM_STACK", "lancelsm"))
