"""Logs and metrics of the functions: JSON lines, and CloudWatch's embedded metric format. Never a value of a row.

Metrics have the dimensions function and table, and no others: each combination costs money.
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
Unit = Literal["Count", "Bytes", "Seconds", "Milliseconds"]


def load() -> None:
    """Load what telling needs, where a function starts, so that its first call does not wait for it."""
    _logger()
    _metrics()


class Telemetry:
    """What one invocation tells of itself.

    Args:
        function: its name, the first dimension of every metric.
    """

    def __init__(self, *, function: str) -> None:
        self._function = function
        self._metrics: dict[str, dict[str, tuple[float, Unit]]] = {}

    def log(self, message: str, **facts: object) -> None:
        """One line for people who look for what happened: names and numbers, no values of rows."""
        _logger().info(message, extra=facts)

    def failed(self, error: LsmError) -> None:
        """Log an error of ours and count it by kind."""
        _logger().warning(error.redacted, extra={"kind": error.kind, "remedy": error.remedy, "where": error.where})
        self.measure(error.kind, 1, table=str(error.where.get("table", "")))

    def bug(self, error: Exception, **facts: object) -> None:
        """Log what nobody foresaw and somebody goes on after: type and trace, but not its text, which may have values.

        It starts as the runtime's own line of an error, so that one alarm hears of both.
        """
        trace = "".join(traceback.format_tb(error.__traceback__))
        _logger().error(f"[ERROR] {type(error).__name__}", extra={"kind": "Internal", "trace": trace, **facts})

    def measure(self, name: str, value: float, *, table: str, unit: Unit = "Count") -> None:
        """Add to a metric of this invocation."""
        of_table = self._metrics.setdefault(table, {})
        before, _ = of_table.get(name, (0.0, unit))
        of_table[name] = (before + value, unit)

    @contextmanager
    def invocation(self, identity: str) -> Iterator[None]:
        """Name the invocation in every log line, and write the metrics when it ends, however it does."""
        _logger().append_keys(function_request_id=identity)
        try:
            yield
        finally:
            self._flush()

    def _flush(self) -> None:
        for table, measured in self._metrics.items():
            metrics = _metrics()(namespace=NAMESPACE, service="")  # whose name would be a dimension
            metrics.add_dimension(name="function", value=self._function)
            if table:
                metrics.add_dimension(name="table", value=table)
            for name, (value, unit) in measured.items():
                metrics.add_metric(name=name, unit=unit, value=value)
            metrics.flush_metrics()
        self._metrics.clear()


@cache
def _metrics() -> Any:
    from aws_lambda_powertools.metrics import EphemeralMetrics  # noqa: PLC0415 - an extra

    return EphemeralMetrics


@cache
def _logger() -> Any:
    from aws_lambda_powertools import Logger  # noqa: PLC0415 - an extra

    return Logger(service=os.environ.get("LANCELSM_STACK", "lancelsm"))
