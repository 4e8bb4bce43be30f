"""What a scrub reads of Lance's files, piece by piece, so that what is wrong has a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileSession
from lance.fragment import FragmentMetadata, LanceFragment

from lancelsm.common.setsum import Setsum
from lancelsm.dataset.base_table import MEM_WAL_INDEX, BaseTable, StorageOptions, open_base
from lancelsm.dataset.bloom import BYTES, build_bloom
from lancelsm.dataset.deletions import arrow_problem
from lancelsm.dataset.generation import read_generation
from lancelsm.dataset.native import read_errors
from lancelsm.dataset.pk_index import DIRECTORY, index_problem
from lancelsm.errors import Corrupt, Invalid, LsmError
from lancelsm.record.key import key_column
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TOMBSTONE, TableSchema, field_id

BLOOM = "bloom_filter.bin"
VERSIONS = "_versions"
PK_INDEX = DIRECTORY
_KEYS_MAX = 20_000_000  # of the base, in memory at once
_BATCH_ROWS = 65_536
_FIRST_FORMAT = b"\0\0\2\0LANC"  # how files end that old releases of Lance wrote: only its indexes read them still


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A file of a dataset, by its path in it, and what is wrong with it."""

    path: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A generation as it was read. `keys` are the key columns under the table's names; None if it can't be read."""

    rows: int
    row_setsum: Setsum
    keys: pa.Table | None
    wrong: tuple[Wrong, ...]


def examine_generation(
    *,
    uri: str,
    schema: TableSchema,
    files: frozenset[str],
    bloom: bytes | None,
    exact: bool,
    storage_options: StorageOptions = None,
) -> Examined:
    """Read a generation whole, its key index and its bloom filter.

    Args:
        schema: the table's.
        files: that lie in its `data/`, by name.
        bloom: the object beside it, None if there is none.
        exact: whether this library wrote it: Lance's own writer indexes rows that it masks.

    Raises:
        Unavailable: the store did not answer.
    """
    try:
        stored, named = _as_stored(uri, schema, storage_options), _named_files(uri, storage_options)
    except (Corrupt, Invalid) as error:
        return _unreadable(VERSIONS, error)
    if files - named:
        return _unreadable(VERSIONS, Corrupt(f"it names {sorted(named)}, there are {sorted(files)}"))
    keys, total = [], Setsum.ZERO
    try:
        for batch in read_generation(uri=uri, schema=stored, storage_options=storage_options):
            total += row_setsum(batch) if exact else Setsum.ZERO
            keys.append(batch.select(list(stored.primary_key)).rename_columns(list(schema.primary_key)))
    except (Corrupt, Invalid) as error:
        return _unreadable("data", error)
    found = pa.Table.from_batches(keys) if keys else schema.key.empty_table()
    wrong = [*_duplicates(found, schema), *_index(uri, found, schema, exact, storage_options)]
    wrong += _filter(bloom, found, exact)
    return Examined(rows=found.num_rows, row_setsum=total, keys=found, wrong=tuple(wrong))


def own_row_setsum(*, uri: str, schema: TableSchema, storage_options: StorageOptions = None) -> Setsum:
    """The sum of a generation's rows over the columns that it has; raises as `read_generation`."""
    stored = _as_stored(uri, schema, storage_options)
    batches = read_generation(uri=uri, schema=stored, storage_options=storage_options)
    return sum((row_setsum(batch) for batch in batches), start=Setsum.ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseDirectory:
    """A table's directory, in which files of a base lie: its own, or one of a table of which it is a clone.

    Args:
        prefix: of paths of this place in reports; empty for the base's own.
        sizes: of the objects below `data/`, `_deletions/` and `_indices/`, by key.
    """

    uri: str
    prefix: str
    sizes: Mapping[str, int]


BaseDirectories = Mapping[int | None, BaseDirectory]
"""By the number under which a version names them; None for the base's own. A file elsewhere is read, but not judged."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file that a version names. `size` is None if it is gone."""

    place: BaseDirectory
    key: str

    @property
    def path(self) -> str:
        return self.place.prefix + self.key

    @property
    def size(self) -> int | None:
        return self.place.sizes.get(self.key)


def shared_places(base: BaseTable) -> dict[int | None, str]:
    """The tables whose files a version shares, by the number under which it names them."""
    return {number: one.path for number, one in base.dataset.base_paths().items() if one.is_dataset_root}


def examine_base(base: BaseTable, *, places: BaseDirectories) -> Iterator[tuple[str, Wrong | None]]:
    """Read every fragment whole: its path, and what is wrong with it or with another file; then the keys.

    Raises:
        Unavailable: the store did not answer.
    """
    keys: list[tuple[str, pa.Array]] = []
    rows = 0
    for fragment in base.dataset.get_fragments():
        data, _ = _files(fragment.metadata, places)
        path = data[0][0].path if data else VERSIONS
        column, wrong = _fragment(base, fragment, places)
        yield path, wrong
        if column is not None and rows + len(column) <= _KEYS_MAX:
            rows += len(column)
            keys.append((path, column))
    yield from _doubled(keys)


def examine_indexes(base: BaseTable, *, places: BaseDirectories) -> Iterator[Wrong | None]:
    """Read every index of a version whole: what is wrong with each; the MemWAL index if the version lacks it.

    Whether an index finds the rows that it should is not asked: Lance keeps no sum of one.

    Raises:
        Unavailable: the store did not answer.
    """
    try:
        with read_errors("the base's indexes can't be read", table=base.uri):
            found = base.dataset.describe_indices()
            mem_wal = base.dataset.mem_wal_index_details()
    except (Corrupt, Invalid) as error:
        yield Wrong(path=VERSIONS, problem=error.message)
        return
    if mem_wal is None:
        yield Wrong(path=VERSIONS, problem=f"version {base.version} has lost its index {MEM_WAL_INDEX}")
    for index in found:
        for segment in index.segments if index.name != MEM_WAL_INDEX else ():
            place = places.get(segment.base_id)
            if place is None:
                continue
            problem = _segment(base, place, f"_indices/{segment.uuid}/", segment.size_bytes)
            path = f"{place.prefix}_indices/{segment.uuid}"
            yield Wrong(path=path, problem=f"index {index.name} {problem}") if problem else None


def _segment(base: BaseTable, place: BaseDirectory, directory: str, written: int | None) -> str:
    sizes = {key: size for key, size in place.sizes.items() if key.startswith(directory)}
    if not sizes:
        return "has no files"
    if written and sum(sizes.values()) != written:
        return f"has {sum(sizes.values())} bytes, {written} were written"
    try:
        for key, size in sizes.items():
            with read_errors("can't be read", table=base.uri):
                files = LanceFileSession(place.uri, storage_options=dict(base.storage_options or {}))
                end = min(size, len(_FIRST_FORMAT))
                if bytes(files.read_range(key, size - end, end)) != _FIRST_FORMAT:
                    for _ in files.open_reader(key).read_all().to_batches():
                        pass
    except (Corrupt, Invalid) as error:
        return error.message
    return ""


def _as_stored(uri: str, schema: TableSchema, storage_options: StorageOptions) -> TableSchema:
    """The columns that a generation has, whatever the table has by now, and its names of the key's."""
    columns = open_base(uri=uri, storage_options=storage_options).schema.columns
    own = pa.schema([column for column in columns if column.name != TOMBSTONE])
    ids = {field_id(column): column.name for column in own}
    return TableSchema(columns=own, primary_key=tuple(ids.get(field_id(column), column.name) for column in schema.key))


def _named_files(uri: str, storage_options: StorageOptions) -> frozenset[str]:
    fragments = open_base(uri=uri, storage_options=storage_options).dataset.get_fragments()
    return frozenset(str(file.path) for fragment in fragments for file in fragment.metadata.files)


def _unreadable(path: str, error: LsmError) -> Examined:
    return Examined(rows=0, row_setsum=Setsum.ZERO, keys=None, wrong=(Wrong(path=path, problem=error.message),))


def _duplicates(keys: pa.Table, schema: TableSchema) -> list[Wrong]:
    values = key_column(keys, schema.primary_key) if keys.num_rows else pa.array([], pa.int64())
    if values.null_count:
        return [Wrong(path="data", problem="a key is null")]
    return [Wrong(path="data", problem="a key is there twice")] if len(values.unique()) != len(values) else []


def _index(uri: str, keys: pa.Table, schema: TableSchema, exact: bool, storage_options: StorageOptions) -> list[Wrong]:
    problem: str | None
    try:
        with read_errors("the key index can't be read", object=uri):
            files = LanceFileSession(uri, storage_options=dict(storage_options or {}))
            problem = index_problem(files=files, values=key_column(keys, schema.primary_key), exact=exact)
    except (Corrupt, Invalid) as error:
        problem = error.message
    return [Wrong(path=PK_INDEX, problem=problem)] if problem else []


def _filter(bloom: bytes | None, keys: pa.Table, exact: bool) -> list[Wrong]:
    if bloom is None or len(bloom) != BYTES:
        what = "it is gone" if bloom is None else f"it has {len(bloom)} bytes, not {BYTES}"
        return [Wrong(path=BLOOM, problem=what)]
    bits, wanted = (np.frombuffer(one, np.uint8) for one in (bloom, build_bloom(keys)))
    if (wanted & ~bits).any():
        return [Wrong(path=BLOOM, problem="it denies a key that the generation holds")]
    if exact and (bits & ~wanted).any():
        return [Wrong(path=BLOOM, problem="it is not the filter over these keys")]
    return []


def _fragment(
    base: BaseTable, fragment: LanceFragment, places: BaseDirectories
) -> tuple[pa.Array | None, Wrong | None]:
    """The keys of a fragment's live rows, or which of its files is wrong."""
    metadata = fragment.metadata
    data, hidden = _files(metadata, places)
    for file, written in data:
        if file.size is None:
            return None, Wrong(path=file.path, problem="it is gone")
        if written and file.size != written:
            return None, Wrong(path=file.path, problem=f"it has {file.size} bytes, {written} were written")
    if hidden is not None and (problem := _hiding(base, hidden, metadata)):
        return None, Wrong(path=hidden.path, problem=problem)
    keys, rows = [], 0
    try:
        with read_errors("the base can't be read", table=base.uri):
            scanner = base.dataset.scanner(fragments=[fragment], batch_size=_BATCH_ROWS)
            for batch in scanner.to_batches():
                batch.validate(full=True)
                rows += batch.num_rows
                keys.append(key_column(batch, base.schema.primary_key))
    except (Corrupt, Invalid) as error:
        return None, _guilty(base, metadata, places, error.message)
    if rows != metadata.physical_rows - metadata.num_deletions:
        told = f"{rows} rows are live, the version says {metadata.physical_rows - metadata.num_deletions}"
        return None, _guilty(base, metadata, places, told)
    return pa.chunked_array(keys).combine_chunks() if keys else None, None


def _hiding(base: BaseTable, file: _File, metadata: FragmentMetadata) -> str:
    """What is wrong with the file that hides rows of a fragment; empty if nothing is.

    It is looked at before Lance reads it, which ends the whole process where the file asks for absurd memory.
    """
    if file.size is None:
        return "it is gone"
    if not file.key.endswith(".arrow"):
        return ""
    with read_errors("a file of hidden rows can't be read", table=base.uri):
        files = LanceFileSession(file.place.uri, storage_options=dict(base.storage_options or {}))
        body = bytes(files.read_range(file.key, 0, file.size))
    return arrow_problem(body, rows=metadata.physical_rows, hidden=metadata.num_deletions)


def _guilty(base: BaseTable, metadata: FragmentMetadata, places: BaseDirectories, problem: str) -> Wrong:
    """Which file of a fragment is to blame: the first of its rows that can't be read alone, else what hides rows."""
    data, hidden = _files(metadata, places)
    for file, _ in data:
        try:
            with read_errors("a file of rows can't be read", table=base.uri):
                files = LanceFileSession(file.place.uri, storage_options=dict(base.storage_options or {}))
                rows = sum(batch.num_rows for batch in files.open_reader(file.key).read_all().to_batches())
        except (Corrupt, Invalid) as error:
            return Wrong(path=file.path, problem=error.message)
        if rows != metadata.physical_rows:
            return Wrong(path=file.path, problem=f"it has {rows} rows, {metadata.physical_rows} were written")
    blamed = hidden or (data[0][0] if data else None)
    return Wrong(path=blamed.path if blamed else VERSIONS, problem=problem)


def _files(metadata: FragmentMetadata, places: BaseDirectories) -> tuple[list[tuple[_File, int | None]], _File | None]:
    """A fragment's files of rows, each with the size that was written, and the one that hides rows."""
    data = [
        (_File(place, f"data/{file.path}"), file.file_size_bytes)
        for file in metadata.files
        if (place := places.get(file.base_id)) is not None
    ]
    hides = metadata.deletion_file
    place = None if hides is None else places.get(hides.base_id)
    return data, None if hides is None or place is None else _File(place, str(hides.path(metadata.id)))


def _doubled(keys: list[tuple[str, pa.Array]]) -> Iterator[tuple[str, Wrong | None]]:
    """Which fragments hold a key that an earlier one, or they themselves, hold too."""
    if not keys:
        return
    whole = pa.chunked_array([column for _, column in keys])
    first = pc.index_in(whole, value_set=whole).to_numpy()
    start = 0
    for path, column in keys:
        again = first[start : start + len(column)] != np.arange(start, start + len(column))
        start += len(column)
        if again.any():
            yield path, Wrong(path=path, problem=f"{int(again.sum())} keys are in the base twice")
