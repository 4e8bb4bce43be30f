"""Examine Lance's files for a scrub, one by one, so that each wrong file can be named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileSession
from lance.fragment import FragmentMetadata, LanceFragment

from lancelsm.common.layout import KEY_INDEX
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.base_manifest import MEM_WAL_INDEX
from lancelsm.dataset.base_table import BaseTable, StorageOptions, open_base
from lancelsm.dataset.bloom import BYTES, build_bloom
from lancelsm.dataset.deletions import arrow_problem
from lancelsm.dataset.generation import read_generation
from lancelsm.dataset.native import read_errors
from lancelsm.dataset.pk_index import index_problem
from lancelsm.dataset.scan_options import scan_options
from lancelsm.dataset.statement import NamedFile, StatedFile, sum_file
from lancelsm.errors import Corrupt, Invalid, LsmError
from lancelsm.record.key import key_column
from lancelsm.record.rowsum import row_setsum
from lancelsm.record.schema import TOMBSTONE, TableSchema, field_id

BLOOM = "bloom_filter.bin"
VERSIONS = "_versions"
_KEYS_MAX = 20_000_000  # keys of the base to hold in memory
_FIRST_FORMAT = b"\0\0\2\0LANC"  # end of files in the first format of Lance, which only its indexes still read


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """The path of a file in a dataset, and the problem with it."""

    path: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """Result for a generation. `keys`: key columns under the table's names; None if the generation can't be read."""

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
    """Read and check all rows of a generation, its key index and its bloom filter.

    Args:
        schema: of the table.
        files: names of the files in its `data/`.
        bloom: content of the bloom filter; None if it is missing.
        exact: whether lancelsm wrote the generation. Lance's own writer also indexes rows that it masks.

    Raises:
        Unavailable: the store did not answer.
    """
    try:
        stored, named = _as_stored(uri, schema, storage_options), _named_files(uri, storage_options)
    except (Corrupt, Invalid) as error:
        return _unreadable(VERSIONS, error)
    if files - named:
        return _unreadable(VERSIONS, Corrupt(f"it names {sorted(named)}, but the files are {sorted(files)}"))
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
    """Sum the rows of a generation over its own columns. Raises: the same errors as `read_generation`."""
    stored = _as_stored(uri, schema, storage_options)
    batches = read_generation(uri=uri, schema=stored, storage_options=storage_options)
    return sum((row_setsum(batch) for batch in batches), start=Setsum.ZERO)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseDirectory:
    """A table directory with files of a base: that of the table, or that of the table from which it was cloned.

    Args:
        prefix: prefix of the paths in reports; empty for the table's own directory.
        sizes: sizes of the objects in `data/`, `_deletions/` and `_indices/`, by key.
    """

    uri: str
    prefix: str
    sizes: Mapping[str, int]


BaseDirectories = Mapping[int | None, BaseDirectory]
"""Directories by the id that a version uses; None for the base's own. Files in other directories are not checked."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file that a version names. `size` is None if the file is missing."""

    directory: BaseDirectory
    key: str

    @property
    def path(self) -> str:
        return self.directory.prefix + self.key

    @property
    def size(self) -> int | None:
        return self.directory.sizes.get(self.key)


def shared_directories(base: BaseTable) -> dict[int | None, str]:
    """Return the URIs of the tables whose files a version shares, by the id that the version uses."""
    return {number: one.path for number, one in base.dataset.base_paths().items() if one.is_dataset_root}


Lines = Mapping[str, StatedFile]
"""What the statements of files record about files, by path."""


Reads = Callable[[str], bool]
"""Whether to read a fragment or an index. Its names ascend."""


def examine_base(
    base: BaseTable, *, directories: BaseDirectories, lines: Lines, reads: Reads = lambda _: True
) -> Iterator[Wrong]:
    """Read and check fragments, then look for keys that are repeated in them. Yield the problems.

    Files with a line are summed, before Lance reads them.

    Raises:
        Unavailable: the store did not answer.
    """
    keys: list[tuple[str, pa.Array]] = []
    rows = 0
    for fragment in sorted(base.dataset.get_fragments(), key=lambda one: one.fragment_id):
        if not reads(f"{fragment.fragment_id:020}"):
            continue
        data, _ = _files(fragment.metadata, directories)
        path = data[0][0].path if data else VERSIONS
        column, wrong = _fragment(base, fragment, directories, lines)
        if wrong is not None:
            yield wrong
        if column is not None and rows + len(column) <= _KEYS_MAX:
            rows += len(column)
            keys.append((path, column))
    yield from _repeated(keys)


def examine_indexes(
    base: BaseTable, *, directories: BaseDirectories, lines: Lines, is_newest: bool, reads: Reads = lambda _: True
) -> Iterator[Wrong]:
    """Read the indexes of a version. Yield their problems, and a problem if the MemWAL index is missing.

    Does not check whether an index finds the right rows, besides its sum if it has a line.

    Args:
        is_newest: whether it is the newest version. Versions from before the MemWAL index was created have none.

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
    if mem_wal is None and (is_newest or base.counters):
        yield Wrong(path=VERSIONS, problem=f"version {base.version} has lost its index {MEM_WAL_INDEX}")
    segments = [(str(one.uuid), one, index.name) for index in found for one in index.segments]
    for name, segment, index_name in sorted(segments, key=lambda one: one[0]):
        directory = directories.get(segment.base_id)
        if index_name == MEM_WAL_INDEX or directory is None or not reads(name):
            continue
        file = _File(directory, f"_indices/{segment.uuid}")
        covers = bool(segment.fragment_ids)
        problem = _segment(base, directory, f"{file.key}/", segment.size_bytes, covers=covers)
        problem = problem or _sum_problem(base, file, 0, lines)
        if problem:
            yield Wrong(path=file.path, problem=f"index {index_name} {problem}")


def _segment(base: BaseTable, directory: BaseDirectory, prefix: str, written: int | None, *, covers: bool) -> str:
    sizes = {key: size for key, size in directory.sizes.items() if key.startswith(prefix)}
    if not sizes:
        return "has no files" if covers or written else ""  # Lance writes none for an index of vectors over no rows
    if written and sum(sizes.values()) != written:
        return f"has {sum(sizes.values())} bytes, but {written} were written"
    try:
        for key, size in sizes.items():
            with read_errors("can't be read", table=base.uri):
                files = LanceFileSession(directory.uri, storage_options=dict(base.storage_options or {}))
                end = min(size, len(_FIRST_FORMAT))
                if bytes(files.read_range(key, size - end, end)) != _FIRST_FORMAT:
                    for _ in files.open_reader(key).read_all().to_batches():
                        pass
    except (Corrupt, Invalid) as error:
        return error.message
    return ""


def _as_stored(uri: str, schema: TableSchema, storage_options: StorageOptions) -> TableSchema:
    """Return the schema of a generation itself: its own columns, and its own names of the key columns."""
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
        return [Wrong(path="data", problem="it has a null key")]
    return [Wrong(path="data", problem="it has a key twice")] if len(values.unique()) != len(values) else []


def _index(uri: str, keys: pa.Table, schema: TableSchema, exact: bool, storage_options: StorageOptions) -> list[Wrong]:
    problem: str | None
    try:
        with read_errors("the key index can't be read", object=uri):
            files = LanceFileSession(uri, storage_options=dict(storage_options or {}))
            problem = index_problem(files=files, values=key_column(keys, schema.primary_key), exact=exact)
    except (Corrupt, Invalid) as error:
        problem = error.message
    return [Wrong(path=KEY_INDEX, problem=problem)] if problem else []


def _filter(bloom: bytes | None, keys: pa.Table, exact: bool) -> list[Wrong]:
    if bloom is None or len(bloom) != BYTES:
        what = "it is gone" if bloom is None else f"it has {len(bloom)} bytes, not {BYTES}"
        return [Wrong(path=BLOOM, problem=what)]
    bits, wanted = (np.frombuffer(one, np.uint8) for one in (bloom, build_bloom(keys)))
    if (wanted & ~bits).any():
        return [Wrong(path=BLOOM, problem="it excludes a key of the generation")]
    if exact and (bits & ~wanted).any():
        return [Wrong(path=BLOOM, problem="it is not the filter over the generation's keys")]
    return []


def _fragment(
    base: BaseTable, fragment: LanceFragment, directories: BaseDirectories, lines: Lines
) -> tuple[pa.Array | None, Wrong | None]:
    """Check a fragment. Return the keys of its live rows, or the wrong file."""
    metadata = fragment.metadata
    data, deletions = _files(metadata, directories)
    for file, written in data:
        if file.size is None:
            return None, Wrong(path=file.path, problem="it is gone")
        if written and file.size != written:
            return None, Wrong(path=file.path, problem=f"it has {file.size} bytes, but {written} were written")
        if problem := _sum_problem(base, file, metadata.physical_rows, lines):
            return None, Wrong(path=file.path, problem=problem)
    if deletions is not None and (problem := _deletion_problem(base, deletions, metadata, lines)):
        return None, Wrong(path=deletions.path, problem=problem)
    keys, rows = [], 0
    try:
        with read_errors("the base can't be read", table=base.uri):
            options = scan_options(base.dataset, base.dataset.schema.names)
            scanner = base.dataset.scanner(fragments=[fragment], **options)
            for batch in scanner.to_batches():
                batch.validate(full=True)
                rows += batch.num_rows
                keys.append(key_column(batch, base.schema.primary_key))
    except (Corrupt, Invalid) as error:
        return None, _wrong_file(base, metadata, directories, error.message)
    if rows != metadata.physical_rows - metadata.num_deletions:
        live = metadata.physical_rows - metadata.num_deletions
        problem = f"{rows} rows are live, but the version records {live}"
        return None, _wrong_file(base, metadata, directories, problem)
    return pa.chunked_array(keys).combine_chunks() if keys else None, None


def _sum_problem(base: BaseTable, file: _File, rows: int, lines: Lines) -> str:
    """Compare a file, or the directory of an index, with its line. Return the problem, or an empty string."""
    line = lines.get(file.path)
    if line is None:
        return ""
    if line.rows != rows:
        return f"the version records {rows} rows in it, but {line.rows} are stated"
    named = NamedFile(root=file.directory.uri, key=file.key, path=file.path, bytes=file.size)
    try:
        found = sum_file(named, options=base.storage_options)
    except (Corrupt, Invalid) as error:
        return error.message
    return "" if found.sum == line.sum else "its bytes are not those that were written"


def _deletion_problem(base: BaseTable, file: _File, metadata: FragmentMetadata, lines: Lines) -> str:
    """Check the deletion file of a fragment. Return the problem, or an empty string.

    This must come before Lance reads the file: a file that declares too much memory makes Lance end the whole process.
    """
    if file.size is None:
        return "it is gone"
    if problem := _sum_problem(base, file, metadata.num_deletions, lines):
        return problem
    if not file.key.endswith(".arrow"):
        return ""
    with read_errors("a deletion file can't be read", table=base.uri):
        files = LanceFileSession(file.directory.uri, storage_options=dict(base.storage_options or {}))
        body = bytes(files.read_range(file.key, 0, file.size))
    return arrow_problem(body, rows=metadata.physical_rows, hidden=metadata.num_deletions)


def _wrong_file(base: BaseTable, metadata: FragmentMetadata, directories: BaseDirectories, problem: str) -> Wrong:
    """Find the wrong file of a fragment: the first data file that can't be read alone, else the deletion file."""
    data, deletions = _files(metadata, directories)
    for file, _ in data:
        try:
            with read_errors("a data file can't be read", table=base.uri):
                files = LanceFileSession(file.directory.uri, storage_options=dict(base.storage_options or {}))
                rows = sum(batch.num_rows for batch in files.open_reader(file.key).read_all().to_batches())
        except (Corrupt, Invalid) as error:
            return Wrong(path=file.path, problem=error.message)
        if rows != metadata.physical_rows:
            return Wrong(path=file.path, problem=f"it has {rows} rows, but {metadata.physical_rows} were written")
    wrong = deletions or (data[0][0] if data else None)
    return Wrong(path=wrong.path if wrong else VERSIONS, problem=problem)


def _files(
    metadata: FragmentMetadata, directories: BaseDirectories
) -> tuple[list[tuple[_File, int | None]], _File | None]:
    """Return the data files of a fragment, each with the size that was written, and its deletion file."""
    data = [
        (_File(directory, f"data/{file.path}"), file.file_size_bytes)
        for file in metadata.files
        if (directory := directories.get(file.base_id)) is not None
    ]
    file = metadata.deletion_file
    directory = None if file is None else directories.get(file.base_id)
    return data, None if file is None or directory is None else _File(directory, str(file.path(metadata.id)))


def _repeated(keys: list[tuple[str, pa.Array]]) -> Iterator[Wrong]:
    """Find fragments with a key that an earlier row, of any fragment, already has."""
    if not keys:
        return
    every = pa.chunked_array([column for _, column in keys])
    first = pc.index_in(every, value_set=every).to_numpy()
    start = 0
    for path, column in keys:
        repeated = first[start : start + len(column)] != np.arange(start, start + len(column))
        start += len(column)
        if repeated.any():
            yield Wrong(path=path, problem=f"{int(repeated.sum())} keys are in the base twice")
