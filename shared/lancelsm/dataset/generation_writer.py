"""Write generations: the rows of flushed entries, with the filters and the key index that Lance 14 writes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import lance
import pyarrow as pa
from lance.file import LanceFileSession
from lance.fragment import DataFile, FragmentMetadata, write_fragments

from lancelsm.common.full_disk import means_full, no_room
from lancelsm.common.layout import KEY_FILTER
from lancelsm.common.setsum import Setsum
from lancelsm.common.task_pool import ahead, in_threads
from lancelsm.dataset.bloom import build_bloom
from lancelsm.dataset.fields import Numbering, numbering
from lancelsm.dataset.generation import BLOOM, StorageOptions
from lancelsm.dataset.key_filter import build_key_filter
from lancelsm.dataset.native import Carried, native_errors
from lancelsm.dataset.pk_index import write_pk_index
from lancelsm.errors import Corrupt, Invalid
from lancelsm.objects.location import local_path
from lancelsm.record.admission import OLD_FILE_VERSIONS, is_any
from lancelsm.record.schema import TOMBSTONE, TableSchema

_LOCAL_HINT = "latest_version_hint.json"  # Lance writes it into local directories only
_AHEAD = 2  # batches that are ready when Lance wants them
_BATCH_ROWS = 4096
_COMPRESSION = b"lance-encoding:compression"
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSums:
    """The setsums of the bloom filter, of each file of the key index (`KEY_INDEX_FILES`), and of the key filter."""

    bloom: Setsum
    key_index: tuple[Setsum, ...]
    key_filter: Setsum
    filter_blocks: int  # the size of the key filter


def write_generation(
    *,
    uri: str,
    keys: pa.Table,
    rows: Iterable[pa.RecordBatch],
    schema: TableSchema,
    data_storage_version: str,
    staged: bool = False,
    parallel: int = 1,
    storage_options: StorageOptions = None,
) -> WrittenSums:
    """Write a generation into a directory that does not exist yet.

    Args:
        uri: path or URL of the directory.
        keys: has the key columns of all rows; at least one row, and each key once.
        rows: these rows in the form of `schema.stored`; read once. An `LsmError` that the iterable raises is raised
            unchanged.
        data_storage_version: of the base. For a base before 2.1 the generation uses 2.1, since older formats can't
            store the null structs of a tombstone.
        staged: write the dataset into a temporary directory, and copy its files to an object store. Lance sends more
            requests if it writes there itself.
        parallel: maximum number of threads. With 2 and many rows, while Lance writes rows, the filters and the key
            index are built, and the next rows are taken.

    Raises:
        Invalid: there are no rows, or they can't be stored.
        Unavailable: the store did not answer. The directory must not be used again.

    The files are not durable yet: see `dataset.durable`. A crash leaves an orphan directory.
    """
    if keys.num_rows == 0:
        raise Invalid("a generation holds at least one row", object=uri)
    keys = keys.select(list(schema.primary_key))
    threads = threads_for(keys.num_rows, parallel)
    carried = Carried(ahead(rows, count=_AHEAD) if threads > 1 else rows)
    written: list[WrittenSums] = []
    with (
        native_errors("the generation can't be written", object=uri, reading=carried),
        _written_locally(uri, storage_options) as local,
    ):
        at, options = (str(local), None) if staged else (uri, storage_options)
        version = _format(data_storage_version)

        def write_rows() -> None:
            _write_dataset(at, carried, keys.num_rows, schema, version, options, compressed=local_path(uri) is None)

        def write_filters() -> None:
            written.append(_write_filters(keys, schema, local, name=uri.rpartition("/")[2]))

        in_threads(lambda write: write(), (write_rows, write_filters), most=threads)
    return written[0]


def discard_generation(uri: str) -> None:
    """Remove what `write_generation` and its caller wrote, if it is in a local directory.

    Only the process that chose the name of the directory may call this, and only if it never commits the name: then
    nobody else can need the files. What can't be removed is an orphan.
    """
    path = local_path(uri)
    if path is not None:
        shutil.rmtree(path, ignore_errors=True)


def threads_for(rows: int, most: int) -> int:
    """Return how many threads write a generation of this many rows. For few, a thread costs more than it saves."""
    return most if rows > _BATCH_ROWS else 1


def _write_filters(keys: pa.Table, schema: TableSchema, local: Path, *, name: str) -> WrittenSums:
    """Write the key index and both filters."""
    local.mkdir(parents=True, exist_ok=True)
    key_index = write_pk_index(keys=keys, local=local)
    bloom, key_filter = build_bloom(keys), build_key_filter(keys.cast(schema.key), name=name)
    (local / BLOOM).write_bytes(bloom)
    (local / KEY_FILTER).write_bytes(key_filter.body)
    return WrittenSums(
        bloom=Setsum.of_item(bloom),
        key_index=key_index,
        key_filter=Setsum.of_item(key_filter.body),
        filter_blocks=key_filter.blocks,
    )


def _format(data_storage_version: str) -> str:
    return "2.1" if data_storage_version in OLD_FILE_VERSIONS else data_storage_version


def _write_dataset(
    uri: str,
    rows: Iterable[pa.RecordBatch],
    count: int,
    schema: TableSchema,
    data_storage_version: str,
    storage_options: StorageOptions,
    *,
    compressed: bool,
) -> None:
    """Write one fragment for any number of rows: the key index stores row offsets in the whole generation."""
    options, numbers = dict(storage_options or {}), numbering(schema)
    names = numbers.plain.names
    encoded = numbers.plain if compressed else pa.schema(map(_uncompressed, numbers.plain))
    batches = (pa.RecordBatch.from_arrays(batch.select(names).columns, schema=encoded) for batch in rows)
    fragments = write_fragments(
        pa.RecordBatchReader.from_batches(encoded, batches),
        uri,
        mode="create",
        max_rows_per_file=max(count, 1),
        max_bytes_per_file=1 << 62,
        data_storage_version=data_storage_version,
        storage_options=options,
    )
    if len(fragments) != 1:
        raise Corrupt(f"Lance wrote {len(fragments)} fragments instead of one", object=uri)
    if numbers.is_fresh:
        create = lance.LanceOperation.Overwrite(numbers.fresh, fragments)
        lance.LanceDataset.commit(uri, create, storage_options=options)
        return
    # The first commit of a dataset always numbers the columns from 0; a Merge can set other ids.
    nothing = pa.schema([pa.field(TOMBSTONE, pa.bool_())]).empty_table()
    lance.write_dataset(
        nothing,
        uri,
        data_storage_version=data_storage_version,  # type: ignore[arg-type]
        storage_options=options,
    )
    merge = lance.LanceOperation.Merge([_renumbered(fragments[0], numbers)], numbers.wanted)
    lance.LanceDataset.commit(uri, merge, read_version=1, storage_options=options)


def _uncompressed(field: pa.Field) -> pa.Field:
    """Return a field whose texts Lance writes as they are, unless the table states how to compress them.

    Lance compresses texts by FSST to about half the size, at 330 MB/s of CPU time: faster than a network, and slower
    than a disk.
    """
    metadata = field.metadata or {}
    if _COMPRESSION in metadata or not is_any(field.type, _TEXTS):
        return field
    return field.with_metadata({**metadata, _COMPRESSION: b"none"})


def _renumbered(fragment: FragmentMetadata, numbers: Numbering) -> FragmentMetadata:
    files = [
        DataFile(
            path=str(file.path),
            fields=[numbers.ids[number] for number in file.fields],
            column_indices=file.column_indices,
            file_major_version=file.file_major_version,
            file_minor_version=file.file_minor_version,
            file_size_bytes=file.file_size_bytes,
        )
        for file in fragment.files
    ]
    return replace(fragment, files=files)


@contextmanager
def _written_locally(uri: str, storage_options: StorageOptions) -> Iterator[Path]:
    """Yield a local directory, whose files are in the generation at the end: its own, or a temporary one."""
    path = local_path(uri)
    if path is not None:
        yield path
        return
    with _temporary_directory() as local:
        yield local
        files = LanceFileSession(uri, storage_options=dict(storage_options or {}))
        for file in (one for one in local.rglob("*") if one.is_file() and one.name != _LOCAL_HINT):
            files.upload_file(file, str(file.relative_to(local)))


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory(prefix="lancelsm-") as directory:
            yield Path(directory)
    except OSError as error:
        if means_full(error):
            raise no_room("a temporary file can't be written", path=tempfile.gettempdir()) from error
        raise
