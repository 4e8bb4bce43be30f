"""Change the time to live of the rows of a table: one commit of the base, in its schema metadata.

A strong read learns it with the newest version of the base. A merge that began before is planned again
(`compaction.merge`), so rows are removed only by the time to live that is in force.
"""

from __future__ import annotations

from lancelsm.dataset.base_rows import Base, CommittedVersion, commit
from lancelsm.dataset.base_table import TTL
from lancelsm.errors import Contended, Unavailable, error_context
from lancelsm.record.ttl import Ttl, parse_ttl
from lancelsm.region.handle import TableHandle, check_base


def set_ttl(handle: TableHandle, ttl: str | None) -> Ttl | None:
    """Set the time to live of the rows of a table; None removes it.

    Args:
        ttl: a duration and a column of timestamps or dates, such as `7d on created_at`.

    Returns:
        What is in force from now on.

    Raises:
        Invalid: the text is not valid for this table.
        Contended, Unavailable: it may not be set; set it again.
        Corrupt: the base belongs to another table, or can't be read.

    A call that is repeated changes nothing. A crash leaves the old value or the new one.
    """
    context = handle.context
    problem: Unavailable | None = None
    with error_context(table=context.uri):
        for _ in context.budget().attempts():
            base = handle.read_base()
            check_base(base, handle.config)
            wanted = None if ttl is None else parse_ttl(ttl, base.schema.columns)
            text = "" if wanted is None else wanted.text
            if base.metadata.get(TTL, "") == text:
                return wanted
            others = {name: value for name, value in base.metadata.items() if name != TTL}
            metadata = {**others, TTL: text} if text else others
            try:
                outcome = commit(Base.of(base), changed={}, new=(), metadata=metadata, properties={TTL: text})
            except Unavailable as error:  # it may be committed: the next try reads the base
                problem = error
                continue
            if isinstance(outcome, CommittedVersion):
                return wanted
    raise problem or Contended("other processes kept changing the base", remedy="Set it again", table=context.uri)
