"""Search one Lance dataset, the base or a generation, without its stale rows.

Rows are hidden by a blocklist of row ids that Lance applies before it takes the nearest rows, in an index as well as in
a scan. So a stale row takes no place among the results. The format of the list is Lance's: for each fragment a bitmap
of offsets in the portable form of Roaring.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.file import LanceFileSession
from lance.query import FullTextQuery, MatchQuery, MultiMatchQuery

from lancelsm.common.read_trace import NO_TRACE, Trace
from lancelsm.dataset.base_table import BaseTable, StorageOptions
from lancelsm.dataset.conditions import Condition
from lancelsm.dataset.counted_files import open_file
from lancelsm.dataset.damaged import naming_damage
from lancelsm.dataset.fields import StoredField, fitted, stored_fields
from lancelsm.dataset.native import read_errors
from lancelsm.dataset.scan_options import scanned
from lancelsm.errors import Invalid
from lancelsm.record.batches import without_slices
from lancelsm.record.casts import as_type, nulls
from lancelsm.record.schema import TOMBSTONE, TableSchema, field_id

RowIds = npt.NDArray[np.uint64]

DISTANCE, SCORE = "_distance", "_score"
ROW_ID = "_rowid"
_DISTANCES = pa.field(DISTANCE, pa.float32())
_ARRAY_MOST = 4096  # offsets in a container that is stored as an array
_COOKIE = 12346  # no run containers
_CONTAINER_BITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """An open dataset to search, and where it has the columns of the table."""

    uri: str
    dataset: lance.LanceDataset
    schema: TableSchema
    stored: Mapping[str, StoredField] | None = None  # None: it has every column under its name and type
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def name_of(self, column: str) -> str | None:
        """Return the name of a column in this dataset; None if it lacks the column."""
        if self.stored is None:
            return column
        return self.stored[column].name if column in self.stored else None

    @property
    def version(self) -> int:
        return int(self.dataset.version)

    @property
    def fragments(self) -> int:
        return len(self.dataset.get_fragments())

    @property
    def has_all_columns(self) -> bool:
        """Whether a condition over the columns of the table means the same in this dataset."""
        if self.stored is None:
            return True
        held = [(field, self.stored.get(field.name)) for field in self.schema.columns]
        return all(
            one is not None and (one.name, one.number) == (field.name, field_id(field))  # else it was widened since
            for field, one in held
        )


def is_text_query(query: object) -> bool:
    """Return whether a text search can be for this: text, or a query of Lance."""
    return isinstance(query, str | FullTextQuery)


def searched_base(base: BaseTable) -> Searched:
    return Searched(
        uri=base.uri, dataset=base.dataset, schema=base.schema, storage_options=dict(base.storage_options or {})
    )


def searched_generation(
    *, uri: str, version: int | None, schema: TableSchema, storage_options: StorageOptions, trace: Trace = NO_TRACE
) -> Searched:
    """Open a generation at the version with its indexes; the newest one if the manifest records none.

    Raises: `Corrupt` or `Unavailable`, if the version can't be opened.
    """
    with read_errors("the generation can't be read", object=uri):
        dataset = lance.dataset(uri, version=version, storage_options=dict(storage_options or {}))
        trace.opened("generation.open", dataset)
        return Searched(
            uri=uri,
            dataset=dataset,
            schema=schema,
            stored=stored_fields(dataset.lance_schema, dataset.schema, schema),
            storage_options=dict(storage_options or {}),
        )


def keys_with_row_ids(searched: Searched) -> Iterator[tuple[pa.Table, RowIds]]:
    """Yield the key columns of all rows, `_tombstone` if the dataset has it, and their row ids."""
    keys = {searched.name_of(name) or name: name for name in searched.schema.primary_key}
    extra = [TOMBSTONE] if TOMBSTONE in searched.dataset.schema.names else []
    with _errors(searched):
        for batch in searched.dataset.scanner(columns=[*keys, *extra], with_row_id=True).to_batches():
            ids: RowIds = batch.column(ROW_ID).to_numpy()
            table = pa.table(batch).select([*keys, *extra]).rename_columns([*keys.values(), *extra])
            yield table, ids


def nearest(
    searched: Searched,
    *,
    column: str,
    query: npt.NDArray[Any],
    k: int,
    metric: str,
    nprobes: int,
    refine_factor: int | None,
    columns: Sequence[str],
    where: Condition | None,
    hidden: bytes | None,
) -> pa.Table:
    """Return the nearest rows that are not hidden and match the condition, with their distance. Unindexed rows count.

    Raises:
        Invalid: the condition fails on a row, or Lance refuses the query.
        Corrupt, Unavailable: the dataset can't be read.
    """
    name = searched.name_of(column)
    if name is None:  # the generation is older than the column, so it has no vector
        empty = pa.schema([*(pa.field(one, searched.schema.columns.field(one).type) for one in columns), _DISTANCES])
        return empty.empty_table()
    wanted = {
        "column": name,
        "q": query,
        "k": k,
        "metric": metric,
        "nprobes": nprobes,
        "refine_factor": refine_factor,
    }
    with _errors(searched, where):
        found = searched.dataset.scanner(
            columns=[*_names(searched, columns), DISTANCE],
            filter=where and where.sql,
            prefilter=True,
            nearest=wanted,
            row_addr_blocklist=hidden,
        ).to_table()
    return _in_table_form(searched, found, columns, DISTANCE)


def matching_text(
    searched: Searched,
    query: Any,
    *,
    limit: int,
    columns: Sequence[str],
    where: Condition | None,
    hidden: bytes | None,
) -> pa.Table:
    """Return the best rows for a text query that are not hidden and match the condition, with score and row id.

    Finds rows by the index alone.

    Raises: see `nearest`.
    """
    with _errors(searched, where):
        found = searched.dataset.scanner(
            columns=[*_names(searched, columns), SCORE],
            filter=where and where.sql,
            prefilter=True,
            fast_search=True,
            full_text_query=query,
            limit=limit,
            with_row_id=True,
            row_addr_blocklist=hidden,
        ).to_table()
    ids = found.column(ROW_ID)
    return _in_table_form(searched, found, columns, SCORE).append_column(ROW_ID, ids)


def scores_of(searched: Searched, query: Any) -> tuple[RowIds, npt.NDArray[np.float32]]:
    """Return row ids and scores of all rows that match a text query, hidden ones included. Raises: see `nearest`."""
    with _errors(searched):
        found = searched.dataset.scanner(
            columns=[SCORE], full_text_query=query, fast_search=True, with_row_id=True
        ).to_table()
    return found.column(ROW_ID).to_numpy(), found.column(SCORE).to_numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLengths:
    """The number of words of each row in a text index, hidden rows included, in the order of their ids."""

    ids: RowIds
    words: npt.NDArray[np.uint32]
    mean: float

    @classmethod
    def sorted_by_id(cls, ids: RowIds, words: npt.NDArray[np.uint32]) -> TextLengths:
        order = np.argsort(ids)
        return cls(ids=ids[order], words=words[order], mean=float(words.mean()) if len(words) else 0.0)

    def of(self, wanted: RowIds) -> npt.NDArray[np.float64]:
        """Return the number of words of these rows; the mean for a row that is not in the index."""
        if not len(self.ids):
            return np.zeros(len(wanted))
        at = np.minimum(np.searchsorted(self.ids, wanted), len(self.ids) - 1)
        return np.where(self.ids[at] == wanted, self.words[at], self.mean)


def text_lengths(searched: Searched, column: str, *, trace: Trace = NO_TRACE) -> TextLengths:
    """Read the lengths of the texts in the index of a column. Raises: see `nearest`."""
    with _errors(searched):
        parts = [
            _lengths_in_segment(searched, str(segment.uuid), trace)
            for one in searched.dataset.describe_indices()
            if one.index_type == "Inverted" and one.field_names == [searched.name_of(column)]
            for segment in one.segments
        ]
    ids = np.concatenate([np.empty(0, np.uint64), *(one for one, _ in parts)])
    words = np.concatenate([np.empty(0, np.uint32), *(one for _, one in parts)])
    return TextLengths.sorted_by_id(ids, words)


_Lengths = tuple[RowIds, npt.NDArray[np.uint32]]
_LENGTHS: Final[dict[tuple[str, str], _Lengths]] = {}  # by location and segment, without the credentials
_MOST_LENGTHS = 64


def _lengths_in_segment(searched: Searched, uuid: str, trace: Trace) -> _Lengths:
    """Return the lengths from the files of one segment of a text index, which never change."""
    known = _LENGTHS.pop((searched.uri, uuid), None)
    found = _read_lengths(searched, uuid, trace) if known is None else known
    _LENGTHS[searched.uri, uuid] = found  # behind those that were needed before it
    for old in list(_LENGTHS)[:-_MOST_LENGTHS]:
        _LENGTHS.pop(old, None)
    return found


def _read_lengths(searched: Searched, uuid: str, trace: Trace) -> _Lengths:
    files = LanceFileSession(searched.uri, storage_options=dict(searched.storage_options))
    trace.request("text_lengths.list")
    tables = []
    for name in files.list(f"_indices/{uuid}"):
        directory, _, file = name.rpartition("/")
        # Lance leaves the parts that it joined in a directory below.
        if directory.endswith(uuid) and file.startswith("part_") and file.endswith("_docs.lance"):
            opened = open_file(files, name, uri=searched.uri, kind="text_lengths.read", trace=trace)
            with opened.reading() as reader:
                tables.append(reader.read_all().to_table())
    ids = [one.column(ROW_ID).to_numpy() for one in tables]
    words = [one.column("_num_tokens").to_numpy() for one in tables]
    return np.concatenate([np.empty(0, np.uint64), *ids]), np.concatenate([np.empty(0, np.uint32), *words])


def indexed_rows(rows: pa.Table, schema: TableSchema, *, text_indexes: Mapping[str, Mapping[str, Any]]) -> Searched:
    """Write rows as a dataset in a temporary directory, with a text index on each of these columns.

    Raises:
        Corrupt: Lance can't index the rows.
        Unavailable: the local disk failed.
    """
    directory = tempfile.mkdtemp(prefix="lancelsm-search-")
    plain = pa.schema([pa.field(field.name, field.type) for field in rows.schema])
    written = pa.Table.from_arrays(rows.columns, schema=plain)
    with read_errors("rows of the log can't be indexed", object=directory):
        dataset = lance.write_dataset(
            pa.Table.from_batches(map(without_slices, written.to_batches()), schema=plain),
            f"{directory}/rows",
            max_rows_per_file=max(rows.num_rows, 1),
        )
        weakref.finalize(dataset, shutil.rmtree, directory, ignore_errors=True)
        for column, options in text_indexes.items():
            dataset.create_scalar_index(column, "INVERTED", name=f"{column}_text", **options)
    return Searched(uri=f"{directory}/rows", dataset=dataset, schema=schema)


def fragments_without_text_index(searched: Searched, indexes: Mapping[str, Mapping[str, Any]]) -> list[int]:
    """Return the fragments that lack the text index of one of these columns, with these options of Lance.

    Raises: see `nearest`.
    """
    with _errors(searched):
        without: set[int] = {fragment.fragment_id for fragment in searched.dataset.get_fragments()}
        covered: list[set[int]] = [
            {number for segment in one.segments for number in segment.fragment_ids}
            for column, options in indexes.items()
            for one in searched.dataset.describe_indices()
            if one.index_type == "Inverted"
            and one.field_names == [searched.name_of(column)]
            and (one.details or {}).items() >= options.items()
        ]
    complete = len(covered) == len(indexes)
    return sorted(number for number in without if not complete or any(number not in one for one in covered))


def rows_of_fragments(searched: Searched, fragments: Collection[int], *, hidden: bytes | None) -> pa.Table:
    """Read the rows of some fragments that are not hidden, in the table's form. Raises: see `nearest`."""
    with _errors(searched):
        wanted = [one for one in searched.dataset.get_fragments() if one.fragment_id in fragments]
        found = searched.dataset.scanner(
            columns=scanned(searched.dataset.schema, _names(searched, searched.schema.names)),
            fragments=wanted,
            row_addr_blocklist=hidden,
        ).to_table()
    return _in_table_form(searched, found, searched.schema.names, None)


def match_query(text: str, columns: Sequence[str]) -> Any:
    """Return the query of Lance for rows that have any of these words in any of these columns."""
    return MatchQuery(text, columns[0]) if len(columns) == 1 else MultiMatchQuery(text, list(columns))


def _names(searched: Searched, columns: Sequence[str]) -> list[str]:
    return [name for column in columns if (name := searched.name_of(column)) is not None]


def _in_table_form(searched: Searched, found: pa.Table, columns: Sequence[str], score: str | None) -> pa.Table:
    """Return these columns with the table's names and types; one that the dataset lacks has its default."""
    found = found.combine_chunks()
    arrays: list[pa.Array] = []
    for name in columns:
        field = searched.schema.columns.field(name)
        held = searched.name_of(name)
        if held is None:
            arrays.append(searched.schema.left_out(field, found.num_rows))
            continue
        values = _chunk(found.column(held))
        arrays.append(
            as_type(values if searched.stored is None else fitted(values, searched.stored[name], field), field.type)
        )
    fields = [pa.field(name, searched.schema.columns.field(name).type) for name in columns]
    if score is None:
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    return pa.Table.from_arrays(
        [*arrays, _chunk(found.column(score)).cast(pa.float32())],
        schema=pa.schema([*fields, pa.field(score, pa.float32())]),
    )


def _chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [nulls(0, column.type)])


@contextmanager
def _errors(searched: Searched, where: Condition | None = None) -> Iterator[None]:
    try:
        with (
            naming_damage(uri=searched.uri, opened=lambda: searched.dataset, options=searched.storage_options),
            read_errors("the rows can't be searched", condition=where.text if where else None, object=searched.uri),
        ):
            yield
    except (TypeError, KeyError) as cause:
        raise Invalid(f"the search is not valid: {cause}", table=searched.uri) from cause


# The list of hidden rows


def blocklist(row_ids: RowIds, *, whole: Collection[int] = ()) -> bytes | None:
    """Encode the ids of hidden rows for Lance; None if there are none.

    Args:
        whole: fragments that are hidden as a whole.
    """
    if not len(row_ids) and not whole:
        return None
    ids = np.unique(row_ids)
    fragments = (ids >> np.uint64(32)).astype(np.uint32)
    numbers, starts = np.unique(fragments, return_index=True)
    parts = [struct.pack("<II", number, 0) for number in sorted(whole)]
    for number, of_fragment in zip(numbers.tolist(), np.split(ids, starts[1:]), strict=False):
        if number not in whole:
            bitmap = _roaring((of_fragment & np.uint64(0xFFFFFFFF)).astype(np.uint32))
            parts.append(struct.pack("<II", number, len(bitmap)) + bitmap)
    return struct.pack("<I", len(parts)) + b"".join(parts)


def _roaring(offsets: npt.NDArray[np.uint32]) -> bytes:
    """Encode sorted, distinct offsets as a portable Roaring bitmap."""
    keys, starts, counts = np.unique(offsets >> _CONTAINER_BITS, return_index=True, return_counts=True)
    containers = [_container(one.astype(np.uint16)) for one in np.split(offsets & 0xFFFF, starts[1:])]
    header = struct.pack("<II", _COOKIE, len(keys))
    header += np.column_stack([keys, counts - 1]).astype("<u2").tobytes()
    first = len(header) + 4 * len(keys)
    sizes = np.array([len(one) for one in containers[:-1]], np.uint32)
    places = first + np.concatenate([[0], np.cumsum(sizes)])
    return header + places.astype("<u4").tobytes() + b"".join(containers)


def _container(values: npt.NDArray[np.uint16]) -> bytes:
    if len(values) <= _ARRAY_MOST:
        return values.astype("<u2").tobytes()
    bits = np.zeros(1 << _CONTAINER_BITS, np.uint8)
    bits[values] = 1
    return np.packbits(bits, bitorder="little").tobytes()
