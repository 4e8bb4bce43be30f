"""Where everything lies: every object key and every registry key, and the types of the numbers in them.

    {table}/                                  base Lance dataset
      _mem_wal/{region id}/
        manifest/{bitrev64 version}.binpb     published manifests, walked up by Lance's readers; version_hint.json
        manifest/staged/{version}-{nonce}.binpb   what a head names
        wal/{bitrev64 position}.arrow         one entry each, 1-based
        {8 hex}_gen_{i}/                      one generation: Lance dataset, _pk_index/, bloom_filter.bin
        gc/{round}-{nonce}.binpb              what one round of collection deletes
      _lancelsm/gc/{round}-{nonce}.binpb      the same of the base
      _lancelsm/config.json                   the table's configuration, for writers without Lance
      _lancelsm/registry.sqlite, registry/    records of the embedded registries

Keys are relative to the table. Lance's files say *shard* where we say *region*.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass
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
"""What defines a region: (field id of the spec, raw little-endian Arrow scalar or None for null), in spec order."""

MEM_WAL = "_mem_wal"
PRIVATE = "_lancelsm"
CONFIG = f"{PRIVATE}/config.json"
SQLITE = f"{PRIVATE}/registry.sqlite"
REGISTRY_OBJECTS = f"{PRIVATE}/registry"
LOCK = f"{PRIVATE}/lock"
CLONE = f"{PRIVATE}/clone.json"  # of which snapshot of which table a clone was made
RESTORED = f"{PRIVATE}/restored.json"  # of which backup a table was made
DROPPING = f"{PRIVATE}/dropping.json"  # what is being dropped, until it is gone
BACKUP = "backup.json"  # of a backup, which is no table; written last

_GENERATION = re.compile(r"([0-9a-f]{8})_gen_([1-9][0-9]*)")
_ROUND = re.compile(r"([1-9][0-9]*)-[0-9a-f]{32}\.binpb")
_STAGED = re.compile(r"/manifest/staged/([1-9][0-9]*)-[0-9a-f]{32}\.binpb$")


def bitrev64(number: int) -> str:
    """64 binary digits, least significant first, so that consecutive keys spread over an object store's partitions."""
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{number} does not fit 64 bits")
    return format(number, "064b")[::-1]


def unbitrev64(digits: str) -> int:
    """Inverse of `bitrev64`; raises `ValueError` for anything else."""
    if len(digits) != 64 or not set(digits) <= {"0", "1"}:
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
    """The position of a WAL entry's key, or None for a key that is none."""
    number = _numbered(key, "arrow")
    return None if number is None else Position(number)


def manifest_prefix(region: RegionId) -> str:
    return f"{MEM_WAL}/{region}/manifest/"


def published_manifest(region: RegionId, version: Version) -> str:
    return f"{manifest_prefix(region)}{bitrev64(version)}.binpb"


def published_version(key: str) -> Version | None:
    """The version of a published manifest's key, or None for a key that is none."""
    number = _numbered(key, "binpb")
    return None if number is None else Version(number)


def staged_manifest(region: RegionId, version: Version, nonce: Nonce) -> str:
    return f"{manifest_prefix(region)}staged/{version}-{nonce}.binpb"


def version_hint(region: RegionId) -> str:
    return f"{manifest_prefix(region)}version_hint.json"


def round_prefix(region: RegionId | None) -> str:
    """Where the lists of a region's rounds lie; None for the base."""
    return f"{PRIVATE}/gc/" if region is None else f"{region_prefix(region)}/gc/"


def round_list(region: RegionId | None, number: int, nonce: Nonce) -> str:
    return f"{round_prefix(region)}{number}-{nonce}.binpb"


def round_number(key: str) -> int | None:
    """The round of a list's key, or None for a key that is none."""
    match = _ROUND.fullmatch(key.rpartition("/")[2])
    return int(match[1]) if match else None


def staged_version(key: str) -> Version | None:
    """The version of a staged manifest's key, or None for a key that is none."""
    match = _STAGED.search(key)
    return Version(int(match[1])) if match else None


def generation_name(generation: Generation, nonce: Nonce) -> str:
    """The bare directory name of a generation: what manifests store."""
    return f"{nonce[:8]}_gen_{generation}"


def generation_number(name: str) -> Generation | None:
    """The number in a generation's directory name, or None for another name."""
    match = _GENERATION.fullmatch(name)
    return Generation(int(match[2])) if match else None


def generation_path(region: RegionId, name: str) -> str:
    return f"{MEM_WAL}/{region}/{name}"


def table_id(nonce: Nonce) -> TableId:
    """The id of a new table: a nonce as a UUID of version 4."""
    return TableId(str(uuid.UUID(hex=nonce, version=4)))


def region_id(*, table: TableId, spec_id: int, values: RegionValues) -> RegionId:
    """The id of the region with these values: the same for every creator, so that two of them make one region.

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


def _numbered(key: str, suffix: str) -> int | None:
    """The number in a name of 64 binary digits with this suffix."""
    digits, _, found = key.rpartition("/")[2].partition(".")
    if found != suffix or len(digits) != 64 or not set(digits) <= {"0", "1"}:
        return None
    return unbitrev64(digits)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Key:
    """A record's name in the registry. Keys of one `partition` are listed together, in order of `sort`."""

    partition: str
    sort: str


def head_key(table: TableId, region: RegionId) -> Key:
    return Key(partition=f"H#{table}#{region}", sort="head")


def region_key(table: TableId, region: RegionId) -> Key:
    """Catalog record of a region: written before its manifest and its head."""
    return Key(partition=f"T#{table}", sort=region)


def table_key(table: TableId) -> Key:
    """Catalog record of a table."""
    return Key(partition="T", sort=table)


def lease_key(table: TableId, name: str) -> Key:
    return Key(partition=f"L#{table}", sort=name)


def snapshots(table: TableId) -> str:
    """The partition of a table's snapshots."""
    return f"S#{table}"


def cursors(table: TableId) -> str:
    """The partition of a table's cursors."""
    return f"C#{table}"


def pin_key(partition: str, name: str) -> Key:
    """The record of a pin."""
    return Key(partition=partition, sort=name)


def region_pin_prefix(name: str, nonce: Nonce) -> str:
    """How the `sort` begins of what a pin needs of each region."""
    return f"{name}#{nonce}#"


def region_pin_key(partition: str, name: str, nonce: Nonce, region: RegionId) -> Key:
    """The record of what a pin needs of one region: no two pins share it, whatever their names."""
    return Key(partition=partition, sort=f"{region_pin_prefix(name, nonce)}{region}")
