"""Count the rows of a view."""

from __future__ import annotations

from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.common.trace import NO_TRACE, Trace
from lancelsm.read.reader import scan
from lancelsm.read.view import View


def count(view: View, *, uri: str, where: str | None, kept: BoundedCache, trace: Trace = NO_TRACE) -> int:
    """Count the live rows that match the condition. Reads no row if everything is merged and there is no condition.

    Args and Raises: the same as in `read.reader.scan`.
    """
    if where is None and not any(region.generations or region.tail.num_rows for region in view.regions):
        return view.base.rows
    key = view.base.schema.primary_key[:1]
    return sum(batch.num_rows for batch in scan(view, uri=uri, columns=key, where=where, kept=kept, trace=trace))
