"""Change the columns of a base by one commit, which also carries the history of its columns.

A column that gets values is written into new files beside those of each fragment, which stay as they are; these files
are read back before the commit. The commit is refused if another one changed data, columns or schema metadata since the
version that was read. Then everything is written again: a collection may have deleted files that no version names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import DataFile, FragmentMetadata, write_fragments

from lancelsm.dataset.base_rows import (
    ROW_ADDRESS,
    Base,
    CommittedVersion,
    Preempted,
    commit_operation,
    native_schema,
    scan,
)
from lancelsm.dataset.base_table import BaseTable
from lancelsm.dataset.fields import (
    encoded_column,
    encoded_fields,
    ids_in_order,
    nullable_column,
    renamed_column,
)
from lancelsm.dataset.native import Carried, native_errors, read_errors
from lancelsm.dataset.read_back import Taken, differs, equal_values, read_unnamed
from lancelsm.dataset.scan_options import scan_options
from lancelsm.dataset.statement import FILES, NamedFile, StatedFile, Stating, state_files, sum_file
from lancelsm.errors import Corrupt
from lancelsm.objects import ObjectStore
from lancelsm.record.schema_history import ChangeKind, SchemaChange, SchemaHistory, filled, metadata_of, widened_values

_NEW: Final = "lancelsm new column"  # no column of a table has this name before the commit
_OFFSET: Final = (1 << 32) - 1


def first_unused_id(base: BaseTable) -> int:
    """Return the lowest id such that no column of any version, and no file of this one, has it or a higher one."""
    files = int(base.dataset.max_field_id)  # of columns that are gone, too
    return max(base.schema.history.unused_id(base.schema.columns), files + 1)


def commit_change(base: BaseTable, change: SchemaChange, *, objects: ObjectStore) -> CommittedVersion | Preempted:
    """Commit one change of the columns, with its values in every row and the history that has it.

    Raises:
        Corrupt: a new file reads back differently, or the base belongs to another table. Nothing was committed.
        Unavailable: no answer. The commit may have been applied: the history of the newest base says so.
    """
    own = Base.of(base)
    dataset = own.reopen()
    present = [fragment.metadata for fragment in dataset.get_fragments()]
    written = [_with_column(own, dataset, one, change) for one in present] if _has_values(change) else []
    fragments = [one.metadata for one in written] or present
    history = SchemaHistory(changes=(*base.schema.history.changes, change))
    stating = Stating(objects=objects, new=tuple(one.file for one in written))
    options = dict(base.storage_options or {})
    metadata = {**base.metadata, **metadata_of(history), FILES: state_files(stating, dataset, fragments, options)}
    schema = native_schema(_columns_after(dataset, change), metadata)
    # A `Merge` may add columns and may not change those that it keeps; a `Project` is the opposite.
    has_new_id = change.kind in (ChangeKind.ADD, ChangeKind.WIDEN)
    operation: Any = (
        lance.LanceOperation.Merge(fragments, schema) if has_new_id else lance.LanceOperation.Project(schema)
    )
    properties = {"lancelsm.schema": json.dumps({"version": history.version, "kind": change.kind.value})}
    return commit_operation(
        own, dataset, operation, doing="the columns of the base can't be changed", properties=properties
    )


def _has_values(change: SchemaChange) -> bool:
    return change.kind is ChangeKind.WIDEN or (change.kind is ChangeKind.ADD and change.default is not None)


def _columns_after(dataset: lance.LanceDataset, change: SchemaChange) -> list[bytes]:
    columns = encoded_fields(dataset.lance_schema)
    if change.kind is ChangeKind.ADD:
        return list(chain(*columns, encoded_column(change.field)))
    at = [native.id() for native in dataset.lance_schema.fields()].index(change.former)
    if change.kind is ChangeKind.DROP:
        del columns[at]
    elif change.kind is ChangeKind.RENAME:
        columns[at] = renamed_column(columns[at], change.field.name)
    elif change.kind is ChangeKind.NULLABLE:
        columns[at] = nullable_column(columns[at])
    else:
        columns[at] = encoded_column(change.field)
    return list(chain(*columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A fragment with a new file for one column, and the line of that file in the statement."""

    metadata: FragmentMetadata
    file: StatedFile


def _with_column(base: Base, dataset: lance.LanceDataset, fragment: FragmentMetadata, change: SchemaChange) -> _Written:
    """Write the values of the new column for one fragment, and read them back.

    Lance's own call refuses that for a table with logs, since its readers don't know the value of rows in a log.
    """
    source, column = _source(dataset, change), pa.schema([_unnamed(change.field)])
    batches = Carried(
        pa.RecordBatch.from_arrays([_values(rows.column(source), change)], schema=column)
        for rows in _every_row(base, dataset, fragment, source)
    )
    with native_errors("a column of the base can't be written", table=base.uri, reading=batches):
        written = write_fragments(
            pa.RecordBatchReader.from_batches(column, batches),
            base.uri,
            mode="overwrite",
            max_rows_per_file=fragment.physical_rows,
            max_bytes_per_file=1 << 62,
            data_storage_version=dataset.data_storage_version,
            storage_options=dict(base.storage_options) or None,
        )
    if [one.physical_rows for one in written] != [fragment.physical_rows]:
        what = f"{fragment.physical_rows} values were given to Lance, which wrote another number"
        raise Corrupt(what, table=base.uri)
    ((new,),) = (one.files for one in written)
    ids = _ids_of_file(base, new, change)
    file = DataFile(
        path=str(new.path),
        fields=[ids[number] for number in new.fields],
        column_indices=new.column_indices,
        file_major_version=new.file_major_version,
        file_minor_version=new.file_minor_version,
        file_size_bytes=new.file_size_bytes,
    )
    key = f"data/{file.path}"
    named = NamedFile(root=base.uri, key=key, path=key, rows=fragment.physical_rows, bytes=file.file_size_bytes)
    line = sum_file(named, options=dict(base.storage_options))
    _read_back(base, fragment, file, change, source=source)
    return _Written(metadata=replace(fragment, files=[*fragment.files, file]), file=line)


def _ids_of_file(base: Base, file: DataFile, change: SchemaChange) -> Mapping[int, int]:
    """Map the ids of the fields in a new file to those of the column: Lance numbers them from any number, in order.

    A file has an entry for each field of the column; since file version 2.1 only for those without fields inside.
    """
    nodes = ids_in_order(change.field)
    found = list(file.fields)
    for kept in (nodes, [node for node in nodes if node.is_leaf]):
        if [number - found[0] for number in found] == [node.fresh - kept[0].fresh for node in kept]:
            return {number: node.wanted for number, node in zip(found, kept, strict=True)}
    raise Corrupt(f"Lance numbered the fields of a new file {found}", table=base.uri, object=f"data/{file.path}")


def _every_row(
    base: Base, dataset: lance.LanceDataset, fragment: FragmentMetadata, column: str
) -> Iterator[pa.RecordBatch]:
    """Read a column of all rows of a fragment, deleted ones included."""
    found = dataset.get_fragment(fragment.id)
    if found is None:
        raise Corrupt(f"version {base.version} of the base has no fragment {fragment.id}", table=base.uri)
    with read_errors("the base can't be read", table=base.uri):
        yield from dataset.scanner(
            columns=[column],
            fragments=[found],
            include_deleted_rows=True,
            with_row_id=True,
            **scan_options(dataset, [column]),
        ).to_batches()


def _source(dataset: lance.LanceDataset, change: SchemaChange) -> str:
    """Return the name of a column to read: the one that is widened, or any for a column that is added."""
    fields = dataset.lance_schema.fields()
    if change.kind is ChangeKind.WIDEN:
        return str(next(one.name() for one in fields if one.id() == change.former))
    return str(dataset.lance_schema.unenforced_primary_key()[0].name())


def _values(column: pa.Array, change: SchemaChange) -> pa.Array:
    if change.kind is ChangeKind.WIDEN:
        return widened_values(column, change.field.type)
    return filled(change.default, change.field.type, pa.repeat(pa.scalar(False), len(column)))


def _unnamed(field: pa.Field) -> pa.Field:
    return field.with_name(_NEW).with_nullable(True).remove_metadata()


def _read_back(base: Base, fragment: FragmentMetadata, file: DataFile, change: SchemaChange, *, source: str) -> None:
    """Compare the values in a new file with those that were meant, which are read again, for all live rows.

    Raises:
        Corrupt: they differ.
    """
    schema = native_schema(encoded_column(change.field.with_nullable(True)), {})
    alone = json.dumps(replace(fragment, files=[file], deletion_file=None).to_json())
    taken, position = Taken(read_unnamed(base, schema, alone)), 0
    for batch, offsets in _live(base, source, fragment.id):
        end = offsets[-1].as_py() + 1
        parts = [part.column(0) for part in taken.take(end - position)]
        if sum(map(len, parts)) != end - position:
            raise differs(base, f"data/{file.path}", "values are missing in it", change.field)
        found = pa.concat_arrays(parts).take(pc.subtract(offsets, position))
        if not equal_values(found, _values(batch, change), change.field):  # guard: read-back compares a new column
            what = f"its values of column {change.field.name!r} are not those that were written"
            raise differs(base, f"data/{file.path}", what, change.field)
        position = end


def _live(base: Base, column: str, fragment: int) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield a column of the live rows of a fragment, and the offsets of these rows, which ascend."""
    for batch in scan(base, [column], [fragment]):
        if batch.num_rows:
            yield batch.column(column), pc.bit_wise_and(batch.column(ROW_ADDRESS), _OFFSET).cast(pa.int64())
