"""Check that the base has the rows of merged generations, before a collection deletes these.

A merge reads back what it writes. A collection reads the files of the base once more: it sums each file that is new
since the last check, and compares the sum with the statement of files (`dataset.statement`). It decodes files that
another tool wrote. Then it writes what it knows of all files as a statement of its own, and records version and
statement in the table's catalog record. A generation goes only if the counter of that version has it.

Model: tests/model/base_statement.py.
"""

from __future__ import annotations

from lancelsm.common.layout import table_key
from lancelsm.dataset.base_table import BaseTable, VersionGone, open_base
from lancelsm.dataset.statement import (
    NamedFile,
    StatedFile,
    Statement,
    check_found,
    check_line,
    check_rows_of,
    files_of,
    read_statement,
    sum_file,
    sum_manifest,
    usable_statement,
    write_statement,
)
from lancelsm.errors import Contended, Corrupt, error_context
from lancelsm.objects import ObjectStore
from lancelsm.region.base_checked import CHECKED, Checked, checked_of
from lancelsm.region.handle import TableHandle, check_base
from lancelsm.registry import SwapApplied

_TRIES = 3  # a check starts again this often if its version was removed meanwhile
_BYTES_AT_ONCE = 16 << 30  # one collection reads about this many bytes of the base at most


def check_files(handle: TableHandle, *, write: bool) -> Checked:
    """Check the files of the newest base that no earlier check has read, and record that.

    Args:
        write: False for a dry run: nothing is written.

    Raises:
        Corrupt: a file is missing, or is not the one that was written; the error names it. Nothing may be deleted.
        Contended: other processes kept removing the version that was checked.
        Unavailable: the store or the registry did not answer.
    """
    for _ in range(_TRIES):
        base = handle.read_base()
        check_base(base, handle.config)
        try:
            return _check_version(handle, base, write=write)
        except Corrupt:
            # While files are read, a version may become old and be removed with files that only it names.
            if exists(base):
                raise
    raise Contended(
        "other processes kept removing versions of the base while their files were checked",
        table=handle.context.uri,
    )


def exists(base: BaseTable) -> bool:
    """Return whether the version still exists."""
    try:
        open_base(uri=base.uri, version=base.version, storage_options=base.storage_options)
    except VersionGone:
        return False
    except Corrupt:
        pass
    return True


def _check_version(handle: TableHandle, base: BaseTable, *, write: bool) -> Checked:
    context, key = handle.context, table_key(handle.context.table)
    record = context.registry.read(key) or {}
    last = checked_of(record) or Checked(version=0, key="")
    if last.version == base.version:
        _check_manifest(handle, base, last)
        return last
    known = _known(context.objects, last)
    with error_context(table=context.uri):
        lines, complete = _checked_lines(handle, base, known)
    manifest = sum_manifest(context.objects, base.version)
    if manifest is not None:
        lines[manifest.path] = manifest
    if not write:
        return Checked(version=base.version if complete else last.version, key="")
    made = Checked(
        version=base.version if complete else last.version,
        key=write_statement(context.objects, Statement(version=base.version, files=lines)),
        manifest=manifest.sum if complete and manifest is not None else last.manifest,
    )
    # A round that is committed meanwhile may delete the statement, since no record names it yet.
    expect = {name: record.get(name) for name in (CHECKED, "base_round")}  # guard: check swaps on the round
    outcome = context.registry.swap(key, expect=expect, change={CHECKED: made.text})
    return made if isinstance(outcome, SwapApplied) else last


def read_checked_base(handle: TableHandle, checked: Checked | None) -> BaseTable | None:
    """Open the version that was checked; None if there is none, or if it is gone."""
    if checked is None or checked.version == 0:
        return None
    try:
        return open_base(uri=handle.context.uri, version=checked.version, storage_options=handle.storage_options)
    except VersionGone:
        return None


def _check_manifest(handle: TableHandle, base: BaseTable, last: Checked) -> None:
    """Raise `Corrupt` if the manifest of the checked version has changed since the check."""
    found = sum_manifest(handle.context.objects, base.version)
    if found is not None and found.sum != last.manifest:
        raise Corrupt(
            "the manifest of the base is not the one that was checked",
            remedy="Nothing was deleted. Restore it from a copy of the bucket",
            table=base.uri,
            object=found.path,
        )


def _known(objects: ObjectStore, last: Checked) -> dict[str, StatedFile]:
    """Return the lines of the last check; none if its statement was lost, so that everything is checked again."""
    try:
        return dict(read_statement(objects, last.key).files) if last.key else {}
    except Corrupt:
        return {}


def _checked_lines(
    handle: TableHandle, base: BaseTable, known: dict[str, StatedFile]
) -> tuple[dict[str, StatedFile], bool]:
    """Check the files of a version. Return the lines of those that are checked, and whether these are all."""
    stated = usable_statement(handle.context.objects, base.metadata)
    lines, left = {}, _BYTES_AT_ONCE
    named = files_of(base)
    for one in named:
        line = known.get(one.path)
        if line is None:
            if left <= 0:
                continue
            line = _check_new(base, one, None if stated is None else stated.files.get(one.path))
            left -= line.bytes
        check_rows_of(one, line)
        lines[one.path] = line
    return lines, len(lines) == len({one.path for one in named})


def _check_new(base: BaseTable, named: NamedFile, stated: StatedFile | None) -> StatedFile:
    found = sum_file(named, options=base.storage_options, found=stated is None or stated.found)
    check_line(found, stated)  # guard: collection sums the files of the base
    if found.found:
        check_found(base, named)  # guard: collection decodes foreign files of the base
    return found
