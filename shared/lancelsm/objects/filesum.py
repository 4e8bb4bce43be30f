"""Compute the sums over the files of a generation: those from which its rows are read, and those of its indexes.

The sum of the rows covers the version files, which list the files of the generation, the data files and the deletion
files. It does not cover the key index and the bloom filter, which contain no rows, nor Lance's version hint and
transaction files, which are not read, since generations are opened by version. Each file is one item: its path below
the directory of the generation, a zero byte, and its bytes. So the sum detects files that were changed, truncated,
deleted, moved or added.

An index is a new Lance version of the directory, perhaps long after the flush. Its version file and the files of the
index belong to a sum of their own, so the sum of the rows never changes. A version file that lists indexes belongs to
the sum of the indexes, any other to the sum of the rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

from google.protobuf.message import DecodeError

from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt
from lancelsm.generated.lance import table_pb2
from lancelsm.objects import Listed, ObjectStore
from lancelsm.objects.local_copies import LocalCopy

_VERSIONS, _VERSION = "_versions/", ".manifest"
_ROWS = ("data/", "_deletions/")
_INDICES = "_indices/"
_FOOTER = 16  # position of the manifest, format version, magic
_LAST_VERSION = (1 << 64) - 1
WHOLE_BYTES = 64 << 20  # a larger file is read in pieces
_PIECE = 8 << 20

ReadRange = Callable[[str, int, int], bytes]
"""Reads bytes of an object: its key, the first byte and the number of bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSums:
    """The sum over these files. Their keys are relative to the directory of the generation."""

    setsum: Setsum
    files: tuple[Listed, ...]

    def __str__(self) -> str:
        """List each file with its size, for error messages."""
        return ", ".join(f"{file.key} of {file.size} bytes" for file in self.files) or "none"


def sum_files(
    objects: ObjectStore, key: str, *, copy: LocalCopy | None = None, read_range: ReadRange | None = None
) -> FileSums:
    """Read and sum the files of a generation that hold its rows, one after the other.

    Args:
        objects: the object store of the table.
        key: the directory of the generation.
        copy: gets the files that are summed.
        read_range: reads a part of an object: the key, the first byte and the number of bytes. With it, a file that is
            larger than 64 MiB is read in pieces, else each file is read into memory as a whole.

    Raises:
        Unavailable: the store did not answer.
    """
    total, files = Setsum.ZERO, []
    for listed in objects.list(f"{key}/"):
        path = listed.key.removeprefix(f"{key}/")
        if not (path.startswith(_ROWS) or _is_version(path)):
            continue
        if read_range is not None and listed.size > WHOLE_BYTES:
            total += Setsum.of_pieces(_pieces(read_range, listed, path, copy))
            files.append(Listed(key=path, size=listed.size))
            continue
        if (found := objects.get(listed.key)) is None:
            continue
        if _is_version(path) and lists_indexes(found.body):
            continue
        total += Setsum.of_item(path.encode() + b"\0", found.body)
        files.append(Listed(key=path, size=len(found.body)))
        if copy is not None:
            copy.add(path, found.body)
    return FileSums(setsum=total, files=tuple(files))


def _pieces(read_range: ReadRange, listed: Listed, path: str, copy: LocalCopy | None) -> Iterator[bytes]:
    yield path.encode() + b"\0"
    for start in range(0, listed.size, _PIECE):
        piece = read_range(listed.key, start, min(_PIECE, listed.size - start))
        if copy is not None:
            copy.add(path, piece)
        yield piece


def sum_indexes(objects: ObjectStore, key: str, *, version: int) -> FileSums:
    """Read and sum the files of the indexes of a generation, and the version file that lists them.

    Args:
        objects, key: see `sum_files`.
        version: the Lance version of the directory.

    Raises:
        Corrupt: the version file is missing or can't be decoded.
        Unavailable: the store did not answer.
    """
    names = (f"{_VERSIONS}{_LAST_VERSION - version:020}{_VERSION}", f"{_VERSIONS}{version}{_VERSION}")
    for name in names:
        if (found := objects.get(f"{key}/{name}")) is not None:
            break
    else:
        raise Corrupt(
            f"version {version} of a generation, which has its indexes, is missing", object=f"{key}/{names[0]}"
        )
    total = Setsum.of_item(name.encode() + b"\0", found.body)
    files = [Listed(key=name, size=len(found.body))]
    try:
        section = _index_section(found.body)
    except (struct.error, DecodeError, ValueError) as cause:
        raise Corrupt("a version file of a generation can't be read", object=f"{key}/{name}") from cause
    for one in section.indices:
        for listed in objects.list(f"{key}/{_INDICES}{UUID(bytes=one.uuid.uuid)}/"):
            path = listed.key.removeprefix(f"{key}/")
            if (file := objects.get(listed.key)) is not None:
                total += Setsum.of_item(path.encode() + b"\0", file.body)
                files.append(Listed(key=path, size=len(file.body)))
    return FileSums(setsum=total, files=tuple(files))


def lists_indexes(version_file: bytes) -> bool:
    """Return whether a version file of Lance lists indexes; False if it can't be decoded."""
    try:
        return bool(_index_section(version_file).indices)
    except (struct.error, DecodeError, ValueError):
        return False


def _index_section(version_file: bytes) -> table_pb2.IndexSection:
    (position,) = struct.unpack("<q", version_file[-_FOOTER:-8])
    manifest = table_pb2.Manifest.FromString(_message(version_file, position))
    if not manifest.HasField("index_section"):
        return table_pb2.IndexSection()
    return table_pb2.IndexSection.FromString(_message(version_file, manifest.index_section))


def _message(body: bytes, position: int) -> bytes:
    """Return the length-prefixed message at `position`."""
    if position < 0:
        raise ValueError(f"position {position}")
    (length,) = struct.unpack_from("<I", body, position)
    return body[position + 4 : position + 4 + length]


def check_files(
    objects: ObjectStore,
    key: str,
    expected: Setsum,
    *,
    copy: LocalCopy | None = None,
    read_range: ReadRange | None = None,
) -> None:
    """Compare the files of a generation with the sum that its flush recorded.

    Args:
        copy, read_range: see `sum_files`.

    Raises:
        Corrupt: the files differ. The error names the directory of the generation and the files in it.
        Unavailable: the store did not answer.
    """
    found = sum_files(objects, key, copy=copy, read_range=read_range)
    if found.setsum != expected:
        raise Corrupt(
            f"the files of a generation are not those that were flushed; there are {found}",
            remedy="Restore it from a copy of the bucket; lancelsm scrub lists all damage",
            object=key,
        )


def _is_version(path: str) -> bool:
    return path.startswith(_VERSIONS) and path.endswith(_VERSION)
