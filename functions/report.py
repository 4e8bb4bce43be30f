"""Draw the tables of the deployment as HTML, for the dashboard. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lancelsm.common import aws
from lancelsm.common.clock import SystemClock, SystemIds
from lancelsm.common.layout import TableId, table_key
from lancelsm.common.task_pool import in_threads
from lancelsm.errors import LsmError
from lancelsm.region.handle import open_configured
from lancelsm.registry.dynamodb import DynamoRegistry
from lancelsm.stack.function import Document, FunctionCall, function, parse_event, settings, table_uri
from lancelsm.stack.table_report.page import fragment
from lancelsm.stack.table_report.panel import order, panel
from lancelsm.stack.table_report.report_facts import ReportFacts, gather, gather_levels, unreadable

SETTINGS = settings("LANCELSM_TABLES", "LANCELSM_REGISTRY", "LANCELSM_REPORT")
CLOCK = SystemClock()
MOST_TABLES = 50
TABLES_AT_ONCE = 8
MOST_VERSIONS = 20  # of the base: each costs a few reads, and a dashboard asks again and again
DESCRIPTION = """Shows the tables of the deployment, those first that have problems or wait the longest, and the report
of the first one. With the parameter `table`, the name of a table: its report.

```yaml
table: orders
```
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What CloudWatch sends for a widget: the parameters of the widget or of a click, and `widgetContext`.

    Without `table` all tables are listed. With `describe`, the answer is the text that CloudWatch shows to a person who
    configures a widget.

    Raises:
        Invalid: the table is not in this deployment.
        Unavailable: the registry did not answer. Call it again.
    """

    table: str | None = None
    describe: bool = False
    widgetContext: dict[str, Any] = field(default_factory=dict)


@function
def handler(event: Document, call: FunctionCall) -> str:
    request = parse_event(Input, event)
    if request.describe:
        return DESCRIPTION
    root = SETTINGS["LANCELSM_TABLES"]
    theme = "dark" if request.widgetContext.get("theme") == "dark" else "light"
    if request.table is not None:
        return fragment(_read(_report, table_uri(request.table, root=root)), theme=theme)
    found = _tables(root)
    tables = order(_read_levels(found[:MOST_TABLES], until=CLOCK.monotonic() + call.seconds / 2))
    first = _read(_report, tables[0].table) if tables else None
    shown = {one.table for one in tables}
    left = [uri for uri in found if uri not in shown]
    return panel(tables, first, root=root, left=left, endpoint=SETTINGS["LANCELSM_REPORT"], theme=theme)


def _tables(root: str) -> list[str]:
    """Return the locations of the tables of this deployment; the registry may have others, too."""
    records = _registry().list(table_key(TableId("")).partition)
    root = f"{root.rstrip('/')}/"
    return sorted(uri for _, record in records if (uri := str(record.get("uri"))).startswith(root))


def _read_levels(uris: Sequence[str], *, until: float) -> list[ReportFacts]:
    """Read the levels of tables, several at a time. Leave out those that are not begun in time."""

    def read(uri: str) -> list[ReportFacts]:
        return [] if CLOCK.monotonic() >= until else [_read(_levels, uri)]

    return [one for found in in_threads(read, uris, most=TABLES_AT_ONCE) for one in found]


def _levels(uri: str) -> ReportFacts:
    return gather_levels(open_configured(uri))


def _report(uri: str) -> ReportFacts:
    return gather(open_configured(uri), is_listed=False, most_versions=MOST_VERSIONS)


def _read(read: Callable[[str], ReportFacts], uri: str) -> ReportFacts:
    """Read a table. If it does not open, the reason is in the report."""
    try:
        return read(uri)
    except LsmError as error:
        return unreadable(uri, error, time=CLOCK.now())


def _registry() -> DynamoRegistry:
    name = SETTINGS["LANCELSM_REGISTRY"].removeprefix("dynamodb:")
    return DynamoRegistry(name, client=aws.client("dynamodb"), clock=CLOCK, ids=SystemIds())
