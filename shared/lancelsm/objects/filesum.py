"""Compute the sum over the files from which the rows of a generation are read.

The sum covers the version files, which list the files of the generation, the data files and the deletion files. It does
not cover the key index and the bloom filter, which contain no rows, nor Lance's version hint and transaction files,
which are not read, since generations are opened by version. Each file is one item: its path below the directory of the
generation, a zero byte, and its bytes. So the sum detects files that were changed, truncated, deleted, moved or added.
"""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt
from lancelsm.objects import Listed, ObjectStore

_VERSIONS, _VERSION = "_versions/", ".manifest"
_ROWS = ("data/", "_deletions/")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSums:
    """The sum over these files. Their keys are relative to the directory of the generation."""

    setsum: Setsum
    files: tuple[Listed, ...]

    def __str__(self) -> str:
        """List each file with its size, for error messages."""
        return ", ".join(f"{file.key} of {file.size} bytes" for file in self.files) or "none"


def sum_files(objects: ObjectStore, key: str) -> FileSums:
    """Read and sum the files of a generation, one after the other. Each file is read into memory as a whole.

    Args:
        objects: the object store of the table.
        key: the directory of the generation.

    Raises:
        Unavailable: the store did not answer.
    """
    total, files = Setsum.ZERO, []
    for listed in objects.list(f"{key}/"):
        path = listed.key.removeprefix(f"{key}/")
        if not _is_summed(path) or (found := objects.get(listed.key)) is None:
            continue
        total += Setsum.of_item(path.encode() + b"\0", found.body)
        files.append(Listed(key=path, size=len(found.body)))
    return FileSums(setsum=total, files=tuple(files))


def check_files(objects: ObjectStore, key: str, expected: Setsum) -> None:
    """Compare the files of a generation with the sum that its flush recorded.

    Raises:
        Corrupt: the files differ. The error names the directory of the generation and the files in it.
        Unavailable: the store did not answer.
    """
    found = sum_files(objects, key)
    if found.setsum != expected:
        raise Corrupt(
            f"the files of a generation are not those that were flushed; there are {found}",
            remedy="Restore it from a copy of the bucket; lancelsm scrub lists all damage",
            object=key,
        )


def _is_summed(path: str) -> bool:
    return path.startswith(_ROWS) or (path.startswith(_VERSIONS) and path.endswith(_VERSION))
