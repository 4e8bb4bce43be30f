"""Keep the sequences of deleted keys after a merge, which drops their tombstones.

Only for a table whose change events are ordered. The merge writes keys and sequences to a file, and names it in the
schema metadata of the same commit. The key of the file has its sum. An event of a key without a row is compared with
it. The file has at most 32 MiB, and a delete stays in it for `keep_delete_sequences_seconds` from the merge. The
highest sequence that a region drops becomes its late floor.

Collections treat the file like a data file of the version that names it. Model: tests/model/merge_redo.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.bounded_cache import BoundedCache
from lancelsm.common.layout import RegionId, deletes_key
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.base_table import DELETES, LATE, BaseTable
from lancelsm.errors import Corrupt, Unavailable
from lancelsm.objects import ObjectStore, put_once
from lancelsm.record import sequence
from lancelsm.record.key import key_column, newest
from lancelsm.record.schema import TOMBSTONE, TableSchema

MOST_BYTES = 32 << 20
HIGHEST = "lancelsm.deletes_highest"  # schema metadata of the base: the highest sequence in the file
EVERY_REGION = RegionId("")  # in a file and a late floor of a clone or after a reshard: regions have other ids

_REGION, _TIME, _COLUMN = "region", "time", "of."
_TRIES = 3


def sequences_of(keys: pa.Table, sequences: pa.Table, names: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Return the columns of deleted keys with a sequence: the rows that a file may have, and the others.

    The others have lower sequences. A delete without a sequence is in neither of them.
    """
    for name in sequences.column_names:
        if name not in keys.column_names:
            keys = keys.append_column(name, sequences[name])
    return _within(keys.filter(_has_sequence(keys, names)), names)


def keep_deletes(
    base: BaseTable,
    objects: ObjectStore,
    deleted: Sequence[tuple[RegionId, pa.Table]],
    *,
    late: Sequence[tuple[RegionId, str]],
    names: Sequence[str],
    now: float,
    keep_seconds: float,
) -> dict[str, str]:
    """Write the file of deleted keys for a commit on this version. Return the schema metadata that the commit changes.

    Args:
        deleted: keys that the commit deletes, with their sequences, by region.
        late: sequences of further deletes of regions, as text: the late floors rise to them.
        names: the columns of the sequence.
        keep_seconds: how long a delete stays in the file; 0: there is no file.

    Raises:
        Corrupt: the file of this version is missing or wrong, or the new one reads back differently.
        Unavailable: the store did not answer.
    """
    old = base.metadata.get(DELETES, "")
    if not names or not (any(rows.num_rows for _, rows in deleted) or any(text for _, text in late) or old):
        return {}
    rows = _table([(region, now, rows) for region, rows in deleted], base.schema, names)
    floors = list(late)
    if old and not keep_seconds:
        floors.append((EVERY_REGION, base.metadata.get(HIGHEST, "")))
    elif old and not rows.num_rows:
        return _floors(base, floors, names)
    elif old:
        before = read_deletes(objects, old, base.schema, names)
        replaced = pc.is_in(_keys(before, base.schema), value_set=_keys(rows, base.schema))
        rows = pa.concat_tables([rows, before.filter(pc.invert(replaced))])
    columns = [f"{_COLUMN}{name}" for name in names]
    is_young = pc.greater(rows[_TIME], now - keep_seconds)
    kept, low = _within(rows.filter(is_young), columns)
    dropped = pa.concat_tables([rows.filter(pc.invert(is_young)), low])
    for region in pc.unique(dropped[_REGION]).to_pylist():
        own = dropped.filter(pc.equal(dropped[_REGION], region))
        floors.append((region, sequence.to_text(_highest(own, names))))
    made = _floors(base, floors, names)
    if not kept.num_rows:
        return {**made, **({DELETES: "", HIGHEST: ""} if old else {})}
    made[HIGHEST] = sequence.to_text(_highest(kept, names))
    return {**made, DELETES: _write(objects, base, kept)}


def read_deletes(objects: ObjectStore, key: str, schema: TableSchema, names: Sequence[str]) -> pa.Table:
    """Read a file of deleted keys.

    Raises:
        Corrupt: it is missing or unreadable, or has another sum.
        Unavailable: the store did not answer.
    """
    body = check_deletes(objects, key)
    try:
        table = pa.ipc.open_file(pa.py_buffer(body)).read_all()
        return table.select(_schema(schema, names).names).cast(_schema(schema, names))
    except (pa.ArrowException, KeyError) as error:
        raise _damaged(f"is unreadable: {error!r}", key) from error


def check_deletes(objects: ObjectStore, key: str) -> bytes:
    """Return the bytes of a file of deleted keys, if they have its sum. Raises: the same errors as `read_deletes`."""
    found = objects.get(key)
    if found is None:
        raise _damaged("is gone", key)
    if not key.endswith(f"-{Setsum.of_item(found.body).hex()}.arrow"):  # guard: file of deleted keys has its sum
        raise _damaged("is not the one that was committed", key)
    return found.body


def find_deletes(
    metadata: Mapping[str, str],
    objects: ObjectStore,
    wanted: pa.Table,
    schema: TableSchema,
    names: Sequence[str],
    *,
    kept: BoundedCache,
) -> pa.Table:
    """Return tombstones in stored form, with their sequences, of those wanted keys that a file has.

    Args:
        metadata: of the base.
        kept: keeps the last file.

    Raises: the same errors as `read_deletes`.
    """
    if not (key := metadata.get(DELETES, "")):
        return schema.stored.empty_table()
    rows = kept.get_or_make(
        ("deleted keys", key), lambda: read_deletes(objects, key, schema, names), size=lambda table: table.nbytes
    )
    found = rows.filter(pc.is_in(_keys(rows, schema), value_set=key_column(wanted, schema.primary_key)))
    columns = {name: found[f"{_COLUMN}{name}"] for name in _names(schema, names)}
    columns[TOMBSTONE] = pa.array([True] * found.num_rows, pa.bool_())
    arrays = [columns.get(field.name, pa.nulls(found.num_rows, field.type)) for field in schema.stored]
    return pa.Table.from_arrays(arrays, schema=schema.stored)


def late_floor(metadata: Mapping[str, str], region: RegionId, schema: TableSchema, names: Sequence[str]) -> pa.Table:
    """Return the highest sequence of the deletes of a region that are forgotten; no row if none are."""
    texts = [text for one in (region, EVERY_REGION) if (text := metadata.get(f"{LATE}{one}"))]
    return _highest_of(texts, schema, names)


def copy_deletes(source: Mapping[str, str], origin: ObjectStore, base: BaseTable, to: ObjectStore) -> dict[str, str]:
    """Write the file of deleted keys of a source for a copy, whose regions have other ids.

    Args:
        source: the schema metadata of the base of the source.
        origin: the store with its file.

    Returns:
        The schema metadata of `base` with this file, and one late floor for all regions.

    Raises: the same errors as `keep_deletes`.
    """
    own = {name: text for name, text in base.metadata.items() if not name.startswith(LATE)}
    own.update(_one_floor(source, base.schema))
    if key := source.get(DELETES, ""):
        rows = read_deletes(origin, key, base.schema, sequence.names_in(source[HIGHEST]))
        region = pa.array([EVERY_REGION] * rows.num_rows, pa.string())
        own[HIGHEST], own[DELETES] = source[HIGHEST], _write(to, base, rows.set_column(0, _REGION, region))
    return own


def back_up_deletes(
    base: BaseTable,
    objects: ObjectStore,
    deleted: Iterable[pa.Table],
    *,
    names: Sequence[str],
    now: float,
    to: ObjectStore,
) -> dict[str, str]:
    """Write a file with all deletes of a view for a backup.

    Args:
        base: that of the view; its file is in `objects`.
        deleted: tables that have keys and sequences of deletes, the oldest first.
        names: the columns of the sequence.
        to: the store of the backup.

    Returns:
        What `copy_deletes` takes as the metadata of its source; empty if no delete has a sequence.

    Raises: the same errors as `keep_deletes`.
    """
    columns = _names(base.schema, names)
    above = [rows.filter(_has_sequence(rows, names)).select(columns) for rows in deleted]
    found = _table([(EVERY_REGION, now, rows) for rows in above], base.schema, names)
    if key := base.metadata.get(DELETES, ""):
        found = pa.concat_tables([read_deletes(objects, key, base.schema, names), found])
    last = newest(found, tuple(f"{_COLUMN}{name}" for name in base.schema.primary_key))
    kept, low = _within(last, [f"{_COLUMN}{name}" for name in names])
    forgotten = {f"{LATE}{EVERY_REGION}.": sequence.to_text(_highest(low, names))} if low.num_rows else {}
    made = _one_floor({**base.metadata, **forgotten}, base.schema)
    if kept.num_rows:
        made |= {HIGHEST: sequence.to_text(_highest(kept, names)), DELETES: _write(to, base, kept)}
    return made


def has_deletes(base: BaseTable) -> bool:
    """Return whether a base has a file of deleted keys or a late floor."""
    return any(text and (name == DELETES or name.startswith(LATE)) for name, text in base.metadata.items())


def _one_floor(metadata: Mapping[str, str], schema: TableSchema) -> dict[str, str]:
    """Return one late floor for all regions: the highest of those in this metadata."""
    floors = [text for name, text in metadata.items() if name.startswith(LATE) and text]
    if not floors:
        return {}
    highest = _highest_of(floors, schema, sequence.names_in(floors[0]))
    return {f"{LATE}{EVERY_REGION}": sequence.to_text(highest)}


def deletes_of_other_regions(base: BaseTable, objects: ObjectStore) -> dict[str, str]:
    """Write the file of deleted keys of a table that gets regions with other ids. Return the metadata that changes.

    Raises: the same errors as `keep_deletes`.
    """
    made = copy_deletes(base.metadata, objects, base, objects)
    return {name: made[name] for name in (DELETES, f"{LATE}{EVERY_REGION}") if made.get(name)}


def _floors(base: BaseTable, late: Sequence[tuple[RegionId, str]], names: Sequence[str]) -> dict[str, str]:
    """Return the late floors that rise."""
    risen: dict[str, str] = {}
    for region, text in late:
        name = f"{LATE}{region}"
        texts = [one for one in (text, risen.get(name, base.metadata.get(name, ""))) if one]
        if texts:
            risen[name] = sequence.to_text(_highest_of(texts, base.schema, names))
    return risen


def _highest_of(texts: Sequence[str], schema: TableSchema, names: Sequence[str]) -> pa.Table:
    rows = [sequence.from_text(text, schema, names) for text in ["", *texts]]
    return sequence.highest(pa.concat_tables(rows), names)


def _highest(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    values = rows.select([f"{_COLUMN}{name}" for name in names]).rename_columns(list(names))
    return sequence.highest(values, names)


def _write(objects: ObjectStore, base: BaseTable, rows: pa.Table) -> str:
    """Write a file for the next version, read it back, and return its key."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    body = sink.getvalue().to_pybytes()
    key = deletes_key(base.version + 1, Setsum.of_item(body).hex())
    if put_once(objects, key, body, attempts=range(_TRIES)) is None:
        raise Unavailable("the file of deleted keys could not be written", table=base.uri, object=key)
    found = objects.get(key)
    if found is None or found.body != body:  # guard: file of deleted keys is read back
        raise Corrupt("a new file of deleted keys reads back differently", remedy="Retry", table=base.uri, object=key)
    return key


def _within(rows: pa.Table, names: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Split rows into those with the highest sequences, as many as a file may have, and the others."""
    if rows.nbytes <= MOST_BYTES:
        return rows, rows.slice(0, 0)
    ordered = rows.sort_by([(name, "descending") for name in names])
    most = rows.num_rows * MOST_BYTES // rows.nbytes
    return ordered.slice(0, most), ordered.slice(most)


def _has_sequence(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    valid = pc.is_valid(rows[names[0]])
    for name in names[1:]:
        valid = pc.and_(valid, pc.is_valid(rows[name]))
    return valid


def _table(parts: Sequence[tuple[RegionId, float, pa.Table]], schema: TableSchema, names: Sequence[str]) -> pa.Table:
    wanted = _schema(schema, names)
    tables = [wanted.empty_table()]
    for region, time, rows in parts:
        first = [pa.array([region] * rows.num_rows, pa.string()), pa.array([time] * rows.num_rows, pa.float64())]
        columns = [*first, *(rows[name] for name in _names(schema, names))]
        tables.append(pa.table(columns, names=wanted.names).cast(wanted))
    return pa.concat_tables(tables)


def _schema(schema: TableSchema, names: Sequence[str]) -> pa.Schema:
    columns = [(f"{_COLUMN}{name}", schema.stored.field(name).type) for name in _names(schema, names)]
    return pa.schema([(_REGION, pa.string()), (_TIME, pa.float64()), *columns])


def _names(schema: TableSchema, names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*schema.primary_key, *names]))


def _keys(rows: pa.Table, schema: TableSchema) -> pa.Array:
    return key_column(rows, tuple(f"{_COLUMN}{name}" for name in schema.primary_key))


def _damaged(what: str, key: str) -> Corrupt:
    return Corrupt(
        f"the file of deleted keys {what}",
        remedy="Restore it from a copy of the bucket. If there is none, set keep_delete_sequences_seconds to 0 and "
        "merge: then events up to its highest sequence are late if their keys have no row",
        object=key,
    )
