"""Name the damaged file after Lance failed to read a base.

Most errors of Lance do not say which file can't be read. So after a failure, files of the version are compared with the
statement of files (`dataset.statement`): first whether they exist and by size, then by sum. If no file is known to be
damaged, the error stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import lance

from lancelsm.dataset.base_table import StorageOptions
from lancelsm.dataset.native import read_errors
from lancelsm.dataset.statement import (
    NamedFile,
    StatedFile,
    metadata_of,
    named_files,
    sum_file,
    usable_statement,
)
from lancelsm.errors import Corrupt, Invalid, LsmError
from lancelsm.objects.open import open_store

_BYTES_SUMMED = 1 << 30  # more would keep the caller waiting; scrub reads everything
_DIRECTORIES = ("data/", "_deletions/", "_indices/")
_RESTORE = "Restore it from a copy of the bucket; lancelsm scrub names every wrong file"


@contextmanager
def naming_damage(
    *, uri: str, opened: Callable[[], lance.LanceDataset], options: StorageOptions, without_input: bool = False
) -> Iterator[None]:
    """Add the damaged file to a `Corrupt` error of a block that reads a base, if a sum proves that one is damaged.

    Args:
        opened: returns the version of the base that the block reads; called only after a failure.
        without_input: whether nothing in the block depends on input of the caller. Lance calls some damage wrong input,
            so the files are then compared after `Invalid` too.
    """
    try:
        yield
    except (Corrupt, Invalid) as error:
        if not without_input and not isinstance(error, Corrupt):
            raise
        wrong = _damaged(uri, opened, options, error.message)
        if wrong is None:
            raise
        path, problem = wrong
        remedy = _RESTORE if not path.startswith("_indices/") else f"Drop the index and create it again, or: {_RESTORE}"
        named = Corrupt(f"{error.message}; {path} {problem}", remedy=remedy)
        named.where = {**error.where, "object": path}
        raise named from error


def _damaged(
    uri: str, opened: Callable[[], lance.LanceDataset], options: StorageOptions, text: str
) -> tuple[str, str] | None:
    """Return the first file that is not the stated one, and the problem with it; None if none is known to be."""
    try:
        dataset = opened()
        stated = usable_statement(open_store(uri, options), metadata_of(dataset))
        if stated is None:
            return None
        candidates = [(one, stated.files[one.path]) for one in _named(dataset, uri) if one.path in stated.files]
        # Lance may name the file that it could not read.
        candidates.sort(key=lambda pair: (pair[0].key.rpartition("/")[2] not in text, pair[1].bytes))
        return _missing(candidates, options) or _changed(candidates, options)
    except (LsmError, OSError):  # the caller's error says more
        return None


def _named(dataset: lance.LanceDataset, uri: str) -> list[NamedFile]:
    with read_errors("the base's fragments can't be read", table=uri):
        fragments = [one.metadata for one in dataset.get_fragments()]
        return list(named_files(dataset, fragments))


_Candidates = list[tuple[NamedFile, StatedFile]]


def _missing(candidates: _Candidates, options: StorageOptions) -> tuple[str, str] | None:
    sizes = {root: _sizes(root, options) for root in {one.root for one, _ in candidates}}
    for one, line in candidates:
        size = sizes[one.root].get(one.key)
        if size is None and line.bytes:
            return one.path, "is gone"
        if size is not None and size != line.bytes:
            return one.path, f"has {size} bytes, but {line.bytes} were written"
    return None


def _sizes(root: str, options: StorageOptions) -> Mapping[str, int]:
    """Return the size of each file of a table's base, and of each directory of an index."""
    objects, sizes = open_store(root, options), dict[str, int]()
    for directory in _DIRECTORIES:
        for listed in objects.list(directory):
            key = "/".join(listed.key.split("/")[:2]) if directory == "_indices/" else listed.key
            sizes[key] = sizes.get(key, 0) + listed.size
    return sizes


def _changed(candidates: _Candidates, options: StorageOptions) -> tuple[str, str] | None:
    left = _BYTES_SUMMED
    for one, line in candidates:
        left -= line.bytes
        if left < 0:
            break
        if sum_file(one, options=options).sum != line.sum:
            return one.path, "is not the file that was written"
    return None
