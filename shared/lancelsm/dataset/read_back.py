"""Read back what was written for the next version of a base, before any version names it.

Rows are read through Lance, as readers will read them, and compared with the rows that were meant. Deletion files are
decoded without Lance (`dataset.deletions`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import lance
import numpy as np
import pyarrow as pa
from lance import DatasetBasePath
from lance.fragment import FragmentMetadata
from lance.schema import LanceSchema

from lancelsm.dataset.base_rows import Base, NewFragment, Offsets
from lancelsm.dataset.deletions import hidden_rows
from lancelsm.dataset.native import read_errors
from lancelsm.dataset.scan_options import scan_options
from lancelsm.dataset.statement import NamedFile, StatedFile, sum_body, sum_file
from lancelsm.errors import Corrupt
from lancelsm.objects.local_copies import LocalCopy
from lancelsm.objects.open import open_store
from lancelsm.record.digest import RowDigest
from lancelsm.record.rowsum import values

_ROOT = 1  # the id of the base's own directory, in a dataset in memory that refers to it
_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_REMEDY = "Nothing was committed. Run it again; if the error persists, check memory and disk of this machine"
_OLD_IS_DAMAGED = (
    "Nothing was committed. Restore the file from a copy of the bucket; lancelsm scrub names every wrong file"
)


def sum_new(base: Base, written: Iterable[NewFragment], *, copy: LocalCopy | None = None) -> tuple[NewFragment, ...]:
    """Sum the files of new fragments, before `check_rows` reads them: a change in between must not count as written.

    Args:
        copy: gets the files, for `check_rows`.
    """
    options = dict(base.storage_options)
    summed = []
    for new in written:
        named = [
            NamedFile(root=base.uri, key=key, path=key, rows=new.rows, bytes=file.file_size_bytes)
            for file in FragmentMetadata.from_json(new.metadata).files
            for key in (f"data/{file.path}",)
        ]
        summed.append(replace(new, files=tuple(sum_file(one, options=options, copy=copy) for one in named)))
    return tuple(summed)


def check_rows(
    base: Base,
    columns: pa.Schema,
    written: Sequence[NewFragment],
    meant: Iterable[pa.RecordBatch],
    *,
    digest: RowDigest | None = None,
    copy: str | None = None,
) -> None:
    """Compare the rows of new fragments with the rows that were meant, in order.

    Args:
        columns: the base's schema, with Lance's field ids.
        meant: read again from their source, not the batches that were written.
        digest: of the rows that were given to the writer. If the new fragments have the same digest, `meant` is not
            read, which halves the cost. Else the rows are compared one by one, to name the file and the column.
        copy: a local directory with the new files, to read instead of those of the base.

    Raises:
        Corrupt: they differ. The error names the file and the column.
        Unavailable: the store did not answer.
    """
    schema = base.open().lance_schema
    if digest is not None:
        found = (batch for new in written for batch in read_unnamed(base, schema, new.metadata, copy))
        if RowDigest.of(columns, found) == digest:
            return
    source = Taken(meant)
    for new in written:
        path = data_path(new.metadata)
        for batch in read_unnamed(base, schema, new.metadata, copy):
            start = 0
            for wanted in source.take(batch.num_rows):
                _compare(batch.slice(start, wanted.num_rows), wanted, columns, base, path)
                start += wanted.num_rows
            if start != batch.num_rows:  # guard: read-back counts the rows of a file
                raise differs(base, path, "it has more rows than were written")
    if any(source.take(1)):  # guard: read-back counts the rows that were meant
        raise differs(base, "data", "rows are missing in the new files")


def read_unnamed(base: Base, schema: LanceSchema, metadata: str, copy: str | None = None) -> Iterator[pa.RecordBatch]:
    """Read a fragment that no version names, through a dataset in memory that refers to the files of the base.

    Args:
        copy: see `check_rows`.
    """
    path, fragment = data_path(metadata), json.loads(metadata)
    root, options = (base.uri, dict(base.storage_options)) if copy is None else (copy, {})
    for file in fragment["files"]:
        file["base_id"] = _ROOT
    operation = lance.LanceOperation.Overwrite(
        schema,
        [FragmentMetadata.from_json(json.dumps(fragment))],
        initial_bases=[DatasetBasePath(root, id=_ROOT, is_dataset_root=True)],
    )
    with read_errors("new rows of the base can't be read back", table=base.uri, object=path):
        dataset = lance.LanceDataset.commit(f"memory://{path}", operation, storage_options=options or None)
        yield from dataset.scanner(**scan_options(dataset, dataset.schema.names)).to_batches()


def data_path(metadata: str) -> str:
    """Return the path of the data file of a new fragment."""
    return f"data/{json.loads(metadata)['files'][0]['path']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionFiles:
    """The lines of the old and the new deletion file of a fragment, in the statement; None if there is no file."""

    old: StatedFile | None
    new: StatedFile | None


def check_deletions(
    base: Base, rows: Mapping[int, Offsets], changed: Mapping[int, str | None]
) -> dict[int, DeletionFiles]:
    """Compare new deletion files with what they must hide: the rows that were hidden before, and those at `rows`.

    Args:
        rows: the offsets to hide, by fragment.
        changed: the fragments that name the new files; None if no row is left, so that there is no file.

    Returns:
        The lines of the files that were read, by fragment.

    Raises:
        Corrupt: a file hides other rows, or the old file can't be decoded. The error names the file.
        Unavailable: the store did not answer.
    """
    dataset = base.open()
    roots = {number: one.path for number, one in dataset.base_paths().items()}
    read = {}
    for number, offsets in rows.items():
        found = dataset.get_fragment(number)
        if found is None:
            raise Corrupt(f"version {base.version} of the base has no fragment {number}", table=base.uri)
        before, old = found.metadata, _deletion_file(base, found.metadata, roots, remedy=_OLD_IS_DAMAGED)
        wanted = np.zeros(before.physical_rows, np.bool_)
        wanted[old.hidden] = True
        wanted[offsets] = True
        after = changed[number]
        if after is None:
            if not wanted.all():  # guard: read-back counts the rows of a fragment without rows
                raise differs(base, f"fragment {number}", "Lance found no row left in it, but there are some")
            read[number] = DeletionFiles(old=old.line, new=None)
            continue
        fragment = FragmentMetadata.from_json(after)
        new = _deletion_file(base, fragment, roots, remedy=_REMEDY)
        if not np.array_equal(np.flatnonzero(wanted), new.hidden):  # guard: read-back compares deletion files
            what = f"it hides {len(new.hidden)} rows, which are not the {wanted.sum()} rows to hide"
            raise differs(base, new.path, what)
        if fragment.num_deletions != len(new.hidden):  # guard: read-back counts the hidden rows of a fragment
            raise differs(base, new.path, f"its fragment records {fragment.num_deletions} rows in it")
        read[number] = DeletionFiles(old=old.line, new=new.line)
    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deletions:
    path: str
    hidden: Offsets
    line: StatedFile | None


def _deletion_file(base: Base, fragment: FragmentMetadata, roots: Mapping[int, str], *, remedy: str) -> _Deletions:
    file = fragment.deletion_file
    if file is None:
        return _Deletions(path="", hidden=np.empty(0, np.uint32), line=None)
    key = str(file.path(fragment.id))
    if file.base_id is not None and file.base_id not in roots:
        what = f"a deletion file is in directory {file.base_id}, which the version does not have"
        raise Corrupt(what, remedy=_OLD_IS_DAMAGED, table=base.uri, version=base.version, object=key)
    root, path = (base.uri, key) if file.base_id is None else (roots[file.base_id], f"{roots[file.base_id]}/{key}")
    found = open_store(root, dict(base.storage_options)).get(key)
    try:
        if found is None:
            raise ValueError("it is gone")
        hidden = hidden_rows(found.body, arrow=key.endswith(".arrow"))
    except ValueError as error:
        raise Corrupt(f"a deletion file can't be read: {error}", remedy=remedy, table=base.uri, object=path) from error
    return _Deletions(path=path, hidden=hidden, line=sum_body(key, found.body, rows=len(hidden), path=path))


class Taken:
    """Takes batches from an iterable, cut to any number of rows."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._left: pa.RecordBatch | None = None

    def take(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the next rows in batches; fewer if fewer are left."""
        while rows:
            batch = self._left if self._left is not None else next(self._batches, None)
            if batch is None:
                return
            count = min(rows, batch.num_rows)
            self._left = batch.slice(count) if count < batch.num_rows else None
            rows -= count
            yield batch.slice(0, count)


def _compare(found: pa.RecordBatch, wanted: pa.RecordBatch, columns: pa.Schema, base: Base, path: str) -> None:
    for field in columns:
        if not equal_values(found[field.name], wanted[field.name], field):  # guard: read-back compares values
            raise differs(base, path, f"its values of column {field.name!r} are not those that were written", field)


def equal_values(one: pa.Array, other: pa.Array, field: pa.Field) -> bool:
    """Compare values bit by bit: Arrow itself takes 0.0 for -0.0, and NaN for a difference."""
    if pa.types.is_floating(field.type):
        bits = _BITS[field.type.bit_width]
        return bool(one.view(bits).equals(other.view(bits)))
    if _is_exact(field.type) and one.equals(other):
        return True
    return bool(values(one, field).equals(values(other, field)))


def _is_exact(kind: pa.DataType) -> bool:
    """Return whether Arrow finds values of this type equal only if their bits are."""
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    if isinstance(kind, pa.BaseExtensionType):
        inner = [kind.storage_type]
    return not pa.types.is_floating(kind) and not pa.types.is_dictionary(kind) and all(map(_is_exact, inner))


def differs(base: Base, path: str, what: str, field: pa.Field | None = None) -> Corrupt:
    where = {} if field is None else {"field": field.name}
    return Corrupt(f"a new file of the base is wrong: {what}", remedy=_REMEDY, table=base.uri, object=path, **where)
