"""Change rows of a base in bulk: read keys with row addresses, write new fragments, hide old rows, commit everything.

Written files are invisible until a commit names them; a crash leaves files that nothing refers to. Processes exchange
fragments as Lance's own JSON, so that many can write them and one can commit them. A row address is (fragment id,
offset).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import DeletionFile, FragmentMetadata, write_fragments
from lance.schema import LanceSchema

from lancelsm.common.layout import Nonce
from lancelsm.dataset import deletions
from lancelsm.dataset.base_manifest import Fragment
from lancelsm.dataset.base_table import TABLE, BaseTable, open_dataset
from lancelsm.dataset.damaged import naming_damage
from lancelsm.dataset.literals import literals
from lancelsm.dataset.native import FILE_ROWS, Carried, native_errors, read_errors
from lancelsm.dataset.statement import FILES, StatedFile, Stating, state_files, sum_body
from lancelsm.errors import Contended, Corrupt, Unavailable
from lancelsm.objects import ObjectStore, WriteUnknown, Written
from lancelsm.record.ttl import Expiry

Offsets = npt.NDArray[np.uint32]

ROW_ADDRESS = "_rowaddr"
BATCH_ROWS = 262_144
_OFFSET_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A reference to one version of a base, which a task in another process can open.

    It includes the table id, since a table that is dropped and created again has the same version numbers.
    """

    uri: str
    version: int
    table: str = ""  # table id; empty before the table is adopted
    storage_options: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    opened: lance.LanceDataset | None = dataclasses.field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, base: BaseTable) -> Base:
        options = tuple(sorted((base.storage_options or {}).items()))
        table = base.metadata.get(TABLE, "")
        return cls(uri=base.uri, version=base.version, table=table, storage_options=options, opened=base.dataset)

    def __reduce__(self) -> tuple[Callable[..., Base], tuple[object, ...]]:
        return _unopened, (self.uri, self.version, self.table, self.storage_options)

    def open(self) -> lance.LanceDataset:
        """Return the open version; in a process that has not opened it, open it with Lance.

        Raises: the same errors as `reopen`.
        """
        return self.reopen() if self.opened is None else self.opened

    def reopen(self) -> lance.LanceDataset:
        """Open the version with Lance; always reads the store.

        Raises: the same errors as `open_base`, and `Corrupt` if it belongs to another table.
        """
        dataset = open_dataset(uri=self.uri, version=self.version, storage_options=dict(self.storage_options))
        found = (dataset.schema.metadata or {}).get(TABLE.encode(), b"").decode()
        if found != self.table:
            raise Corrupt(f"the base belongs to table {found}, not {self.table}", table=self.uri, version=self.version)
        return dataset


def _unopened(uri: str, version: int, table: str, storage_options: tuple[tuple[str, str], ...]) -> Base:
    return Base(uri=uri, version=version, table=table, storage_options=storage_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFragment:
    """A fragment that is written but not committed. `files` has the lines of its files in the statement."""

    rows: int
    metadata: str
    files: tuple[StatedFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedVersion:
    """The commit was applied; this is its version, and the version as Lance holds it open."""

    version: int
    dataset: lance.LanceDataset | None = dataclasses.field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted:
    """Nothing was committed: data, schema or schema metadata changed since the version that was read."""

    reason: str


def indexed_fragments(base: Base, column: str) -> frozenset[int]:
    """Return the ids of the fragments that a BTREE index on `column` covers; empty without such an index."""
    with _read_errors("the base's indexes can't be read", base):
        return frozenset(
            fragment
            for index in base.open().describe_indices()
            if index.index_type == "BTree" and list(index.field_names) == [column]
            for segment in index.segments
            for fragment in segment.fragment_ids
        )


def scan(base: Base, columns: Sequence[str], fragments: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """Read the live rows of these fragments: `columns`, then `_rowaddr`, in batches of at most `BATCH_ROWS` rows."""
    with _read_errors("the base can't be scanned", base):
        dataset = base.open()
        yield from dataset.scanner(
            columns=list(columns),
            fragments=[_fragment(dataset, fragment) for fragment in fragments],
            with_row_address=True,
            batch_size=BATCH_ROWS,
            use_scalar_index=False,
        ).to_batches()


def expired_rows(base: Base, expiry: Expiry, table: BaseTable, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read the live rows that have expired: `columns`, then `_rowaddr`. `table` is the base as a value."""
    (newest,) = literals(expiry.newest_value(table.schema.columns))
    with _read_errors("the base can't be scanned", base):
        scanner = base.open().scanner(
            columns=list(columns),
            filter=f"`{expiry.column}` <= {newest}",
            with_row_address=True,
            batch_size=BATCH_ROWS,
        )
        yield from scanner.to_batches()


def look_up(
    base: Base, column: str, keys: Iterable[pa.Array], fragments: Iterable[int]
) -> Iterator[npt.NDArray[np.uint64]]:
    """Find live rows by the index on `column`. For each run of `keys`, yield the addresses of the rows with its keys.

    Args:
        keys: sorted runs without nulls. Neighbouring keys share index pages: 10,000 contiguous keys cost as much as 100
            random ones.
        fragments: only indexed fragments; a fragment without index would be scanned for every run.
    """
    with _read_errors("the base's key index can't be read", base):
        dataset = base.open()
        covered = [_fragment(dataset, fragment) for fragment in fragments]
        for run in keys:
            found = dataset.scanner(
                columns=[], filter=pc.field(column).isin(run), fragments=covered, with_row_address=True
            ).to_table()
            yield found[ROW_ADDRESS].to_numpy()


def by_fragment(addresses: npt.NDArray[np.uint64]) -> dict[int, Offsets]:
    """Group row addresses into sorted offsets by fragment id."""
    ordered = np.sort(addresses)
    ids, starts = np.unique(ordered >> np.uint64(_OFFSET_BITS), return_index=True)
    offsets = ordered.astype(np.uint32)  # keeps the low 32 bits
    return dict(zip(ids.astype(int).tolist(), np.split(offsets, starts[1:]), strict=True)) if len(ids) else {}


def write_rows(base: Base, columns: pa.Schema, batches: Iterable[pa.RecordBatch]) -> tuple[NewFragment, ...]:
    """Write rows as fragments that no version names yet.

    Args:
        columns: the base's schema.
        batches: of exactly that schema; read once. An `LsmError` that the iterable raises is raised unchanged.
    """
    carried = Carried(batches)
    reader = pa.RecordBatchReader.from_batches(columns, carried)
    with native_errors("rows can't be written to the base", table=base.uri, reading=carried):
        written = write_fragments(reader, base.open(), mode="append", max_rows_per_file=FILE_ROWS)
    return tuple(NewFragment(rows=new.physical_rows, metadata=json.dumps(new.to_json())) for new in written)


def hide_rows(base: Base, rows: Mapping[int, Offsets]) -> dict[int, str | None]:
    """Write a new deletion file for each fragment, which hides the rows already hidden and those at these offsets.

    Only one caller may do this for a fragment, since two deletion files can't be combined.

    Returns:
        The fragments that name the new files. None, and no file, for a fragment in which no row would be left.
    """
    changed: dict[int, str | None] = {}
    with (
        _naming_damage(base, without_input=True),
        native_errors("rows of the base can't be hidden", table=base.uri),
    ):
        dataset = base.open()
        for number, offsets in rows.items():
            # The public method converts each offset once more, which takes longer than all the rest.
            fragment = _fragment(dataset, number)._fragment.delete_rows(offsets.tolist())
            changed[number] = None if fragment is None else json.dumps(fragment.metadata().to_json())
    return changed


def hide_all_rows(base: Base, fragment: Fragment, *, objects: ObjectStore, nonce: Nonce) -> tuple[str, StatedFile]:
    """Write a deletion file that hides every row of a fragment. Return the fragment that names it, and its line.

    Lance's own call writes no file in this case, and its `Merge` refuses a list of fragments without this one.

    Raises:
        Unavailable: the store did not answer.
    """
    number = int(nonce, 16) >> 66  # Lance reads it as unsigned 64 bits, other implementations as signed
    file = DeletionFile(base.version, number, "bitmap", fragment.physical_rows, None)
    key = str(file.path(fragment.id))
    body = deletions.every_row(fragment.physical_rows)
    outcome = objects.create(key, body)
    if not isinstance(outcome, Written):
        cause = outcome.cause if isinstance(outcome, WriteUnknown) else "an object with its name exists"
        raise Unavailable(f"a deletion file can't be written: {cause}", table=base.uri, object=key)
    found = objects.get(key)
    if found is None or len(deletions.hidden_rows(found.body, arrow=False)) != fragment.physical_rows:
        raise Corrupt("a new deletion file is wrong: it does not hide every row", table=base.uri, object=key)
    with read_errors("the base can't be opened", table=base.uri):
        metadata = _fragment(base.open(), fragment.id).metadata
    line = sum_body(key, found.body, rows=fragment.physical_rows)
    return json.dumps(dataclasses.replace(metadata, deletion_file=file).to_json()), line


def commit(
    base: Base,
    *,
    changed: Mapping[int, str],
    new: Iterable[NewFragment],
    metadata: Mapping[str, str],
    properties: Mapping[str, str],
    stating: Stating | None = None,
) -> CommittedVersion | Preempted:
    """Commit fragments and schema metadata as one version, unless data, schema or schema metadata changed meanwhile.

    Args:
        changed: fragments of `base` by id, with their new deletion files.
        metadata: the complete new schema metadata.
        properties: stored in the transaction of the version, for people to inspect.
        stating: to state the files of the new version; without it, the version has the statement in `metadata`.

    Raises:
        Corrupt: a changed fragment is not in the base, or the base belongs to another table; or a file that `stating`
            relies on is not the stated one.
        Unavailable: no answer. The commit may have been applied, or may be applied later. At most one commit on this
            version succeeds.
    """
    dataset = base.reopen()  # Lance's commit does not compare the id of the table
    present = [fragment.metadata for fragment in dataset.get_fragments()]
    if unknown := changed.keys() - {fragment.id for fragment in present}:
        raise Corrupt(f"fragments {sorted(unknown)} are not in version {base.version} of the base", table=base.uri)
    fragments = [
        FragmentMetadata.from_json(changed[fragment.id]) if fragment.id in changed else fragment for fragment in present
    ]
    fragments += [FragmentMetadata.from_json(fragment.metadata) for fragment in new]
    if stating is not None:
        options = dict(base.storage_options)
        metadata = {**metadata, FILES: state_files(stating, dataset, fragments, options)}
    operation = lance.LanceOperation.Merge(fragments, _schema_with(dataset.lance_schema, metadata))
    return commit_operation(base, dataset, operation, doing="the merge can't be committed", properties=properties)


def commit_operation(
    base: Base, dataset: lance.LanceDataset, operation: Any, *, doing: str, properties: Mapping[str, str]
) -> CommittedVersion | Preempted:
    """Commit a Lance operation on this version, which is open. Args, Raises: see `commit`."""
    transaction = lance.Transaction(base.version, operation, transaction_properties=dict(properties))
    try:
        with native_errors(doing, table=base.uri):
            committed = lance.LanceDataset.commit(
                dataset, transaction, storage_options=dict(base.storage_options) or None
            )
    except Contended as conflict:
        return Preempted(reason=conflict.message)
    return CommittedVersion(version=committed.version, dataset=committed)


@contextmanager
def _read_errors(doing: str, base: Base) -> Iterator[None]:
    with _naming_damage(base), read_errors(doing, table=base.uri):
        yield


def _naming_damage(base: Base, *, without_input: bool = False) -> AbstractContextManager[None]:
    options = dict(base.storage_options)
    return naming_damage(uri=base.uri, opened=base.reopen, options=options, without_input=without_input)


def _fragment(dataset: lance.LanceDataset, number: int) -> lance.LanceFragment:
    found = dataset.get_fragment(number)
    if found is None:
        raise Corrupt(f"version {dataset.version} of the base has no fragment {number}", table=dataset.uri)
    return found


def _schema_with(schema: LanceSchema, metadata: Mapping[str, str]) -> LanceSchema:
    # With an Arrow schema Lance would renumber the fields, and refuse that after a column was dropped. A LanceSchema
    # keeps the ids, but only its unpickling accepts metadata.
    _, arguments = cast("tuple[Callable[..., LanceSchema], tuple[Any, ...]]", schema.__reduce__())
    return native_schema(arguments[1:], metadata)


def native_schema(fields: Sequence[bytes], metadata: Mapping[str, str]) -> LanceSchema:
    """Return the Lance schema of these messages of fields (`fields.encoded_fields`), with schema metadata."""
    encoded = {name: list(value.encode()) for name, value in metadata.items()}
    return LanceSchema._from_protos(json.dumps(encoded), *fields)
