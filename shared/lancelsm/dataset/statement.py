"""The statement of files: what proves a file of the base.

Lance keeps no checksums of its files. So each commit of lancelsm to the base names, in the schema metadata of the same
version, an object that states size, sum and rows of every file of that version. The key of this object has its own sum.
A line is written when the file is: the file is summed, and then read back (`dataset.read_back`), before any version
names it. A file without a line was added by another tool, or by an earlier release. The next commit or collection sums
it as it is found there, and marks the line `found`.

A statement also has the sum of the manifest on which its commit was made, and of the manifests between that one and the
last statement. So the manifest of a version is in the first statement after it. Model: tests/model/base_statement.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from google.protobuf.message import DecodeError

from lancelsm.common.formats import check_format
from lancelsm.common.layout import statement_key, statement_version
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.base_manifest import MEM_WAL_INDEX
from lancelsm.dataset.base_table import BaseTable, StorageOptions
from lancelsm.dataset.merged_generations import find_manifest, manifest_names
from lancelsm.dataset.native import read_errors
from lancelsm.dataset.scan_options import scan_options
from lancelsm.errors import Corrupt, Unavailable
from lancelsm.generated.lancelsm.v1 import files_pb2 as pb
from lancelsm.objects import ObjectStore, put_once
from lancelsm.objects.local_copies import LocalCopy
from lancelsm.objects.open import open_store

if TYPE_CHECKING:  # a process that only looks at a table does not load Lance
    import lance
    from lance.file import LanceFileSession
    from lance.fragment import FragmentMetadata

FILES = "lancelsm.files"  # schema metadata of the base: the key of the statement

_FORMAT = 2  # as in other objects with sums: 1 would mean SHA3-256
_TRIES = 3
_PIECE = 8 << 20
_MANIFESTS = 32  # a statement has at most this many manifests
_BYTES_FOUND = 32 << 20  # one commit sums at most this many bytes of files without a line; a collection sums the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedFile:
    """What a statement records about a file, or about the directory of an index.

    Args:
        path: relative to the table; absolute if the file is shared with the source of a clone.
        sum: over the key of the file below its table, a zero byte and its bytes; for an index over all its files.
        rows: of a data file, hidden ones included; or the number of rows that a deletion file hides.
        found: whether another writer wrote it, so that its rows were trusted at first sight.
    """

    path: str
    bytes: int
    sum: Setsum
    rows: int = 0
    found: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The files of one version of the base, by path. The commit was made on `version`."""

    version: int
    files: Mapping[str, StatedFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A file, or the directory of an index, that a version of the base names.

    Args:
        root: URI of the table in whose directory it is.
        key: relative to `root`.
        path: as in `StatedFile`.
        bytes: its size, if the version records it.
    """

    root: str
    key: str
    path: str
    rows: int = 0
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stating:
    """What a commit needs for its statement.

    Args:
        objects: the object store of the table.
        new: lines of the files that are new in this commit.
        read: sums of the old files that the new ones were derived from.
        known: lines that are known in addition to the statement of the version on which the commit is made.
    """

    objects: ObjectStore
    new: tuple[StatedFile, ...] = ()
    read: tuple[StatedFile, ...] = ()
    known: Mapping[str, StatedFile] = field(default_factory=dict)


def state_files(
    stating: Stating, dataset: lance.LanceDataset, fragments: Iterable[FragmentMetadata], options: StorageOptions
) -> str:
    """Write the statement for a commit on this version that will name these fragments. Return its key.

    Raises:
        Corrupt: an old file is not the stated one, or the version records another number of rows than was stated.
        Unavailable: a store did not answer.
    """
    old = usable_statement(stating.objects, metadata_of(dataset))
    lines = {**stating.known, **(old.files if old else {})}
    for one in stating.read:
        check_line(one, lines.get(one.path))  # guard: merge relies on stated deletion files
    lines |= {one.path: one for one in stating.new}
    stated, left = {}, _BYTES_FOUND
    for named in named_files(dataset, fragments):
        line = lines.get(named.path)
        if line is None and (named.bytes or 0) <= left:
            line = sum_file(named, options=options, found=True)
            left -= line.bytes
        if line is not None:
            check_rows_of(named, line)  # guard: statement has the rows that the version records
            stated[named.path] = line
    first = max(dataset.version - _MANIFESTS + 1, old.version + 1 if old else dataset.version)
    for version in range(first, dataset.version + 1):
        if (manifest := sum_manifest(stating.objects, version)) is not None:
            stated[manifest.path] = manifest
    return write_statement(stating.objects, Statement(version=dataset.version, files=stated))


def write_statement(objects: ObjectStore, statement: Statement) -> str:
    """Write a statement, and return its key.

    Raises:
        Unavailable: the store did not answer.
    """
    body = encode(statement)
    key = statement_key(statement.version + 1, Setsum.of_item(body).hex())
    if put_once(objects, key, body, attempts=range(_TRIES)) != body:
        raise Unavailable("the statement of files could not be written", object=key)
    return key


def read_statement(objects: ObjectStore, key: str) -> Statement:
    """Read the statement with this key.

    Raises:
        Corrupt: it is missing or unreadable, or has another sum; or this is not the key of a statement.
        Invalid: a newer release wrote it.
    """
    version = statement_version(key)
    if version is None:
        raise Corrupt(f"this is not the key of a statement of files: {key!r:.200}", field=FILES)
    found = objects.get(key)
    if found is None:
        raise Corrupt("the statement of files is gone", object=key)
    own = statement_key(version, Setsum.of_item(found.body).hex())
    if own != key:  # guard: statement has its sum
        raise Corrupt("the statement of files is not the one that was committed", object=key)
    return decode(found.body, key=key)


def usable_statement(objects: ObjectStore, metadata: Mapping[str, str]) -> Statement | None:
    """Read the statement of a version; None if there is none, or if it is wrong: then its files have no lines."""
    try:
        return read_statement(objects, metadata[FILES]) if FILES in metadata else None
    except Corrupt:
        return None


def files_of(base: BaseTable) -> list[NamedFile]:
    """Return the files that a version names.

    Raises:
        Corrupt: its fragments or indexes can't be read.
        Unavailable: the store did not answer.
    """
    if base.manifest is not None:
        return [
            NamedFile(root=base.uri, key=one.key, path=one.key, rows=one.rows, bytes=one.bytes)
            for one in base.manifest.files
        ]
    with read_errors("the base's fragments can't be read", table=base.uri):
        return list(named_files(base.dataset, (one.metadata for one in base.dataset.get_fragments())))


def check_stated(base: BaseTable, objects: ObjectStore, files: Iterable[NamedFile]) -> None:
    """Sum those of these files that the statement of a version has, before they are copied.

    Args:
        objects: the object store of the table.

    Raises:
        Corrupt: a file is missing, or is not the one that was written. The error names it.
        Unavailable: the store did not answer.
    """
    stated = usable_statement(objects, base.metadata)
    for one in files:
        line = None if stated is None else stated.files.get(one.path)
        if line is not None:
            check_rows_of(one, line)
            check_line(sum_file(one, options=base.storage_options), line)  # guard: copied files are the stated ones


def check_found(base: BaseTable, named: NamedFile) -> None:
    """Decode all rows of a data or deletion file that another tool wrote, and count them. An index can't be decoded.

    Raises:
        Corrupt: it can't be decoded, or has another number of rows than the version records.
        Unavailable: the store did not answer.
    """
    from lancelsm.dataset.deletions import hidden_rows  # noqa: PLC0415 - loads numpy

    folder, options = named.key.partition("/")[0], base.storage_options
    if folder == "_deletions":
        body = open_store(named.root, options).get(named.key)
        try:
            rows = 0 if body is None else len(hidden_rows(body.body, arrow=named.key.endswith(".arrow")))
        except ValueError as error:
            raise Corrupt(f"a deletion file can't be read: {error}", table=base.uri, object=named.path) from error
    elif folder == "data":
        with read_errors("a data file can't be read", table=base.uri, object=named.path):
            (fragment,) = (one for one in base.dataset.get_fragments() if _has(one.metadata, named.key))
            rows = sum(batch.num_rows for batch in _every_row(base.dataset, fragment))
    else:
        return
    if rows != named.rows:
        what = f"a file of the base has {rows} rows, but its version records {named.rows}"
        raise Corrupt(what, table=base.uri, object=named.path)


def _every_row(dataset: lance.LanceDataset, fragment: lance.LanceFragment) -> Iterator[pa.RecordBatch]:
    options = scan_options(dataset, dataset.schema.names)
    scanner = dataset.scanner(fragments=[fragment], include_deleted_rows=True, with_row_id=True, **options)
    yield from scanner.to_batches()


def _has(fragment: FragmentMetadata, key: str) -> bool:
    return any(f"data/{file.path}" == key for file in fragment.files)


def named_files(
    dataset: lance.LanceDataset, fragments: Iterable[FragmentMetadata], *, indexes: bool = True
) -> Iterator[NamedFile]:
    """Yield the data and deletion files of these fragments, and the directories of the indexes of a version.

    Leaves out files in directories that are not those of a table, which lancelsm does not read.
    """
    roots: dict[int | None, tuple[str, str]] = {None: (dataset.uri, "")}
    known = dataset.base_paths()
    for number, one in known.items():
        if one.is_dataset_root:
            roots[number] = (one.path, f"{one.path}/")

    def named(base_id: int | None, key: str, rows: int = 0, size: int | None = None) -> Iterator[NamedFile]:
        if base_id is not None and base_id not in known:
            what = f"a file of the base is in directory {base_id}, which version {dataset.version} does not have"
            raise Corrupt(what, table=dataset.uri, object=key)
        if base_id in roots:
            root, prefix = roots[base_id]
            yield NamedFile(root=root, key=key, path=prefix + key, rows=rows, bytes=size)

    for fragment in fragments:
        for file in fragment.files:
            yield from named(file.base_id, f"data/{file.path}", fragment.physical_rows, file.file_size_bytes)
        if (hidden := fragment.deletion_file) is not None:
            yield from named(hidden.base_id, str(hidden.path(fragment.id)), fragment.num_deletions)
    for index in dataset.describe_indices() if indexes else ():
        for segment in index.segments if index.name != MEM_WAL_INDEX else ():
            yield from named(segment.base_id, f"_indices/{segment.uuid}")


def sum_file(
    named: NamedFile, *, options: StorageOptions, found: bool = False, copy: LocalCopy | None = None
) -> StatedFile:
    """Read and sum a file, or all files of an index, piece by piece.

    Args:
        copy: gets the file, if it is a data file.

    Raises:
        Corrupt: it is missing.
        Unavailable: the store did not answer.
    """
    objects = open_store(named.root, options)
    if named.key.startswith("_deletions/"):  # small, and no version records its size
        body = objects.get(named.key)
        if body is None:
            raise Corrupt("a file of the base is gone", table=named.root, object=named.path)
        return replace(sum_body(named.key, body.body, rows=named.rows, path=named.path), found=found)
    files = _session(named.root, options)
    if named.bytes is not None:
        sizes = {named.key: named.bytes}
    else:
        listed = objects.list(named.key)
        sizes = {one.key: one.size for one in listed if one.key == named.key or one.key.startswith(f"{named.key}/")}
    if not sizes and not named.key.startswith("_indices/"):  # an index of no rows has no files
        raise Corrupt("a file of the base is gone", table=named.root, object=named.path)
    total = Setsum.ZERO
    for key, size in sizes.items():
        with read_errors("a file of the base can't be read", table=named.root, object=named.path):
            total += Setsum.of_pieces(_pieces(files, key, size, copy))
    return StatedFile(path=named.path, bytes=sum(sizes.values()), sum=total, rows=named.rows, found=found)


def file_pieces(root: str, key: str, size: int, *, options: StorageOptions) -> Iterator[bytes]:
    """Yield what is summed of a file below `root`: its key, a zero byte, and its bytes, piece by piece.

    Raises: `Corrupt` or `Unavailable`, if it can't be read.
    """
    with read_errors("a file of the base can't be read", table=root, object=key):
        yield from _pieces(_session(root, options), key, size)


def _session(root: str, options: StorageOptions) -> LanceFileSession:
    from lance.file import LanceFileSession  # noqa: PLC0415

    return LanceFileSession(root, storage_options=dict(options or {}))


def _pieces(files: LanceFileSession, key: str, size: int, copy: LocalCopy | None = None) -> Iterator[bytes]:
    yield key.encode() + b"\0"
    for start in range(0, size, _PIECE):
        piece = bytes(files.read_range(key, start, min(_PIECE, size - start)))
        if copy is not None:
            copy.add(key, piece)
        yield piece


def sum_body(key: str, body: bytes, *, rows: int = 0, path: str | None = None) -> StatedFile:
    """Return the line of a small file whose bytes were read."""
    summed = Setsum.of_item(key.encode() + b"\0", body)
    return StatedFile(path=path or key, bytes=len(body), sum=summed, rows=rows)


def sum_manifest(objects: ObjectStore, version: int) -> StatedFile | None:
    """Return the line of the manifest of a version; None if the version is gone."""
    found = find_manifest(objects=objects, version=version)
    return None if found is None else sum_body(*found)


def manifest_line(statement: Statement, version: int) -> StatedFile | None:
    """Return the line that a statement has for the manifest of a version."""
    return next((statement.files[name] for name in manifest_names(version) if name in statement.files), None)


def check_line(found: StatedFile, stated: StatedFile | None) -> None:
    """Raise `Corrupt` if a file does not have the stated size and sum; nothing is known without a line."""
    if stated is not None and (found.bytes, found.sum) != (stated.bytes, stated.sum):
        raise Corrupt(
            f"a file of the base is not the one that was written: it has {found.bytes} bytes with the sum "
            f"{found.sum.hex()}, but {stated.bytes} bytes with the sum {stated.sum.hex()} are stated",
            remedy="Restore it from a copy of the bucket; lancelsm scrub names every wrong file",
            object=found.path,
        )


def check_rows_of(named: NamedFile, stated: StatedFile) -> None:
    """Raise `Corrupt` if a version records another number of rows in a file than was stated."""
    if named.rows != stated.rows:
        raise Corrupt(
            f"the manifest of the base records {named.rows} rows in a file, but {stated.rows} are stated",
            remedy="Restore the base to an earlier version; lancelsm scrub names every wrong file",
            object=named.path,
        )


def metadata_of(dataset: lance.LanceDataset) -> dict[str, str]:
    """Return the schema metadata of a version."""
    return {key.decode(): value.decode() for key, value in (dataset.schema.metadata or {}).items()}


def encode(statement: Statement) -> bytes:
    """Encode a statement. Equal values give equal bytes."""
    message = pb.Statement(
        format=_FORMAT,
        version=statement.version,
        files=[
            pb.StatedFile(path=one.path, bytes=one.bytes, sum=one.sum.digest(), rows=one.rows, found=one.found)
            for _, one in sorted(statement.files.items())
        ],
    )
    return message.SerializeToString(deterministic=True)


def decode(body: bytes, *, key: str) -> Statement:
    """Decode a statement, the inverse of `encode`. Raises: the same errors as `read_statement`."""
    try:
        message = pb.Statement.FromString(body)
        check_format(message.format, newest=_FORMAT, what="statement of files", object=key)
        files = (
            StatedFile(path=one.path, bytes=one.bytes, sum=Setsum.from_digest(one.sum), rows=one.rows, found=one.found)
            for one in message.files
        )
        return Statement(version=message.version, files={one.path: one for one in files})
    except (DecodeError, Corrupt) as error:
        raise Corrupt(f"not a statement of files: {error!r}", object=key) from error
