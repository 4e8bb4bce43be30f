"""Drop a table: delete its configuration, its registry records, then its objects.

First a marker file records what is dropped. A drop that crashed can continue from it, and nothing can be created at the
location before the drop has finished. A drop writes the marker, then looks for pins of clones; a clone writes its pin,
then looks for the marker. So at least one of the two sees the other.

For a table at a path, the empty registry file and the lock file remain, and a new table uses them. A stalled process
may still have them open. If they were replaced, it would hold a lock that other processes don't see, and write records
that nobody reads.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lancelsm.admin.clone import release
from lancelsm.admin.create import read_copy_marker
from lancelsm.common.layout import CLONE, CONFIG, DROPPING, TableId, snapshots, table_key
from lancelsm.dataset.base_table import find_base
from lancelsm.dataset.scrub_reads import shared_directories
from lancelsm.dataset.tags import tags
from lancelsm.errors import Corrupt, Invalid, LsmError, Unavailable
from lancelsm.gc.delete_table import cancel_drop, delete_config, delete_objects, delete_records
from lancelsm.history.pin_records import pins_of
from lancelsm.history.pins import named
from lancelsm.objects import ObjectStore, put_once
from lancelsm.objects.filesystem import TEMPORARY
from lancelsm.objects.location import is_same_location, local_path
from lancelsm.region import config as configs
from lancelsm.region.catalog import TableContext
from lancelsm.region.handle import Ports, canonical, open_configured
from lancelsm.region.lease import BASE_LEASE, lease
from lancelsm.region.lineage import TAG_PREFIX, CloneLineage, read_lineage
from lancelsm.region.markers import REMEDY, decode_marker, read_marker


def drop_table(uri: str | Path, *, storage_options: Mapping[str, str] | None, ports: Ports) -> int:
    """Delete a table: `lancelsm.drop` has the contract."""
    location = canonical(uri)
    store = ports.store(location, storage_options)
    table, kind = _find_table(store, location, storage_options)
    context = TableContext(
        uri=location,
        table=table,
        objects=store,
        registry=ports.registry(kind, uri=location, store=store, clock=ports.clock, ids=ports.ids),
        clock=ports.clock,
        ids=ports.ids,
        parallel=ports.parallel(location),
    )
    lineage = read_lineage(store)
    if lineage is not None and lineage.table != table:
        what = f"the record of the clone's source belongs to another clone, {lineage.table}"
        raise Corrupt(what, remedy=REMEDY, table=location, object=CLONE)
    with lease(context, BASE_LEASE):
        marker = {"table": table, "registry": kind}
        if lineage is not None:
            marker["created_at"] = _created_at(context)  # guard: drop remembers where its clone was created
        begun = put_once(store, DROPPING, json.dumps(marker).encode(), attempts=range(2))
        if begun is None:
            raise Unavailable("the drop could not be begun", remedy="Drop it again", table=location)
        # If the configuration is gone, an earlier call has made this check.
        if store.get(CONFIG) is not None:  # guard: drop is recorded before it looks for clones
            _check_no_clones(context, storage_options)
        delete_config(context)
        if lineage is not None:
            created_at = decode_marker(begun, DROPPING).get("created_at", "")
            _release_pin(lineage, location, created_at, storage_options=storage_options, ports=ports)
        delete_records(context)
        _remove_temporary(location)
        return delete_objects(context)


def _remove_temporary(location: str) -> None:
    """Remove the directory of temporary files if it is empty. A process that still writes creates it again."""
    path = local_path(location)
    if path is not None:
        with suppress(OSError):
            (path / TEMPORARY).rmdir()


def _find_table(store: ObjectStore, location: str, storage_options: Mapping[str, str] | None) -> tuple[TableId, str]:
    """Return id and registry of the table that exists there, is being dropped, or was begun."""
    marker, config = read_marker(store, DROPPING), configs.read(store, uri=location)
    if marker is not None:
        if config is not None and config.table != marker["table"]:
            what = f"the marker file of the drop names another table, {marker['table']}"
            raise Corrupt(what, remedy=REMEDY, table=location, object=DROPPING)
        return TableId(marker["table"]), marker["registry"]
    if config is not None:
        return config.table, config.registry
    base = find_base(uri=location, storage_options=storage_options)
    begun = read_copy_marker(store)
    if begun is not None:
        return begun
    if base is not None and base.facts is not None:
        if shared_directories(base):  # its facts may still be those of its source
            what = "a clone was begun there, but its marker file is gone"
            raise Corrupt(what, remedy="Delete the objects there by hand", table=location, object=CLONE)
        return base.facts.table, base.facts.registry
    raise configs.no_table(location)


def _check_no_clones(context: TableContext, storage_options: Mapping[str, str] | None) -> None:
    try:
        for pin in pins_of(context.registry.list(snapshots(context.table))):
            if pin.clone:
                raise _shared_by_clone(
                    context,
                    f"Drop the clone first: lancelsm drop {pin.clone}. If the clone was removed by hand, drop its "
                    f"snapshot: lancelsm snapshot drop {context.uri} --name {pin.name}",
                    snapshot=pin.name,
                )
        if find_base(uri=context.uri, storage_options=storage_options) is not None:
            for tag in tags(uri=context.uri, storage_options=storage_options):
                if tag.startswith(TAG_PREFIX):  # the tag of a clone whose pin was lost with the registry
                    clone = tag.removeprefix(TAG_PREFIX)
                    remedy = f"Drop the clone with the id {clone} first. If the clone is gone, remove its tag"
                    raise _shared_by_clone(context, remedy, tag=tag)
    except LsmError:
        cancel_drop(context)
        raise


def _shared_by_clone(context: TableContext, remedy: str, **where: str) -> Invalid:
    return Invalid("a clone shares the table's files", remedy=remedy, table=context.uri, **where)


def _created_at(context: TableContext) -> str:
    """Return the location where a table was created; empty if its record in the catalog is missing or damaged."""
    try:
        record = context.registry.read(table_key(context.table)) or {}
    except Corrupt:
        return ""
    return str(record.get("uri", ""))


def _release_pin(
    lineage: CloneLineage,
    location: str,
    created_at: str,
    *,
    storage_options: Mapping[str, str] | None,
    ports: Ports,
) -> None:
    """Remove the clone's pin in the source. A source that is gone has no pin.

    If the clone was created at another location, the table is a copy of the clone's directory, or the clone was moved.
    Then the pin stays, since other copies may need it.

    Args:
        created_at: the location where the clone was created, as far as its own registry knew before the drop.
    """
    try:
        if configs.read(ports.store(lineage.source, storage_options), uri=lineage.source) is None:
            return
        source = open_configured(lineage.source, storage_options=storage_options, ports=ports)
        pin = named(source.context, "snapshot", lineage.pin)
        known = filter(None, (created_at, "" if pin is None else pin.clone))
        original = next((one for one in known if not is_same_location(one, location)), None)
        if original is not None:  # guard: copy of a clone leaves its pin
            warnings.warn(
                f"the table was a copy of the clone at {original}, or that clone was moved: snapshot {lineage.pin} of "
                f"{lineage.source} still keeps the files of the clone. If no copy of the clone is left: lancelsm "
                f"snapshot drop {lineage.source} --name {lineage.pin}",
                stacklevel=6,  # the caller of `lancelsm.drop`
            )
            return
        release(source, lineage)
    except Invalid as error:
        raise Invalid(
            f"the clone's pin in the source could not be removed: {error.message}",
            remedy=f"Fix the error, then drop the clone again. If that is not possible: {REMEDY}",
            source=lineage.source,
            object=CLONE,
        ) from error
