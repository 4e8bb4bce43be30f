"""Create and open the base of a table: its Lance dataset, with the facts and counters that lancelsm stores in it.

Facts and counters are in the schema metadata. Commits of other tools keep schema metadata, and Lance's `Merge`
operation changes it together with data. So the rows and counters of one version always belong together. Only a merge
changes counters.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from lancelsm.common.formats import TABLE_FORMAT
from lancelsm.common.layout import LANCE_DIRECTORIES, Generation, RegionId, TableId
from lancelsm.dataset.base_manifest import MEM_WAL_INDEX, BaseManifest, Fragment
from lancelsm.dataset.durable import make_durable
from lancelsm.dataset.native import FILE_ROWS, Carried, native_errors, read_errors
from lancelsm.errors import Contended, Corrupt, Invalid
from lancelsm.generated.lance.table_pb2 import MemWalIndexDetails
from lancelsm.objects.links import check_directories
from lancelsm.record.casts import as_type
from lancelsm.record.schema import TableSchema, declare_primary_key
from lancelsm.record.schema_history import FIELD_ID, history_in
from lancelsm.record.ttl import Expiry, Ttl, decode_ttl

if TYPE_CHECKING:  # a process that only looks at a table does not load Lance
    import lance


TABLE = "lancelsm.table"
REGISTRY = "lancelsm.registry"
OWNER = "lancelsm.owner"
REGIONS = "lancelsm.regions"
FORMAT = "lancelsm.format"
FENCE = "lancelsm.fence"
MERGED = "lancelsm.merged."
DELETES = "lancelsm.deletes"  # the key of the file of deleted keys
TTL = "lancelsm.ttl"  # the time to live of rows, as text; empty or absent without one
LATE = "lancelsm.late."  # by region: the highest sequence of deletes that are forgotten

NO_DATASET = "no Lance dataset found at this location"

StorageOptions = Mapping[str, str] | None


class VersionGone(Invalid):
    """A version of the base does not exist, and never will again: it was cleaned up, or was never committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFacts:
    """Facts about the table that its base stores, for every process that opens it.

    `registry` gives the kind and location of the registry, `regions` the region spec as JSON, `format` the version of
    lancelsm's own files.
    """

    table: TableId
    registry: str
    owner: str
    regions: str
    format: int = TABLE_FORMAT

    def metadata(self) -> dict[str, str]:
        return {
            TABLE: self.table,
            REGISTRY: self.registry,
            OWNER: self.owner,
            REGIONS: self.regions,
            FORMAT: str(self.format),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How Lance routes rows: by bucket or value of one column, all to one region (`unsharded`), or not at all."""

    bucket_column: str | None = None
    buckets: int | None = None
    identity_column: str | None = None
    unsharded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseTable:
    """One version of a base, as a value.

    Args:
        opened: returns the open Lance dataset.
        manifest: what was decoded of the manifest, if this version was read without Lance.
    """

    uri: str
    version: int
    schema: TableSchema
    metadata: Mapping[str, str]
    fragments: tuple[Fragment, ...]
    data_storage_version: str
    opened: Callable[[], lance.LanceDataset] = field(repr=False, compare=False)
    storage_options: StorageOptions = field(default=None, repr=False)
    manifest: BaseManifest | None = field(default=None, repr=False, compare=False)

    @property
    def dataset(self) -> lance.LanceDataset:
        """The open Lance dataset, to read rows with."""
        return self.opened()

    @property
    def facts(self) -> BaseFacts | None:
        """None if the dataset is not a table of lancelsm."""
        if TABLE not in self.metadata:
            return None
        return BaseFacts(
            table=TableId(self.metadata[TABLE]),
            registry=self.metadata.get(REGISTRY, ""),
            owner=self.metadata.get(OWNER, ""),
            regions=self.metadata.get(REGIONS, ""),
            format=int(self.metadata.get(FORMAT, "1")),
        )

    @property
    def ttl(self) -> Ttl | None:
        """The time to live of the rows of the table; None if they don't expire.

        Raises:
            Corrupt: the text that the base records is not one.
        """
        text = self.metadata.get(TTL, "")
        try:
            return decode_ttl(text) if text else None
        except Invalid as error:
            raise Corrupt(
                f"the time to live that the base records can't be read: {error.message}",
                remedy="Set it again: table.set_ttl('7d on created_at'), or None",
                table=self.uri,
                version=self.version,
                field=TTL,
            ) from error

    def expiry(self, now: float) -> Expiry | None:
        """Return which rows of the table have expired at this time, in Unix seconds; None if none have.

        Raises:
            Corrupt: the column from which the time to live counts is gone or has another type.
        """
        return None if (ttl := self.ttl) is None else ttl.at(now, self.schema.columns)

    @property
    def counters(self) -> dict[RegionId, Generation]:
        """The newest merged generation by region; a region without one is absent."""
        return counters(self.metadata)

    @property
    def fence(self) -> int:
        """Starts at 0. The collector raises it before it sweeps unreferenced files of the base."""
        return int(self.metadata.get(FENCE, "0"))

    @property
    def rows(self) -> int:
        return sum(fragment.rows for fragment in self.fragments)

    @property
    def outside(self) -> tuple[str, ...]:
        """Locations outside of the table from which this version reads files, as the base of a clone does."""
        if self.manifest is not None:
            return ()  # such a manifest is not decoded
        return tuple(one.path for one in self.dataset.base_paths().values())

    def mem_wal_index(self) -> Mapping[str, Any] | None:
        """Return the details of the MemWAL index as Lance decodes them; None if this version has no such index.

        Raises: `Corrupt` or `Unavailable` like `open_base`. Opening a base does not read its indexes.
        """
        if self.manifest is not None:
            return self.manifest.mem_wal_index
        with read_errors("the base's MemWAL index can't be read", table=self.uri, object=f"{self.uri}/_versions"):
            return cast("Mapping[str, Any] | None", self.dataset.mem_wal_index_details())


def counters(metadata: Mapping[str, str]) -> dict[RegionId, Generation]:
    """Decode the counters in the schema metadata of a base."""
    return {
        RegionId(name.removeprefix(MERGED)): Generation(int(value))
        for name, value in metadata.items()
        if name.startswith(MERGED)
    }


def create_base(
    *,
    uri: str,
    columns: pa.Schema,
    primary_key: Iterable[str],
    facts: BaseFacts,
    sharding: Sharding | None = Sharding(),
    rows: Iterable[pa.RecordBatch] = (),
    ttl: str = "",
    storage_options: StorageOptions = None,
) -> BaseTable:
    """Create a base with primary key, facts and `rows`, then its MemWAL index.

    Args:
        columns: Arrow schema; key columns become not null.
        rows: batches of that schema, streamed into version 1. Their keys must be distinct.
        ttl: the time to live of the rows; empty for none.

    Raises:
        Invalid: a key column is missing, or a row doesn't fit the schema.
        Contended: another process created a dataset here meanwhile.
        Unavailable: the store did not answer.

    A crash before version 1 leaves files without a dataset. A crash after it leaves a base with facts but without the
    index, which `ensure_mem_wal` adds.
    """
    import lance  # noqa: PLC0415

    declared = declare_primary_key(columns, tuple(primary_key))
    declared = declared.with_metadata({**facts.metadata(), **({TTL: ttl} if ttl else {})})
    # Automatic clean-up is off: with it any commit of any tool may delete files that readers and snapshots need.
    carried = Carried(_declared(batch, declared) for batch in rows)
    with first_version("the base can't be written", at=uri, table=uri, reading=carried):
        lance.write_dataset(
            pa.RecordBatchReader.from_batches(declared, carried),
            uri,
            mode="create",
            max_rows_per_file=FILE_ROWS,
            auto_cleanup_options=None,
            storage_options=_options(storage_options),
        )
    ensure_mem_wal(uri=uri, sharding=sharding, storage_options=storage_options)
    return open_base(uri=uri, storage_options=storage_options)


@contextmanager
def first_version(doing: str, *, at: str, table: str, reading: Carried | None = None) -> Iterator[None]:
    """Translate errors of a call in which Lance creates a dataset at a location that was free before.

    Raises: the same errors as `native_errors`, but `Contended` if another process has created a dataset there.
    """
    try:
        with native_errors(doing, table=table, reading=reading):
            yield
    except Invalid as error:
        if not str(error.__cause__).startswith("Dataset already exists"):
            raise
        raise Contended(
            "another process is creating a table there", remedy="Retry: the call finishes what exists", table=at
        ) from error.__cause__


def ensure_mem_wal(*, uri: str, sharding: Sharding | None, storage_options: StorageOptions = None) -> None:
    """Create the MemWAL index of a base if it is missing, and make the base durable before rows depend on it.

    Args:
        sharding: None if Lance's own writer can't hash the key, so that it could neither route nor flush rows. The
            index then only holds markers.

    Raises:
        Invalid: Lance can't route by that column.
        Unavailable: the store did not answer.
    """
    base = open_base(uri=uri, storage_options=storage_options)
    with native_errors("the MemWAL index of the base can't be created", table=uri):
        dataset = open_dataset(uri=uri, version=base.version, storage_options=storage_options)
        if dataset.mem_wal_index_details() is None:
            if sharding is None:
                _install_mem_wal(base, dataset)
            else:
                dataset.initialize_mem_wal(
                    bucket_column=sharding.bucket_column,
                    num_buckets=sharding.buckets,
                    identity_column=sharding.identity_column,
                    unsharded=sharding.unsharded,
                )
    make_durable(uri)


def replace_mem_wal(base: BaseTable, *, sharding: Sharding | None) -> None:
    """Drop the MemWAL index of a base, if there is one, and create it. Its markers are lost.

    Raises: the same errors as `ensure_mem_wal`. After a crash the base may have no index.
    """
    with native_errors("the MemWAL index of the base can't be dropped", table=base.uri):
        dataset = open_dataset(uri=base.uri, version=None, storage_options=base.storage_options)
        if dataset.mem_wal_index_details() is not None:
            dataset.drop_index(MEM_WAL_INDEX)
    ensure_mem_wal(uri=base.uri, sharding=sharding, storage_options=base.storage_options)


def _install_mem_wal(base: BaseTable, dataset: lance.LanceDataset) -> None:
    """Commit the same index entry as Lance's `initialize_mem_wal()`, which does not accept every key."""
    import lance  # noqa: PLC0415
    from lance.dataset import Index  # noqa: PLC0415

    index = Index(
        uuid=str(uuid.uuid5(uuid.UUID(base.metadata[TABLE]), MEM_WAL_INDEX)),
        name=MEM_WAL_INDEX,
        fields=[],
        dataset_version=base.version,
        fragment_ids=cast("Any", set()),
        index_version=0,
        index_details=(
            "/lance.table.MemWalIndexDetails",
            MemWalIndexDetails(maintain_all_indexes=True).SerializeToString(),
        ),
    )
    operation = lance.LanceOperation.CreateIndex(new_indices=[index], removed_indices=[])
    lance.LanceDataset.commit(
        dataset, operation, read_version=base.version, storage_options=_options(base.storage_options)
    )


def open_base(*, uri: str, version: int | None = None, storage_options: StorageOptions = None) -> BaseTable:
    """Open one version of a base, the newest by default; always reads the store.

    Raises:
        Invalid: there is no dataset, or the store denies access.
        VersionGone: the version was cleaned up.
        Corrupt: the base can't be read.
        Unavailable: the store did not answer.
    """
    dataset = open_dataset(uri=uri, version=version, storage_options=storage_options)
    return base_of(dataset, uri=uri, storage_options=storage_options)


def base_of(dataset: lance.LanceDataset, *, uri: str, storage_options: StorageOptions) -> BaseTable:
    """Return an open version of a base as a value; reads nothing. Raises: the same errors as `open_base`."""
    with read_errors("the base can't be opened", table=uri, object=f"{uri}/_versions"):
        metadata = {key.decode(): value.decode() for key, value in (dataset.schema.metadata or {}).items()}
        base = BaseTable(
            uri=uri,
            version=dataset.version,
            schema=_table_schema(dataset, metadata),
            metadata=metadata,
            fragments=tuple(_fragment(found.metadata) for found in dataset.get_fragments()),
            data_storage_version=dataset.data_storage_version,
            opened=lambda: dataset,
            storage_options=storage_options,
        )
        _ = base.facts, base.counters, base.fence  # raises if one of their numbers can't be parsed
    return base


def newest_version(base: BaseTable) -> int:
    """Return the number of the newest version; always reads the store. Raises: the same errors as `open_base`."""
    check_directories(base.uri, LANCE_DIRECTORIES)
    with read_errors("the base can't be opened", table=base.uri, object=f"{base.uri}/_versions"):
        return int(base.dataset.latest_version)


def find_base(*, uri: str, storage_options: StorageOptions = None) -> BaseTable | None:
    """Open the newest version of a base; None if there is no dataset. Raises: the same errors as `open_base`."""
    try:
        return open_base(uri=uri, storage_options=storage_options)
    except Invalid as error:
        if error.message == NO_DATASET:
            return None
        raise


def no_dataset(uri: str) -> Invalid:
    return Invalid(NO_DATASET, table=uri)


def open_dataset(*, uri: str, version: int | None, storage_options: StorageOptions) -> lance.LanceDataset:
    """Open a base as a Lance dataset. Raises: the same errors as `open_base`."""
    import lance  # noqa: PLC0415

    check_directories(uri, LANCE_DIRECTORIES)
    try:
        with read_errors("the base can't be opened", table=uri, object=f"{uri}/_versions"):
            return lance.dataset(uri, version=version, storage_options=_options(storage_options))
    except Exception as error:
        if not str(error.__cause__).startswith("Dataset at path"):
            raise
        if version is None:
            raise no_dataset(uri) from error.__cause__
        raise VersionGone(f"version {version} of the base is gone", table=uri) from error.__cause__


def _options(storage_options: StorageOptions) -> dict[str, str] | None:
    return dict(storage_options) if storage_options else None


def _declared(batch: pa.RecordBatch, declared: pa.Schema) -> pa.RecordBatch:
    if batch.schema.names != declared.names:
        raise Invalid(f"the rows have the columns {batch.schema.names}, but the table has {declared.names}")
    arrays = [as_type(column, wanted.type) for column, wanted in zip(batch.columns, declared, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=declared)


def _fragment(metadata: lance.FragmentMetadata) -> Fragment:
    return Fragment(id=metadata.id, physical_rows=metadata.physical_rows, deleted_rows=metadata.num_deletions)


def _table_schema(dataset: lance.LanceDataset, metadata: Mapping[str, str]) -> TableSchema:
    native = dataset.lance_schema
    columns = [_with_id(column, of) for column, of in zip(dataset.schema, native.fields(), strict=True)]
    return TableSchema(
        columns=pa.schema(columns),
        primary_key=tuple(column.name() for column in native.unenforced_primary_key()),
        history=history_in(metadata),
    )


def _with_id(column: pa.Field, native: Any) -> pa.Field:
    """Add Lance's field ids to the Arrow metadata of the field and of all fields nested in it."""
    kind, inner = column.type, native.children()
    if inner and pa.types.is_struct(kind):
        kind = pa.struct([_with_id(kind.field(i), child) for i, child in enumerate(inner)])
    elif inner and pa.types.is_map(kind):
        key, item = inner[0].children()
        kind = pa.map_(_with_id(kind.key_field, key), _with_id(kind.item_field, item), kind.keys_sorted)
    elif inner and pa.types.is_fixed_size_list(kind):
        kind = pa.list_(_with_id(kind.value_field, inner[0]), kind.list_size)
    elif inner and pa.types.is_large_list(kind):
        kind = pa.large_list(_with_id(kind.value_field, inner[0]))
    elif inner and pa.types.is_list(kind):
        kind = pa.list_(_with_id(kind.value_field, inner[0]))
    numbered = {**(column.metadata or {}), FIELD_ID: str(native.id()).encode()}
    return pa.field(column.name, kind, column.nullable, numbered)
