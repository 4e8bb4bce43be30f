"""Finish a change of the columns that is committed in the base: the configuration, then the heads.

The base decides. Its history has the change from the commit on, and every read takes the columns of the base. The
configuration follows, for writers that know nothing else. Then each head names the version, and writers read the
configuration again. A crash leaves an older configuration or older heads, which loses nothing: rows name the version
that they were written under, and readers, flushes and merges convert them. The next process that opens the table
finishes the change. Model: tests/model/schema_change.py.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lancelsm.errors import Contended, LsmError
from lancelsm.region import config as configs
from lancelsm.region import head as heads
from lancelsm.region.catalog import Region, regions, with_heads
from lancelsm.region.config import Config
from lancelsm.region.head import Head

if TYPE_CHECKING:
    from lancelsm.dataset.base_table import BaseTable
    from lancelsm.region.handle import TableHandle


def finish_change(handle: TableHandle, base: BaseTable) -> TableHandle:
    """Bring configuration and heads to the columns of a base. Return the handle with these columns. Idempotent.

    Raises:
        Contended: other processes kept changing the configuration or a head. Finish it again.
        Corrupt: base and configuration disagree about how the columns changed.
        Unavailable: the store or the registry did not answer. Finish it again.
    """
    handle = handle.with_columns_of(base)
    schema, context = handle.config.schema, handle.context

    def changed(present: Config) -> Config:
        is_older = present.schema.version < schema.version  # guard: configuration takes no older columns
        return replace(present, schema=schema) if is_older else present

    # Configuration before heads: a writer that finds a newer version in a head reads the configuration.
    configs.change(context.objects, changed, uri=context.uri, budget=context.budget())
    context.each(lambda pair: raise_version(*pair, schema.version), with_heads(context, regions(context)))
    return handle


def finish_if_begun(handle: TableHandle, base: BaseTable) -> TableHandle:
    """Finish a change that another process began, if its configuration is not written yet.

    Does not fail if this process may not write, or another one is faster: no read and no write depends on it.
    """
    if base.schema.version <= handle.config.schema.version:
        return handle
    with suppress(LsmError):
        return finish_change(handle, base)
    return handle.with_columns_of(base)


def raise_version(region: Region, head: Head, version: int) -> Head:
    """Name a version of the columns in a head, if it names an older one. Return the newest head that was seen.

    Args:
        version: the configuration has it, or a newer one: writers read it then.

    Raises:
        Contended: other processes kept changing it.
        Unavailable: the registry did not answer.
    """
    for _ in region.context.budget().attempts():
        step = heads.evolved(head, version)
        if step is None:
            return head
        outcome = region.swap(step)
        head = outcome if isinstance(outcome, Head) else region.head_after(outcome)
    raise Contended("the head of a region kept changing", remedy="Retry: what is done stays", **region.where)
