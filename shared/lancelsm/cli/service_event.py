"""What a service did or met: a line of its output, a sample of its metrics, and a span."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lancelsm.cli.text import one_line
from lancelsm.common.clock import iso
from lancelsm.errors import LsmError


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that a service did or met. `error` has the kind of an error, if there was one."""

    time: float
    table: str
    step: str
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    def document(self) -> dict[str, Any]:
        return {
            "time": self._when(),
            "table": self.table,
            "step": self.step,
            "seconds": round(self.seconds, 3),
            **({"error": self.error} if self.error else {}),
            **self.facts,
        }

    def line(self) -> str:
        begin = f"{self._when()} {self.table} {self.step}"
        if self.error:
            message, remedy = (self.facts[name] for name in ("message", "remedy"))
            where = ", ".join(f"{name} {self.facts[name]}" for name in self.facts if name not in ("message", "remedy"))
            return one_line(f"{begin} {self.error}: {message}{f' [{where}]' if where else ''}. {remedy}")
        facts = " ".join(f"{name}={value}" for name, value in self.facts.items())
        return one_line(f"{begin} {facts} seconds={self.seconds:.1f}")

    def _when(self) -> str:
        return iso(self.time, digits="seconds")


def error_event(table: str, error: LsmError, *, time: float) -> Event:
    """Return the event of an error. It has no values of rows."""
    where = {name: value for name, value in error.where.items() if name != "table"}
    facts = {"message": error.redacted, "remedy": error.remedy, **where}
    return Event(time=time, table=table, step="error", facts=facts, error=error.kind)
