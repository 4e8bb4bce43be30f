"""The storage layout: every object key and every registry key, and the types of the ids and numbers in them.

    {table}/                                  base Lance dataset
      _mem_wal/{region id}/
        manifest/{bitrev64 version}.binpb     published manifests, which Lance's readers walk up; version_hint.json
        manifest/staged/{version}-{nonce}.binpb   staged manifests, which heads name
        wal/{bitrev64 position}.arrow         one WAL entry; positions start at 1
        {8 hex}_gen_{i}/                      one generation: Lance dataset, _pk_index/, bloom_filter.bin,
                                              key_filter.bin
        gc/{round}-{nonce}.binpb              the list of objects that one collection round deletes
      _lancelsm/gc/{round}-{nonce}.binpb      the list of one collection round of the base
      _lancelsm/files/{version}-{sum}.binpb   the statement of files of one version of the base
      _lancelsm/files/deletes-{version}-{sum}.arrow    keys whose deletes were merged, with their sequences
      _lancelsm/dead_letters/{nonce}.jsonl    change events that did not fit the table, for people
      _lancelsm/config.json                   the configuration of the table, for writers without Lance
      _lancelsm/registry.sqlite, registry/    records of the embedded registries

Keys are relative to the table. Lance's files use *shard* for region.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NewType, TypeAlias

TableId = NewType("TableId", str)  # UUID, canonical lower-case text
RegionId = NewType("RegionId", str)  # UUID, canonical lower-case text
Position = NewType("Position", int)  # number of a WAL entry, from 1
Epoch = NewType("Epoch", int)  # fencing token of a region, from 1
Generation = NewType("Generation", int)  # number of a flushed generation, from 1; 0 = none yet
Version = NewType("Version", int)  # version of a region's manifest, from 1
Nonce = NewType("Nonce", str)  # 32 lower-case hex digits

NO_GENERATION = Generation(0)  # before the first one

RegionValues: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""The values that define a region: (field id of the spec, raw little-endian Arrow scalar or None), in spec order."""

MEM_WAL = "_mem_wal"
PRIVATE = "_lancelsm"
CONFIG = f"{PRIVATE}/config.json"
SQLITE = f"{PRIVATE}/registry.sqlite"
REGISTRY_OBJECTS = f"{PRIVATE}/registry"
LOCK = f"{PRIVATE}/lock"
STATEMENTS = f"{PRIVATE}/files/"  # prefix of the statements of files of the base, and of deleted keys
CLONE = f"{PRIVATE}/clone.json"  # marker file: the lineage of a clone
RESTORED = f"{PRIVATE}/restored.json"  # marker file: the backup or table whose rows a table was made of
DROPPING = f"{PRIVATE}/dropping.json"  # marker file: the table is being dropped
KEY_INDEX = "_pk_index"  # directory of a generation
KEY_INDEX_FILES = (f"{KEY_INDEX}/page_data.lance", f"{KEY_INDEX}/page_lookup.lance")
KEY_FILTER = "key_filter.bin"  # of a generation
BACKUP = "backup.json"  # written last; a backup is not a table

# The directories whose files belong to a table: a drop deletes everything in them.
LANCE_DIRECTORIES = ("_versions", "_transactions", "_indices", "_deletions", "_refs", "data", "tree")
OWN_DIRECTORIES = (*LANCE_DIRECTORIES, MEM_WAL, PRIVATE)

_GENERATION = re.compile(r"([0-9a-f]{8})_gen_([1-9][0-9]*)")
_ROUND = re.compile(r"([1-9][0-9]*)-[0-9a-f]{32}\.binpb")
_STAGED = re.compile(r"/manifest/staged/([1-9][0-9]*)-[0-9a-f]{32}\.binpb\Z")
_NUMBERED_FIELD = re.compile(r"@([1-9][0-9]*)\Z")
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_id(text: object) -> bool:
    """Return whether this is the canonical text of a UUID, as the ids of tables and regions are."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def bitrev64(number: int) -> str:
    """Return 64 binary digits, least significant first, so that keys spread over the partitions of an object store."""
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{number} does not fit 64 bits")
    return format(number, "064b")[::-1]


def unbitrev64(digits: str) -> int:
    """The inverse of `bitrev64`; raise `ValueError` if the text is not 64 binary digits."""
    if len(digits) != 64 or digits.strip("01"):
        raise ValueError(f"{digits!r} is not 64 binary digits")
    return int(digits[::-1], 2)


def region_prefix(region: RegionId) -> str:
    return f"{MEM_WAL}/{region}"


def wal_prefix(region: RegionId) -> str:
    return f"{MEM_WAL}/{region}/wal/"


def wal_entry(region: RegionId, position: Position) -> str:
    if position < 1:
        raise ValueError(f"position {position}: positions start at 1")
    return f"{wal_prefix(region)}{bitrev64(position)}.arrow"


def wal_position(key: str) -> Position | None:
    """Return the position in the key of a WAL entry, or None for any other key."""
    number = _numbered(key, "arrow")
    return None if number is None else Position(number)


def manifest_prefix(region: RegionId) -> str:
    return f"{MEM_WAL}/{region}/manifest/"


def published_manifest(region: RegionId, version: Version) -> str:
    return f"{manifest_prefix(region)}{bitrev64(version)}.binpb"


def published_version(key: str) -> Version | None:
    """Return the version in the key of a published manifest, or None for any other key."""
    number = _numbered(key, "binpb")
    return None if number is None else Version(number)


def staged_manifest(region: RegionId, version: Version, nonce: Nonce) -> str:
    return f"{manifest_prefix(region)}staged/{version}-{nonce}.binpb"


def is_staged_manifest(key: str, region: RegionId) -> bool:
    """Return whether this is a key of a staged manifest of this region."""
    version = staged_version(key)
    return version is not None and key == f"{manifest_prefix(region)}staged/{key.rpartition('/')[2]}"


def version_hint(region: RegionId) -> str:
    return f"{manifest_prefix(region)}version_hint.json"


def round_prefix(region: RegionId | None) -> str:
    """Return the key prefix of the round lists of a region; for the base if `region` is None."""
    return f"{PRIVATE}/gc/" if region is None else f"{region_prefix(region)}/gc/"


def round_list(region: RegionId | None, number: int, nonce: Nonce) -> str:
    return f"{round_prefix(region)}{number}-{nonce}.binpb"


def is_round_list(key: str, region: RegionId | None) -> bool:
    """Return whether this is a key of a round list of this region; of the base if `region` is None."""
    return round_number(key) is not None and key == f"{round_prefix(region)}{key.rpartition('/')[2]}"


def round_number(key: str) -> int | None:
    """Return the round number in the key of a round list, or None for any other key."""
    match = _ROUND.fullmatch(key.rpartition("/")[2])
    return int(match[1]) if match else None


def dead_letters(nonce: Nonce) -> str:
    """Return the key of an object with change events that did not fit the table."""
    return f"{PRIVATE}/dead_letters/{nonce}.jsonl"


def statement_key(version: int, setsum: str) -> str:
    """Return the key of a statement of files.

    Args:
        version: the lowest one that the base can have with this statement.
        setsum: of the bytes of the statement, so that the key proves them.
    """
    return f"{STATEMENTS}{version}-{setsum}.binpb"


def statement_version(key: str) -> int | None:
    """Return the version in the key of a statement of files, or None for any other key."""
    return round_number(key) if key == f"{STATEMENTS}{key.rpartition('/')[2]}" else None


def deletes_key(version: int, setsum: str) -> str:
    """Return the key of a file of deleted keys; the arguments are those of `statement_key`."""
    return f"{STATEMENTS}deletes-{version}-{setsum}.arrow"


def staged_version(key: str) -> Version | None:
    """Return the version in the key of a staged manifest, or None for any other key."""
    match = _STAGED.search(key)
    return Version(int(match[1])) if match else None


def generation_name(generation: Generation, nonce: Nonce) -> str:
    """Return the directory name of a generation, as manifests store it."""
    return f"{nonce[:8]}_gen_{generation}"


def generation_number(name: str) -> Generation | None:
    """Return the number in the directory name of a generation, or None for any other name."""
    match = _GENERATION.fullmatch(name)
    return Generation(int(match[2])) if match else None


def generation_path(region: RegionId, name: str) -> str:
    return f"{MEM_WAL}/{region}/{name}"


def table_id(nonce: Nonce) -> TableId:
    """Return the id of a new table: a nonce as a UUID of version 4."""
    return TableId(str(uuid.UUID(hex=nonce, version=4)))


@lru_cache(maxsize=4096)
def region_id(*, table: TableId, spec_id: int, values: RegionValues) -> RegionId:
    """Return the id of the region with these values. It is deterministic, so two concurrent creators create one region.

    Returns:
        A UUID in version 4 form, from SHA-256 over the length-prefixed parts.
    """
    digest = hashlib.sha256()
    for part in (b"lancelsm region", table.encode(), str(spec_id).encode()):
        digest.update(len(part).to_bytes(8, "big") + part)
    for name, value in values:
        encoded = name.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
        digest.update(b"\0" if value is None else b"\1" + len(value).to_bytes(8, "big") + value)
    return RegionId(str(uuid.UUID(bytes=digest.digest()[:16], version=4)))


def numbered_field(field_id: str, number: int) -> str:
    """Return the id of a field of a region spec that is not the first one of its table."""
    return field_id if number == 1 else f"{field_id}@{number}"


def spec_number(spec_id: int, values: Iterable[tuple[str, bytes | None]]) -> int:
    """Return the number of the region spec that a region belongs to: 1, and one more after each reshard.

    Lance stores it as the id of the spec. The id 0 means that Lance does not store the spec: then the names of the
    region's values carry the number.
    """
    found = [int(match[1]) for name, _ in values if (match := _NUMBERED_FIELD.search(name))]
    return max(found, default=max(spec_id, 1))


def _numbered(key: str, suffix: str) -> int | None:
    """Return the number in a name of 64 binary digits with this suffix, or None for any other name."""
    digits, _, found = key.rpartition("/")[2].partition(".")
    if found != suffix:
        return None
    try:
        return unbitrev64(digits)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Key:
    """The key of a registry record. The keys of one `partition` are listed together, in order of `sort`."""

    partition: str
    sort: str


def head_key(table: TableId, region: RegionId) -> Key:
    return Key(partition=f"H#{table}#{region}", sort="head")


def region_key(table: TableId, region: RegionId) -> Key:
    """Return the key of the catalog record of a region, which is written before its manifest and head."""
    return Key(partition=f"T#{table}", sort=region)


def table_key(table: TableId) -> Key:
    """Return the key of the catalog record of a table."""
    return Key(partition="T", sort=table)


def scheduled_key(table: TableId) -> Key:
    """Return the key of the advisory record of what scheduled scrubs and backups have read of a table."""
    return Key(partition="scrub", sort=table)


def reshard_key(table: TableId) -> Key:
    """Return the key of the record of the last reshard of a table."""
    return Key(partition="reshard", sort=table)


def source_key(table: TableId, name: str) -> Key:
    """Return the key of the record with the offset of a source of change events."""
    return Key(partition=sources(table), sort=name)


def sources(table: TableId) -> str:
    """Return the partition of the records of all sources of a table."""
    return f"O#{table}"


def lease_key(table: TableId, name: str) -> Key:
    return Key(partition=f"L#{table}", sort=name)


def snapshots(table: TableId) -> str:
    """Return the partition of the snapshots of a table."""
    return f"S#{table}"


def cursors(table: TableId) -> str:
    """Return the partition of the cursors of a table."""
    return f"C#{table}"


def pin_key(partition: str, name: str) -> Key:
    """Return the key of the record of a pin."""
    return Key(partition=partition, sort=name)


def region_pin_prefix(name: str, nonce: Nonce) -> str:
    """Return the prefix of the `sort` keys under which a pin records what it needs of each region."""
    return f"{name}#{nonce}#"


def region_pin_key(partition: str, name: str, nonce: Nonce, region: RegionId) -> Key:
    """Return the key under which a pin records what it needs of one region. No two pins share it, even by name."""
    return Key(partition=partition, sort=f"{region_pin_prefix(name, nonce)}{region}")
