"""Scrub the base: compare facts with the configuration and counters with the regions, and read its files.

A file is summed and compared with the statement of files (`dataset.statement`). Without a line there, it counts as
correct if Lance reads the right number of rows, of the right types, and with distinct keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from lancelsm.common.layout import CLONE, CONFIG, NO_GENERATION, STATEMENTS, statement_version, table_key
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.base_table import DELETES, BaseTable, open_base
from lancelsm.dataset.deleted_keys import check_deletes
from lancelsm.dataset.merged_generations import read_markers
from lancelsm.dataset.scrub_reads import (
    VERSIONS,
    BaseDirectories,
    BaseDirectory,
    Wrong,
    examine_base,
    examine_indexes,
    shared_directories,
)
from lancelsm.dataset.statement import (
    FILES,
    StatedFile,
    files_of,
    manifest_line,
    read_statement,
    sum_manifest,
)
from lancelsm.dataset.tags import tags
from lancelsm.errors import Corrupt, Invalid
from lancelsm.gc.base_check import exists
from lancelsm.gc.lists import read_list
from lancelsm.history import pins
from lancelsm.history.pin_records import Pin
from lancelsm.history.snapshot import tag_of
from lancelsm.objects import ObjectStore
from lancelsm.objects.open import open_store
from lancelsm.read.view import mismatch
from lancelsm.region.base_checked import read_checked
from lancelsm.region.handle import TableHandle, check_base, check_table
from lancelsm.region.lineage import read_lineage
from lancelsm.registry import Record
from lancelsm.scrubbing.region import RegionScrub
from lancelsm.scrubbing.report import ObjectKind, Tally, problem_of, record_path

_TAGS = "_refs/tags"  # where Lance stores tags
_TRIES = 5
_KINDS = {"data": ObjectKind.BASE_FILE, "_deletions": ObjectKind.DELETION, "_indices": ObjectKind.INDEX}


def open_version(handle: TableHandle, version: int | None, tally: Tally) -> BaseTable | None:
    """Open a version of the base, the newest by default; None if it is damaged or belongs to another table."""
    tally.count()
    try:
        base = _read_version(handle, version)
        if base.facts is not None and base.facts.table != handle.config.table:
            tally.add(
                CONFIG, ObjectKind.CONFIG, f"it belongs to table {handle.config.table}, the base to {base.facts.table}"
            )
        if version is None:
            check_base(base, handle.config)
        else:
            check_table(base, handle.config)
    except (Corrupt, Invalid) as error:
        config = error.where.get("object") == CONFIG
        tally.add(CONFIG if config else VERSIONS, ObjectKind.CONFIG if config else ObjectKind.BASE, problem_of(error))
        return None
    if version is None and not _fits(handle, base):
        tally.add(CONFIG, ObjectKind.CONFIG, "its schema is not that of the base")
    return base


def _read_version(handle: TableHandle, version: int | None) -> BaseTable:
    """Call `open_base`; retry for the newest version, which may be cleaned up between its listing and its reading."""
    try:
        return open_base(uri=handle.context.uri, version=version, storage_options=handle.storage_options)
    except (Corrupt, Invalid):
        if version is not None:
            raise
        return handle.read_base()


def scrub_facts(handle: TableHandle, base: BaseTable, states: Iterable[RegionScrub], tally: Tally) -> None:
    """Compare counters with the newest generations, and markers with counters."""
    states = list(states)
    for state in states:
        if state.manifest is not None and mismatch(state.manifest, base) and (problem := _mismatch(handle, state)):
            tally.add(VERSIONS, ObjectKind.BASE, problem)
    try:
        markers = read_markers(objects=handle.context.objects, version=base.version)
    except Corrupt as error:
        if exists(base):
            tally.add(str(error.where.get("object", VERSIONS)), ObjectKind.BASE, problem_of(error))
        return
    known = {state.region.id for state in states}  # other tools may merge shards of their own
    for region, marker in (markers.merged if markers else {}).items():
        if region in known and marker > (counter := base.counters.get(region, NO_GENERATION)):
            tally.add(
                VERSIONS, ObjectKind.BASE, f"the marker of region {region} is {marker}, but its counter is {counter}"
            )


def _mismatch(handle: TableHandle, state: RegionScrub) -> str:
    """Read a region and the base again, in this order. Return why they don't match, or an empty string.

    Merges and collections may come between the reads, so only a mismatch that persists is a problem.
    """
    problem = ""
    for _ in range(_TRIES):
        manifest, base = state.reread(), open_version(handle, None, Tally())
        if manifest is None or base is None:
            return ""  # already reported
        problem = mismatch(manifest, base)
        if not problem:
            break
    return problem


def scrub_list(handle: TableHandle, record: Record, tally: Tally) -> None:
    """Check the list of the newest round of the base, which the table's record in the catalog names."""
    key, setsum = str(record.get("base_list", "")), str(record.get("base_list_setsum", ""))
    if not key:
        return
    tally.count()
    try:
        read_list(handle.context, key, setsum=Setsum.from_hex(setsum))
    except (Corrupt, Invalid) as error:
        if handle.context.registry.read(table_key(handle.context.table)) == record:
            tally.add(key, ObjectKind.LIST, problem_of(error))
            path = record_path(table_key(handle.context.table))
            tally.add(path, ObjectKind.CATALOG, f"it names a list that is wrong: {key}")


def scrub_lineage(handle: TableHandle, base: BaseTable, tally: Tally) -> None:
    """Check the lineage marker file of a clone. A drop of the clone finds the pin in the source by this file."""
    tally.count()
    try:
        lineage = read_lineage(handle.context.objects)
    except Corrupt as error:
        tally.add(CLONE, ObjectKind.CONFIG, problem_of(error))
        return
    if lineage is None:
        stores = (open_store(uri, handle.storage_options) for uri in shared_directories(base).values())
        problem = "it is gone, but the base shares files of another table" if any(s.get(CONFIG) for s in stores) else ""
    else:
        problem = "" if lineage.table == handle.config.table else f"it belongs to table {lineage.table}"
    if problem:
        tally.add(CLONE, ObjectKind.CONFIG, problem)


def scrub_files(handle: TableHandle, base: BaseTable, tally: Tally, *, is_newest: bool) -> None:
    """Check all fragments and deletion files, the keys, the indexes, and the file of deleted keys of a version.

    Shared files are included.

    Reports nothing if the version was cleaned up meanwhile.
    """
    directories, lines = _directories(handle, base), _lines(handle, base, tally)
    wrong = list(_manifest(handle, base))
    if (key := base.metadata.get(DELETES, "")) and tally.reads("1"):
        try:
            check_deletes(handle.context.objects, key)
        except Corrupt as error:
            wrong.append(Wrong(path=key, problem=problem_of(error)))
    with suppress(Corrupt, Invalid):  # reported below
        tally.unsummed += sum(one.path not in lines for one in files_of(base))
    wrong += examine_base(
        base, directories=directories, lines=lines, reads=lambda fragment: tally.reads(f"2/{fragment}")
    )
    wrong += examine_indexes(
        base,
        directories=directories,
        lines=lines,
        is_newest=is_newest,
        reads=lambda index: tally.reads(f"3/{index}"),
    )
    if wrong and not exists(base):
        return
    for one in wrong:
        tally.add(one.path, _kind(one.path), one.problem)


def _lines(handle: TableHandle, base: BaseTable, tally: Tally) -> dict[str, StatedFile]:
    """Return what is stated about the files of a version: by its own statement, and by that of the last collection."""
    objects, keys = handle.context.objects, [base.metadata[FILES]] if FILES in base.metadata else []
    if (key := _checked_key(handle)) is not None:
        keys.append(key)
    lines: dict[str, StatedFile] = {}
    for key in keys:
        tally.count()
        try:
            lines = {**read_statement(objects, key).files, **lines}
        except (Corrupt, Invalid) as error:
            # A later commit or collection may have replaced the statement, and then it was collected.
            if exists(base) and (key == base.metadata.get(FILES) or key == _checked_key(handle)):
                tally.add(key, ObjectKind.STATEMENT, problem_of(error))
    return lines


def _checked_key(handle: TableHandle) -> str | None:
    """Return the key of the statement of the last collection; None if there is none, or its record can't be read."""
    with suppress(Corrupt):  # reported with the catalog
        checked = read_checked(handle)
        return None if checked is None else checked.key
    return None


def _manifest(handle: TableHandle, base: BaseTable) -> Iterator[Wrong]:
    """Compare the manifest of a version with the first statement that has a line for it."""
    objects = handle.context.objects
    keys = sorted((version, one.key) for one in objects.list(STATEMENTS) if (version := statement_version(one.key)))
    for _, key in [one for one in keys if one[0] > base.version][:_TRIES]:
        try:
            line = manifest_line(read_statement(objects, key), base.version)
        except (Corrupt, Invalid):
            continue
        if line is not None:
            found = sum_manifest(objects, base.version)
            if found is not None and found.sum != line.sum:
                yield Wrong(path=line.path, problem="its bytes are not those that were committed")
            return


def scrub_tags(handle: TableHandle, held: Iterable[Pin], tally: Tally) -> None:
    """Check the tags on versions that snapshots need. Lance's own clean-up keeps a version because of its tag.

    A snapshot has its tag before it is confirmed and until its record is deleted. The pin of a clone does not: when the
    clone is dropped, its tag is removed first.
    """
    tally.count()
    try:
        found = tags(uri=handle.context.uri, storage_options=handle.storage_options)
    except Corrupt as error:
        tally.add(_TAGS, ObjectKind.TAG, problem_of(error))
        return
    for pin in held:
        tag = tag_of(pin.nonce)
        if found.get(tag) != pin.base_version and pins.held(handle.context, pin):
            problem = f"it is not on version {pin.base_version}, but {pin.kind} {pin.name} needs that version"
            tally.add(f"{_TAGS}/{tag}.json", ObjectKind.TAG, problem)


def _directories(handle: TableHandle, base: BaseTable) -> BaseDirectories:
    """Return the directories with files of a version, and the sizes of their files now."""
    own = BaseDirectory(uri=base.uri, prefix="", sizes=_sizes(handle.context.objects))
    shared: dict[int | None, BaseDirectory] = {
        number: BaseDirectory(uri=uri, prefix=f"{uri}/", sizes=_sizes(open_store(uri, handle.storage_options)))
        for number, uri in shared_directories(base).items()
    }
    return {None: own, **shared}


def _sizes(objects: ObjectStore) -> dict[str, int]:
    return {found.key: found.size for folder in _KINDS for found in objects.list(f"{folder}/")}


def _kind(path: str) -> ObjectKind:
    """Return the kind of a file of the base, or of the directory of an index, by its parent directory."""
    if path.startswith(STATEMENTS):
        return ObjectKind.DELETED_KEYS
    return _KINDS.get(path.rpartition("/")[0].rpartition("/")[2], ObjectKind.BASE)


def _fits(handle: TableHandle, base: BaseTable) -> bool:
    """Return whether the configuration has the columns and the primary key of the base, or had them until a change."""
    try:
        ours, theirs = handle.with_columns_of(base).config.schema, base.schema
    except Corrupt:
        return False
    return ours.primary_key == theirs.primary_key and ours.columns.equals(theirs.columns.remove_metadata())
