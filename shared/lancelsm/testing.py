"""Tables on a clock, stores and registries of a test.

    from lancelsm.testing import Ports, open_on

    table = open_on(Ports(clock=my_clock), "orders")

`Ports` says how the store, the registry, the clock and the ids of a table are created. Every public call that creates
or opens a table takes other ones by its attribute `on`: `lancelsm.restore.on(ports)(backup, uri)`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lancelsm.common.clock import Clock, Ids
from lancelsm.region.handle import Ports
from lancelsm.table import Table, create, open  # noqa: A004 - as users call them

__all__ = ["Clock", "Ids", "Ports", "create_on", "open_on"]


def create_on(ports: Ports, uri: str | Path, data_or_schema: Any, **options: Any) -> Table:
    """Create a table as `lancelsm.create` does, on these ports."""
    return create.on(ports)(uri, data_or_schema, **options)


def open_on(ports: Ports, uri: str | Path, **options: Any) -> Table:
    """Open a table as `lancelsm.open` does, on these ports."""
    return open.on(ports)(uri, **options)
