"""Read and repair Lance's own markers of merged generations, in the details of the MemWAL index.

The counters in the schema metadata decide. Markers are derived from them, for Lance's readers and for its index
catch-up. pylance can write markers but not read them, so this module decodes the manifest of the version. Spec:
lance-memwal, "MemWAL Index Details"; field numbers and positions as in Lance 14.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass

import pyarrow as pa
from google.protobuf.message import DecodeError

from lancelsm.common.layout import Generation, RegionId
from lancelsm.dataset.base_manifest import MEM_WAL_INDEX, split_manifest
from lancelsm.dataset.base_table import BaseTable, base_of, open_base
from lancelsm.dataset.native import native_errors
from lancelsm.errors import Contended, Corrupt
from lancelsm.generated.lance import table_pb2
from lancelsm.objects import ObjectStore

_LAST_VERSION = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """Lance's record of the newest merged generation of each region, and of the newest one that each index covers.

    An index without an entry covers no merged generation. `maintained` names the indexes that readers of generations
    rely on; None means all indexes.
    """

    merged: Mapping[RegionId, Generation]
    caught_up: Mapping[str, Mapping[RegionId, Generation]]
    maintained: frozenset[str] | None = None


def read_markers(*, objects: ObjectStore, version: int) -> Markers | None:
    """Read the markers of one version of the base; None if it has no MemWAL index.

    Raises:
        Corrupt: the manifest is missing or can't be decoded.
        Unavailable: the store did not answer.
    """
    details = read_details(objects=objects, version=version)
    if details is None:
        return None
    with _decoding(details.key):
        return Markers(
            merged=_by_region(details.message.compacted_sstables),
            caught_up={
                progress.index_name: _by_region(progress.caught_up_generations)
                for progress in details.message.index_catchup
            },
            maintained=None if details.message.maintain_all_indexes else frozenset(details.message.maintained_indexes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDetails:
    """The MemWAL index of one version of the base: its UUID and its details. `key` is that of the manifest."""

    key: str
    uuid: str
    dataset_version: int
    message: table_pb2.MemWalIndexDetails


def read_details(*, objects: ObjectStore, version: int) -> StoredDetails | None:
    """Read the MemWAL index of one version of the base; None if there is none. Raises like `read_markers`."""
    found = find_manifest(objects=objects, version=version)
    if found is None:
        raise Corrupt(f"the manifest of version {version} of the base is missing", object=manifest_names(version)[0])
    with _decoding(found[0]):
        return _decoded(*found)


@contextmanager
def _decoding(key: str) -> Iterator[None]:
    try:
        yield
    except (DecodeError, struct.error, ValueError) as cause:
        raise Corrupt("a manifest of the base can't be read", object=key) from cause


def find_manifest(*, objects: ObjectStore, version: int) -> tuple[str, bytes] | None:
    """Read the manifest of a version of the base. Return its key and its bytes; None if there is none."""
    for name in manifest_names(version):
        if (found := objects.get(name)) is not None:
            return name, found.body
    return None


def manifest_names(version: int) -> tuple[str, str]:
    """Return the keys that the manifest of a version can have.

    In newer tables names of manifests count down, so that the newest is listed first; in older ones they count up.
    """
    return f"_versions/{_LAST_VERSION - version:020}.manifest", f"_versions/{version}.manifest"


def repair_markers(*, base: BaseTable, objects: ObjectStore) -> BaseTable:
    """Raise the markers that are behind the counters of this version.

    Raises only these, since Lance refuses the whole call if one marker would not advance. Concurrent repairs are safe.

    Returns:
        The base at the version with the raised markers; `base` itself if no marker was behind.

    Raises:
        Contended: other processes kept committing first.
        Corrupt: the base has no MemWAL index.
    """
    for _ in range(3):
        markers = read_markers(objects=objects, version=base.version)
        lagging = {region: upto for region, upto in base.counters.items() if upto > _marker(markers, region)}
        if not lagging:
            return base
        if markers is None:
            remedy = "Restore the base to a version that has it"
            raise Corrupt(f"the base has lost its index {MEM_WAL_INDEX}", remedy=remedy, table=base.uri)
        try:
            return _mark(base, lagging)
        except Contended:
            base = open_base(uri=base.uri, storage_options=base.storage_options)
    raise Contended("other processes kept committing to the base", table=base.uri)


def _marker(markers: Markers | None, region: RegionId) -> int:
    return 0 if markers is None else markers.merged.get(region, Generation(0))


def _mark(base: BaseTable, regions: Mapping[RegionId, Generation]) -> BaseTable:
    from lance.mem_wal import CompactedSsTable  # noqa: PLC0415 - a process that only looks does not load Lance

    no_keys = pa.schema([column.remove_metadata() for column in base.schema.key]).empty_table()
    marks = [CompactedSsTable(region, upto) for region, upto in sorted(regions.items())]
    with native_errors("the markers can't be raised", table=base.uri):
        dataset = copy(base.dataset)  # the call advances it to the version that it commits
        operation = dataset.merge_insert(list(base.schema.primary_key))
        # merge_insert requires an action; without keys it changes nothing. This one needs no other columns, of which
        # Lance takes time in the square.
        operation.when_matched_delete()
        operation.mark_sstables_as_compacted(marks).execute(no_keys)
    return base_of(dataset, uri=base.uri, storage_options=base.storage_options)


def _decoded(key: str, body: bytes) -> StoredDetails | None:
    _, indexes = split_manifest(body)
    for index in indexes:
        if index.name == MEM_WAL_INDEX:
            return StoredDetails(
                key=key,
                uuid=str(uuid.UUID(bytes=index.uuid.uuid)),
                dataset_version=index.dataset_version,
                message=table_pb2.MemWalIndexDetails.FromString(index.index_details.value),
            )
    return None


def _by_region(marks: Iterable[table_pb2.CompactedSsTable]) -> dict[RegionId, Generation]:
    return {RegionId(str(uuid.UUID(bytes=mark.shard_id.uuid))): Generation(mark.generation) for mark in marks}
