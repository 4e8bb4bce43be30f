"""The checks of one table: it opens, its base belongs to it, its regions can be read, its backlog is short."""

from __future__ import annotations

from collections.abc import Mapping

from lancelsm.errors import LsmError
from lancelsm.region.catalog import regions, with_heads
from lancelsm.region.handle import TableHandle, check_base, open_configured
from lancelsm.stack.doctor import Check, evaluate


def table_checks(uri: str, *, storage_options: Mapping[str, str] | None = None) -> list[Check]:
    """Run checks until one fails that later ones depend on.

    Reads a few small objects, the heads, and the newest base version.
    """
    found: list[Check] = []
    try:
        handle = open_configured(uri, storage_options=storage_options)
        found.append(Check(name="configuration", ok=True, found=f"{handle.config.registry}, {handle.config.table}"))
        base = handle.read_base()
        check_base(base, handle.config)
        found.append(Check(name="base", ok=True, found=f"version {base.version}"))
        found.append(_regions(handle))
    except LsmError as error:
        name = ("configuration", "base", "regions")[len(found)]
        found.append(Check(name=name, ok=False, found=f"{error.kind}: {error.message}", remedy=error.remedy))
    return found


def _regions(handle: TableHandle) -> Check:
    heads = [head for _, head in with_heads(handle.context, regions(handle.context))]
    pending = max((head.pending_generations for head in heads), default=0)
    slow = handle.settings.pending_generations_slow
    merge = f"Merge: lancelsm merge {handle.context.uri}"
    return evaluate(
        "regions",
        f"{len(heads)} with a head, at most {pending} generations to merge",
        (pending >= slow, f"{pending} generations wait to be merged, appends slow down from {slow}", merge),
    )
