"""Make a region forget a producer: a repeated append of it is not found any more."""

from __future__ import annotations

from lancelsm.errors import Invalid
from lancelsm.region import producers
from lancelsm.region.catalog import Region
from lancelsm.region.handle import WriteTarget
from lancelsm.region.head import Head
from lancelsm.wal.append import append_after
from lancelsm.wal.entry import Draft, draft
from lancelsm.wal.slot import Appended


def forget_producer(region: Region, producer: str, target: WriteTarget) -> Head:
    """Append an entry without rows that makes the region forget a producer. Return the newest head.

    Args:
        producer: its name, or its id as `lancelsm inspect manifest` shows it.

    Raises: the same errors as `wal.append.append`, and `Invalid` if the region does not remember the producer.
    """
    head = region.head()
    one = producer if producer in head.producers else producers.producer_id(producer)
    if one not in head.producers:
        known = ", ".join(producers.described(head.producers, known) for known in head.producers)
        raise Invalid(
            f"the region remembers no producer {producer!r}",
            remedy=f"Give one of these: {known}" if known else "There is nothing to forget",
            **region.where,
        )
    rows = target.schema.stored.empty_table()

    def next_draft(head: Head) -> Draft | None:
        known = one in head.producers
        return draft(rows, applied_sequences={one: producers.FORGET}, at=region.context.clock.now()) if known else None

    outcome = append_after(region, next_draft, owner=head.owner, held=head)
    return outcome.head if isinstance(outcome, Appended) else outcome
