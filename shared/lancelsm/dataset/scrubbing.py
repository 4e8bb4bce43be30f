"""What a scrub reads of Lance's files, piece by piece, so that what is wrong has a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileSession
from lance.fragment import FragmentMetadata, LanceFragment

from lancelsm.dataset.base_table import MEM_WAL_INDEX, BaseTable, StorageOptions, open_base
from lancelsm.dataset.bloom import BYTES, build_bloom
from lancelsm.dataset.generation import read_generation
from lancelsm.dataset.native import native_errors
from lancelsm.dataset.pk_index import DIRECTORY, index_problem
from lancelsm.errors import Corrupt, Invalid, LsmError, Unavailable
from lancelsm.record.key import key_column
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TOMBSTONE, TableSchema, field_id
from lancelsm.setsum import Setsum

BLOOM = "bloom_filter.bin"
VERSIONS = "_versions"
PK_INDEX = DIRECTORY
_KEYS_MAX = 20_000_000  # of the base, in memory at once
_BATCH_ROWS = 65_536


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
        stored = _as_stored(uri, schema, storage_options)
    except (Corrupt, Invalid) as error:
        return _unreadable(VERSIONS, error)
    if files - (named := _named_files(uri, storage_options)):
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


def examine_base(base: BaseTable, *, sizes: Mapping[str, int]) -> Iterator[tuple[str, Wrong | None]]:
    """Read every fragment whole: its path, and what is wrong with it or with another file; then the keys.

    Args:
        sizes: of the objects below `data/` and `_deletions/`, by key.

    Raises:
        Unavailable: the store did not answer.
    """
    keys: list[tuple[str, pa.Array]] = []
    rows = 0
    for fragment in base.dataset.get_fragments():
        path = f"data/{fragment.metadata.files[0].path}"
        column, wrong = _fragment(base, fragment, sizes)
        yield path, wrong
        if column is not None and rows + len(column) <= _KEYS_MAX:
            rows += len(column)
            keys.append((path, column))
    yield from _doubled(keys)


def lost_indexes(base: BaseTable, *, listed: frozenset[str]) -> list[Wrong]:
    """Indexes of a version of which nothing is stored, and the MemWAL index if the version lacks it.

    Args:
        listed: directories below `_indices/` that hold an object.
    """
    with native_errors("the base's indexes can't be read", table=base.uri):
        found = base.dataset.describe_indices()
        named = {index.name: [str(segment.uuid) for segment in index.segments] for index in found}
        mem_wal = base.dataset.mem_wal_index_details()
    wrong = [
        Wrong(path=f"_indices/{uuid}", problem=f"index {name} has no files")
        for name, uuids in named.items()
        for uuid in uuids
        if name != MEM_WAL_INDEX and uuid not in listed
    ]
    if mem_wal is None:
        wrong.append(Wrong(path=VERSIONS, problem=f"version {base.version} has lost its index {MEM_WAL_INDEX}"))
    return wrong


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
    files = LanceFileSession(uri, storage_options=dict(storage_options or {}))
    problem: str | None
    try:
        with native_errors("the key index can't be read", object=uri):
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
    base: BaseTable, fragment: LanceFragment, sizes: Mapping[str, int]
) -> tuple[pa.Array | None, Wrong | None]:
    """The keys of a fragment's live rows, or which of its files is wrong."""
    metadata = fragment.metadata
    for file in metadata.files:
        key, size = f"data/{file.path}", file.file_size_bytes
        if key not in sizes:
            return None, Wrong(path=key, problem="it is gone")
        if size and sizes[key] != size:
            return None, Wrong(path=key, problem=f"it has {sizes[key]} bytes, {size} were written")
    hidden = str(metadata.deletion_file.path(metadata.id)) if metadata.deletion_file else None
    if hidden is not None and hidden not in sizes:
        return None, Wrong(path=hidden, problem="it is gone")
    keys, rows = [], 0
    try:
        with native_errors("the base can't be read", table=base.uri):
            scanner = base.dataset.scanner(fragments=[fragment], batch_size=_BATCH_ROWS)
            for batch in scanner.to_batches():
                batch.validate(full=True)
                rows += batch.num_rows
                keys.append(key_column(batch, base.schema.primary_key))
    except Unavailable:
        raise
    except (LsmError, pa.ArrowException) as error:
        return None, _guilty(base, metadata, hidden, str(getattr(error, "message", error)))
    if rows != metadata.physical_rows - metadata.num_deletions:
        told = f"{rows} rows are live, the version says {metadata.physical_rows - metadata.num_deletions}"
        return None, _guilty(base, metadata, hidden, told)
    return pa.chunked_array(keys).combine_chunks() if keys else None, None


def _guilty(base: BaseTable, metadata: FragmentMetadata, hidden: str | None, problem: str) -> Wrong:
    """Which file of a fragment is to blame: the first of its rows that can't be read alone, else what hides rows."""
    files = LanceFileSession(base.uri, storage_options=dict(base.storage_options or {}))
    for file in metadata.files:
        path = f"data/{file.path}"
        try:
            with native_errors("a file of rows can't be read", table=base.uri):
                rows = sum(batch.num_rows for batch in files.open_reader(path).read_all().to_batches())
        except (Corrupt, Invalid) as error:
            return Wrong(path=path, problem=error.message)
        if rows != metadata.physical_rows:
            return Wrong(path=path, problem=f"it has {rows} rows, {metadata.physical_rows} were written")
    return Wrong(path=hidden or f"data/{metadata.files[0].path}", problem=problem)


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
