"""Run the command line in this process as a script does: arguments in, exit code and streams out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

COMMAND = [sys.executable, "-c", "import sys; from lancelsm.cli import main; sys.exit(main())"]
ORDERS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "state": ["new", "paid", "żółć ✓"],
        "price": pa.array([1.5, None, 2.5], pa.float64()),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The only document on stdout."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Done]
Json = Callable[..., Any]


def lines(*rows: dict[str, Any]) -> str:
    """Encode rows as JSON lines."""
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
