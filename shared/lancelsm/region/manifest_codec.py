"""Encode and decode the manifest of a region.

The bytes are Lance's ShardManifest with additional fields numbered from 1000 (proto/lancelsm/v1/manifest.proto), so
that Lance can read them.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from lancelsm.common.formats import check_format
from lancelsm.common.layout import Epoch, Generation, Position, RegionId, Version, generation_number, is_round_list
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt
from lancelsm.region.manifest import FlushedGeneration, FlushedRange, GenerationIndexes, GenerationKeys, Manifest
from lancelsm.region.producers import Producer, Producers, from_sequences

if TYPE_CHECKING:  # an append reads no manifest, and protobuf is slow to load
    from lancelsm.generated.lancelsm.v1 import manifest_pb2 as pb

FORMAT = 4  # of a region with compacted generations: earlier releases would miss numbers
_WITHOUT_COMPACTIONS = 3  # of a manifest with indexes: earlier releases flush without them
_WITHOUT_INDEXES = 2


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest. Equal values give equal bytes."""
    pb = _messages()
    message = pb.Manifest(
        version=manifest.version,
        writer_epoch=manifest.epoch,
        replay_after_wal_entry_position=manifest.replay_after,
        wal_entry_position_last_seen=manifest.last_seen,
        current_generation=manifest.current_generation,
        generations=[_generation_message(g) for g in manifest.generations],
        shard_spec_id=manifest.spec_id,
        shard_id=pb.Uuid(uuid=uuid.UUID(manifest.region).bytes),
        field_entries=[pb.FieldEntry(field_id=name, value=value) for name, value in manifest.values],
        status=pb.SEALED if manifest.sealed else pb.ACTIVE,
        format=_format(manifest),
        first_position=manifest.first_position,
        entry_setsum=manifest.entry_setsum.digest(),
        wal_rows=manifest.wal_rows,
        wal_bytes=manifest.wal_bytes,
        source={one: str(producer.sequence) for one, producer in manifest.producers.items()},
        source_days={one: producer.day for one, producer in manifest.producers.items()},
        collected_entries=manifest.collected_entries.digest(),
        collected_rows=manifest.collected_rows.digest(),
        collector_round=manifest.collector_round,
        collector_key=manifest.collector_key,
        collector_setsum=manifest.collector_setsum.digest(),
        collector_committed=manifest.collector_committed,
        replay_epoch=manifest.replay_epoch,
        index_number=manifest.index_number,
        foreign=manifest.foreign,
        compactions=manifest.compactions,
    )
    body: bytes = message.SerializeToString(deterministic=True)
    return body


def _format(manifest: Manifest) -> int:
    """Return the lowest format that says all of this, so that earlier releases can read it where that is safe."""
    if manifest.compactions:
        return FORMAT
    return _WITHOUT_COMPACTIONS if manifest.index_number else _WITHOUT_INDEXES


def decode(body: bytes, *, key: str) -> Manifest:
    """Decode a manifest. A manifest that Lance wrote has zero sums and the floor 1.

    Raises:
        Corrupt: the bytes are not a manifest.
        Invalid: a newer release wrote it, or its sums are SHA3-256.
    """
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        message = _messages().Manifest.FromString(body)
        check_format(message.format, newest=FORMAT, what="manifest", object=key)
        manifest = _manifest_value(message)
    except (DecodeError, ValueError, Corrupt) as error:
        raise Corrupt(f"not a manifest: {error}", object=key) from error
    if (wrong := _wrong_path(manifest)) is not None:
        raise Corrupt(f"the manifest names an object that is not its own: {wrong[1]}", object=key, field=wrong[0])
    return manifest


def written_by_lance(body: bytes) -> bool:
    """Return whether Lance's own writer wrote these bytes, which then lack our format number."""
    return not _messages().Manifest.FromString(body).format


def _wrong_path(manifest: Manifest) -> tuple[str, str] | None:
    """Return field and value of the first path that is not one of this region's own; None if all are."""
    for g in manifest.generations:
        if generation_number(g.path) != g.generation:
            return f"generations[{g.generation}].path", g.path
        if not g.numbers:
            return f"generations[{g.generation}].first_number", str(g.first_number)
    key = manifest.collector_key
    return ("collector_key", key) if key and not is_round_list(key, manifest.region) else None


def _manifest_value(message: pb.Manifest) -> Manifest:
    return Manifest(
        region=RegionId(str(uuid.UUID(bytes=message.shard_id.uuid))),
        spec_id=message.shard_spec_id,
        values=tuple((entry.field_id, entry.value) for entry in message.field_entries),
        version=Version(message.version),
        epoch=Epoch(message.writer_epoch),
        replay_after=Position(message.replay_after_wal_entry_position),
        last_seen=Position(message.wal_entry_position_last_seen),
        current_generation=Generation(message.current_generation),
        generations=tuple(_generation_value(g) for g in message.generations),
        sealed=message.status == _messages().SEALED,
        first_position=Position(message.first_position or 1),
        entry_setsum=_sum(message.entry_setsum),
        wal_rows=message.wal_rows,
        wal_bytes=message.wal_bytes,
        producers=_producers(message),
        collected_entries=_sum(message.collected_entries),
        collected_rows=_sum(message.collected_rows),
        collector_round=message.collector_round,
        collector_key=message.collector_key,
        collector_setsum=_sum(message.collector_setsum),
        collector_committed=message.collector_committed,
        replay_epoch=Epoch(message.replay_epoch),
        index_number=message.index_number,
        foreign=message.foreign,
        compactions=message.compactions,
    )


def _producers(message: pb.Manifest) -> Producers:
    days = message.source_days
    named = {name: sequence for name, sequence in message.source.items() if name not in days}
    known = {one: Producer(int(message.source[one]), days[one]) for one in message.source if one in days}
    return {**from_sequences(named), **known}


def _generation_message(g: FlushedGeneration) -> pb.FlushedGeneration:
    message: pb.FlushedGeneration = _messages().FlushedGeneration(
        generation=g.generation, path=g.path, in_memory_bytes=g.bytes, physical_rows=g.rows
    )
    if g.folded:
        message.first_position, message.last_position = g.folded.first, g.folded.last
        message.entry_setsum = g.folded.entry_setsum.digest()
        message.row_setsum = g.folded.row_setsum.digest()
        if g.folded.file_setsum is not None:
            message.file_setsum = g.folded.file_setsum.digest()
        if g.folded.bloom_setsum is not None:
            message.bloom_setsum = g.folded.bloom_setsum.digest()
        message.key_index_setsums.extend(one.digest() for one in g.folded.key_index_setsums)
    if g.indexes is not None:
        message.index_number, message.index_version = g.indexes.number, g.indexes.version
        message.index_setsum = g.indexes.setsum.digest()
    if g.keys is not None:
        for lower, upper in g.keys.bounds:
            message.key_bounds.append(_messages().KeyBounds(lower=lower, upper=upper))
        message.key_filter_blocks = g.keys.filter_blocks
        message.key_filter_setsum = g.keys.filter_setsum.digest()
        message.key_sum = g.keys.sum_at(g.path).digest()
    if g.first_number is not None:
        message.first_number = g.first_number
    return message


def _generation_value(message: pb.FlushedGeneration) -> FlushedGeneration:
    folded = None
    if message.last_position:
        folded = FlushedRange(
            first=Position(message.first_position),
            last=Position(message.last_position),
            entry_setsum=_sum(message.entry_setsum),
            row_setsum=_sum(message.row_setsum),
            file_setsum=_sum(message.file_setsum) if message.file_setsum else None,
            bloom_setsum=_sum(message.bloom_setsum) if message.bloom_setsum else None,
            key_index_setsums=tuple(_sum(one) for one in message.key_index_setsums),
        )
    return FlushedGeneration(
        generation=Generation(message.generation),
        path=message.path,
        rows=message.physical_rows if message.HasField("physical_rows") else None,
        bytes=message.in_memory_bytes if message.HasField("in_memory_bytes") else None,
        folded=folded,
        indexes=GenerationIndexes(
            number=message.index_number, version=message.index_version, setsum=_sum(message.index_setsum)
        )
        if message.index_number
        else None,
        keys=_keys_value(message) if message.key_sum else None,
        first_number=Generation(message.first_number) if message.first_number else None,
    )


def _keys_value(message: pb.FlushedGeneration) -> GenerationKeys:
    keys = GenerationKeys(
        bounds=tuple((one.lower, one.upper if one.HasField("upper") else None) for one in message.key_bounds),
        filter_blocks=message.key_filter_blocks,
        filter_setsum=_sum(message.key_filter_setsum),
    )
    if keys.sum_at(message.path) != _sum(message.key_sum):  # guard: recorded keys of a generation are as flushed
        raise ValueError(f"what it records about the keys of generation {message.generation} is not what was flushed")
    return keys


def _messages() -> Any:
    from lancelsm.generated.lancelsm.v1 import manifest_pb2  # noqa: PLC0415

    return manifest_pb2


def _sum(digest: bytes) -> Setsum:
    return Setsum.from_digest(digest) if digest else Setsum()
