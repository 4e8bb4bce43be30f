"""Make regions forget a producer: a repeated append of it is not found any more."""

from __future__ import annotations

from collections.abc import Sequence

from lancelsm.errors import Invalid
from lancelsm.region import producers
from lancelsm.region.catalog import Region
from lancelsm.region.handle import WriteTarget
from lancelsm.region.head import Head
from lancelsm.wal.append import append_after
from lancelsm.wal.entry import Draft, draft
from lancelsm.wal.slot import Appended


def forget_producer(found: Sequence[Region], producer: str, target: WriteTarget) -> list[tuple[Region, Head]]:
    """Append an entry without rows to each region that remembers a producer: it makes the region forget it.

    Args:
        found: the regions to look at.
        producer: its name, or its id as `lancelsm inspect manifest` shows it.

    Returns:
        The regions that remembered it, with their newest heads. A call that was interrupted may be repeated.

    Raises: the same errors as `wal.append.append`, and `Invalid` if no region remembers the producer.
    """
    heads = [(region, region.head()) for region in found]
    done = [
        (region, _forgotten(region, head, one, target))
        for region, head in heads
        for one in (producer, producers.producer_id(producer))
        if one in head.producers
    ]
    if not done:
        known = {one: producers.described(head.producers, one) for _, head in heads for one in head.producers}
        raise Invalid(
            f"no region remembers the producer {producer!r}",
            remedy=f"Give one of these: {'; '.join(known.values())}" if known else "There is nothing to forget",
            table=target.context.uri,
        )
    return done


def _forgotten(region: Region, head: Head, one: str, target: WriteTarget) -> Head:
    rows = target.schema.stored.empty_table()

    def next_draft(head: Head) -> Draft | None:
        known = one in head.producers
        return draft(rows, applied_sequences={one: producers.FORGET}, at=region.context.clock.now()) if known else None

    outcome = append_after(region, next_draft, owner=head.owner, held=head)
    return outcome.head if isinstance(outcome, Appended) else outcome
