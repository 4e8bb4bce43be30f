"""Find files that another tool added to the base, or removed, since lancelsm last summed the files of a version.

Each merge and `optimize` states the files of its version. If the newest version has its own statement, nothing is read.
Else its files are compared with the statement that it names, or if it names none with the first version. That costs one
read. Only if they differ, more is read:

* the statement of the last check by a collection, which may know an added file;
* the version before the stated one: a statement may lack large files of that version;
* the newest version that is known: Lance drops a fragment without live rows with any commit.
"""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.common.layout import statement_version
from lancelsm.dataset.base_table import BaseTable, VersionGone, open_base
from lancelsm.dataset.foreign_rows import CREATED
from lancelsm.dataset.statement import FILES, Statement, files_of, named_files, usable_statement
from lancelsm.region.base_checked import read_checked
from lancelsm.region.handle import TableHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFiles:
    """Paths of files, in order, that no step of lancelsm has added or removed."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def foreign_files(handle: TableHandle, base: BaseTable) -> ForeignFiles:
    """Compare the files of the newest version with those that are known.

    Args:
        base: its newest version.

    Raises:
        Corrupt: the fragments or indexes of the version can't be read.
        Unavailable: a store or the registry did not answer.
    """
    own = statement_version(base.metadata.get(FILES, "")) or 0
    if own == base.version or base.version <= CREATED:
        return ForeignFiles()
    objects = handle.context.objects
    named = {one.path for one in files_of(base)}
    stated = _paths(usable_statement(objects, base.metadata)) if own else _files_of_version(base, CREATED)
    added, removed = named - stated, _removed(stated, named)
    if not (added or removed):
        return ForeignFiles()
    checked = read_checked(handle)
    if checked is not None:
        if checked.version > base.version:
            return ForeignFiles()  # this version was replaced since it was read
        seen = _paths(usable_statement(objects, {FILES: checked.key}))
        added -= seen
        removed = _removed(seen, named) if checked.version >= own else removed
    if added and own:
        added -= _files_of_version(base, own - 1)
    if removed:
        removed &= _files_of_version(base, max(own or CREATED, checked.version if checked else 0), live=True)
    return ForeignFiles(added=tuple(sorted(added)), removed=tuple(sorted(removed)))


def _removed(known: set[str], named: set[str]) -> set[str]:
    """Return the data files that are gone. A new deletion file replaces the one before it.

    Lance drops a fragment without live rows with any commit.
    """
    return {path for path in known - named if path.split("/")[-2] == "data"}


def _paths(statement: Statement | None) -> set[str]:
    return set() if statement is None else set(statement.files)


def _files_of_version(base: BaseTable, version: int, *, live: bool = False) -> set[str]:
    """Return the files that a version names; with `live` only those of fragments with live rows."""
    try:
        found = open_base(uri=base.uri, version=version, storage_options=base.storage_options)
    except VersionGone:
        return set()
    if not live:
        return {one.path for one in files_of(found)}
    fragments = (one.metadata for one in found.dataset.get_fragments())
    with_rows = [one for one in fragments if one.physical_rows > one.num_deletions]
    return {one.path for one in named_files(found.dataset, with_rows, indexes=False)}
