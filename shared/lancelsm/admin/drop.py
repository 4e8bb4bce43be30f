"""Drop a table: close it, delete its records, then its objects.

What is to be deleted is noted first, so that a drop that crashed goes on, and nothing is made there until it has ended.
The note comes before a look at the pins of clones, and a clone is pinned before it looks for the note: one of the two
sees the other.
Of a table at a path the empty registry file and the lock remain; a new table takes them over. A process that stalls may
have them open: it would hold a lock that the next one to come does not see, and write records that nobody reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lancelsm.admin.clone import release
from lancelsm.admin.create import begun_copy
from lancelsm.common.layout import CLONE, CONFIG, DROPPING, TableId, snapshots
from lancelsm.compaction.maintenance import BASE
from lancelsm.dataset.base_table import find_base
from lancelsm.dataset.scrub_reads import shared_places
from lancelsm.dataset.tags import tags
from lancelsm.errors import Corrupt, Invalid, LsmError, Unavailable
from lancelsm.gc.delete_table import cancel_drop, delete_config, delete_objects, delete_records
from lancelsm.history.pins import pins_of
from lancelsm.objects import ObjectStore, put_once
from lancelsm.objects.filesystem import TEMPORARY
from lancelsm.objects.open import local_path
from lancelsm.region import config as configs
from lancelsm.region.catalog import TableContext
from lancelsm.region.handle import Ports, canonical, open_configured
from lancelsm.region.lease import lease
from lancelsm.region.lineage import TAGS, CloneLineage, read_lineage
from lancelsm.region.markers import REMEDY, read_marker


def drop_table(uri: str | Path, *, storage_options: Mapping[str, str] | None = None, ports: Ports | None = None) -> int:
    """Delete a table with its rows, snapshots and cursors, or what a crash left of one that was being made.

    Stop its writers first: what they write later is lost, and may lie there for ever.

    Returns:
        How many objects were deleted.

    Raises:
        Invalid: no table is there; or a clone shares its files; or it is a clone, and its source can't be reached.
        Corrupt: it is a clone, and what it says of its source is wrong or gone; or the note of the drop is wrong.
        Contended: a merge is under way, nothing was deleted; or another process has dropped the table.
        Unavailable: drop it again, which goes on.

    A crash at any line leaves a table that can be opened as before, or one that can't and that the same call drops.
    """
    ports, place = ports or Ports(), canonical(uri)
    store = ports.store(place, storage_options)
    table, kind = _doomed(store, place, storage_options)
    context = TableContext(
        uri=place,
        table=table,
        objects=store,
        registry=ports.registry(kind, uri=place, store=store, clock=ports.clock, ids=ports.ids),
        clock=ports.clock,
        ids=ports.ids,
        parallel=ports.parallel,
    )
    lineage = read_lineage(store)
    if lineage is not None and lineage.table != table:
        what = f"what the clone remembers of its source is of another clone, {lineage.table}"
        raise Corrupt(what, remedy=REMEDY, table=place, object=CLONE)
    with lease(context, BASE):
        marker = json.dumps({"table": table, "registry": kind}).encode()
        if put_once(store, DROPPING, marker, attempts=range(2)) is None:
            raise Unavailable("the drop could not be begun", remedy="Drop it again", table=place)
        if store.get(CONFIG) is not None:  # else that was asked before it was closed
            _check_unshared(context, storage_options)
        delete_config(context)
        if lineage is not None:
            _release(lineage, storage_options=storage_options, ports=ports)
        delete_records(context)
        _remove_temporary(place)
        return delete_objects(context)


def _remove_temporary(place: str) -> None:
    """Remove the directory of temporary files, if none is left: whoever still writes makes it again."""
    path = local_path(place)
    if path is not None:
        with suppress(OSError):
            (path / TEMPORARY).rmdir()


def _doomed(store: ObjectStore, place: str, storage_options: Mapping[str, str] | None) -> tuple[TableId, str]:
    """Id and registry of the table that is there, or that was being dropped or made."""
    marker, config = read_marker(store, DROPPING), configs.read(store, uri=place)
    if marker is not None:
        if config is not None and config.table != marker["table"]:
            what = f"another table, {marker['table']}, is noted as being dropped"
            raise Corrupt(what, remedy=REMEDY, table=place, object=DROPPING)
        return TableId(marker["table"]), marker["registry"]
    if config is not None:
        return config.table, config.registry
    base = find_base(uri=place, storage_options=storage_options)
    begun = begun_copy(store)
    if begun is not None:
        return begun
    if base is not None and base.facts is not None:
        if shared_places(base):  # its facts may be those of its source still
            what = "a clone was begun there, and what says of which table is gone"
            raise Corrupt(what, remedy="Delete by hand what is there", table=place, object=CLONE)
        return base.facts.table, base.facts.registry
    raise Invalid("no table is there", remedy="Check the place", table=place)


def _check_unshared(context: TableContext, storage_options: Mapping[str, str] | None) -> None:
    try:
        for pin in pins_of(context.registry.list(snapshots(context.table))):
            if pin.clone:
                raise _shared(
                    context,
                    f"Drop the clone first: lancelsm drop {pin.clone}. If it was removed by hand, end what is kept for "
                    f"it: lancelsm snapshot drop {context.uri} --name {pin.name}",
                    snapshot=pin.name,
                )
        if find_base(uri=context.uri, storage_options=storage_options) is not None:
            for tag in tags(uri=context.uri, storage_options=storage_options):
                if tag.startswith(TAGS):  # of a clone that a lost registry knew
                    remedy = f"Drop the clone with the id {tag.removeprefix(TAGS)} first; if it is gone, remove its tag"
                    raise _shared(context, remedy, tag=tag)
    except LsmError:
        cancel_drop(context)
        raise


def _shared(context: TableContext, remedy: str, **where: str) -> Invalid:
    return Invalid("a clone shares its files", remedy=remedy, table=context.uri, **where)


def _release(lineage: CloneLineage, *, storage_options: Mapping[str, str] | None, ports: Ports) -> None:
    """End the pin in the source; a source that is gone has none."""
    try:
        if configs.read(ports.store(lineage.source, storage_options), uri=lineage.source) is not None:
            release(open_configured(lineage.source, storage_options=storage_options, ports=ports), lineage)
    except Invalid as error:
        raise Invalid(
            f"the source can't be told that its clone is gone: {error.message}",
            remedy=f"Correct that, then drop the clone again; if that can't be: {REMEDY}",
            source=lineage.source,
            object=CLONE,
        ) from error
