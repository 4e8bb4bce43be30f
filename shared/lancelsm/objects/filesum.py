"""The sum over the files that the rows of a generation are read from.

It covers the version files, which say what belongs to the generation, and the files that hold rows or hide some. The
key index and the bloom filter lead to rows but hold none, and Lance's hint at its newest version and its notes on
transactions are not read: generations are opened by version. An item is a file: its path below the generation's
directory, a zero byte, its bytes. So a file that changed, is cut, gone, from elsewhere or one too many shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt
from lancelsm.objects import Listed, ObjectStore

_VERSIONS, _VERSION = "_versions/", ".manifest"
_ROWS = ("data/", "_deletions/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """The sum over these files; the keys are below the generation's directory."""

    setsum: Setsum
    files: tuple[Listed, ...]

    def __str__(self) -> str:
        """Each file and its size, for an error."""
        return ", ".join(f"{file.key} of {file.size} bytes" for file in self.files) or "none"


def sum_files(objects: ObjectStore, key: str) -> Summed:
    """Read and sum the files of a generation, one at a time: each is held whole, as it was when it was flushed.

    Args:
        objects: the table's.
        key: of the generation's directory.

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
    return Summed(setsum=total, files=tuple(files))


def check_files(objects: ObjectStore, key: str, expected: Setsum) -> None:
    """Compare the files of a generation with those that were flushed.

    Raises:
        Corrupt: they are others; names the generation's directory, and the files that are there.
        Unavailable: the store did not answer.
    """
    found = sum_files(objects, key)
    if found.setsum != expected:
        raise Corrupt(
            f"a generation's files are not those that were flushed; there are {found}",
            remedy="Put it back from a copy of the bucket; lancelsm scrub names all that is wrong",
            object=key,
        )


def _is_summed(path: str) -> bool:
    return path.startswith(_ROWS) or (path.startswith(_VERSIONS) and path.endswith(_VERSION))
