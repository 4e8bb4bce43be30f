"""Write and read the list of a round: the object that names everything that the round deletes.

The list is written first. On commit a manifest, or for the base the catalog, names it. Spec:
proto/lancelsm/v1/round.proto.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from google.protobuf.message import DecodeError

from lancelsm.common.formats import check_format
from lancelsm.common.layout import RegionId, round_list, round_number
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt, Invalid, Unavailable
from lancelsm.generated.lancelsm.v1 import round_pb2 as pb
from lancelsm.objects import put_once
from lancelsm.region.catalog import TableContext

FORMAT = 2


class GarbageKind(StrEnum):
    GENERATION = "generation"  # a directory with everything in it
    ENTRY = "entry"
    STAGED = "staged"
    PUBLISHED = "published"
    LIST = "list"
    BASE_FILE = "base_file"
    BASE_VERSION = "base_version"


_NUMBERS = {
    GarbageKind.GENERATION: pb.GENERATION,
    GarbageKind.ENTRY: pb.ENTRY,
    GarbageKind.STAGED: pb.STAGED,
    GarbageKind.PUBLISHED: pb.PUBLISHED,
    GarbageKind.LIST: pb.LIST,
    GarbageKind.BASE_FILE: pb.BASE_FILE,
    GarbageKind.BASE_VERSION: pb.BASE_VERSION,
}
_KINDS = {number: kind for kind, number in _NUMBERS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageItem:
    """One thing to delete. `path` is relative to the table; `number` is a generation, position, version or round."""

    kind: GarbageKind
    path: str
    number: int
    bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round deletes.

    Args:
        floor: the first position of the log that stays; for the base, the oldest version that stays.
        marked: when the round was marked, in Unix seconds.
        discarded: sum of all entries below the floor, including those that earlier rounds deleted.
        fence: for the base only: its files were listed before the commit that raises `lancelsm.fence` to this number.
        log_bytes: size of the whole log when it was marked; a round may only take a share of it.
        compactions: for a region only: as in the manifest from which it was marked.
    """

    region: RegionId | None  # None: the base
    number: int
    floor: int
    items: tuple[GarbageItem, ...]
    marked: float
    discarded: Setsum = Setsum.ZERO
    fence: int = 0
    log_bytes: int = 0
    compactions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundList:
    """A round with the key of its list, and the setsum of the list's bytes."""

    key: str
    setsum: Setsum
    round: Round


def write_list(context: TableContext, found: Round) -> RoundList:
    """Write the list of a round under a fresh name.

    Raises:
        Unavailable: the store did not answer.
    """
    key = round_list(found.region, found.number, context.ids.nonce())
    body = encode(found)
    if put_once(context.objects, key, body, attempts=context.budget().attempts()) is None:
        raise Unavailable("the list of a round could not be written", table=context.uri, object=key)
    return RoundList(key=key, setsum=Setsum.of_item(body), round=found)


def read_list(context: TableContext, key: str, *, setsum: Setsum | None = None) -> RoundList:
    """Read the list with this key.

    Args:
        setsum: expected setsum of its bytes, if the round is committed.

    Raises:
        Corrupt: the list is missing or unreadable, or has another setsum.
        Invalid: the key is not that of a list, or a newer release wrote the list.
    """
    if round_number(key) is None:
        raise Invalid(f"{key!r:.200} is not a round", remedy="Give what mark returned", field="round")
    found = context.objects.get(key)
    if found is None:
        remedy = "Collect again" if setsum is None else "Restore it from a copy of the bucket"
        raise Corrupt("the list of a round is gone", remedy=remedy, table=context.uri, object=key)
    read = Setsum.of_item(found.body)
    if setsum is not None and read != setsum:  # guard: list is the committed one
        raise Corrupt("the list of a round is not the one that was committed", table=context.uri, object=key)
    return RoundList(key=key, setsum=read, round=decode(found.body, key=key))


def find_list(
    context: TableContext, key: str, *, newest: Callable[[], int], setsum: Setsum | None = None
) -> RoundList | None:
    """Call `read_list`, but return None if a later round is committed: its sweep deletes earlier lists.

    Args:
        newest: reads the number of the newest committed round.
    """
    try:
        return read_list(context, key, setsum=setsum)
    except Corrupt:
        if newest() > (round_number(key) or 0):  # guard: list of an older round may be gone
            return None
        raise


def encode(found: Round) -> bytes:
    """Encode a list. Equal values give equal bytes."""
    message = pb.Round(
        format=FORMAT,
        region=uuid.UUID(found.region).bytes if found.region else b"",
        round=found.number,
        items=[
            pb.Item(kind=_NUMBERS[one.kind], path=one.path, number=one.number, bytes=one.bytes, why=one.why)
            for one in found.items
        ],
        fence=found.fence,
        floor=found.floor,
        discarded=found.discarded.digest(),
        marked=found.marked,
        standing=found.log_bytes,
        compactions=found.compactions,
    )
    return message.SerializeToString(deterministic=True)


def decode(body: bytes, *, key: str) -> Round:
    """Decode a list, the inverse of `encode`. Raises: the same errors as `read_list`."""
    try:
        message = pb.Round.FromString(body)
        check_format(message.format, newest=FORMAT, what="list", object=key)
        return Round(
            region=RegionId(str(uuid.UUID(bytes=message.region))) if message.region else None,
            number=message.round,
            floor=message.floor,
            items=tuple(
                GarbageItem(kind=_KINDS[one.kind], path=one.path, number=one.number, bytes=one.bytes, why=one.why)
                for one in message.items
            ),
            marked=message.marked,
            discarded=Setsum.from_digest(message.discarded),
            fence=message.fence,
            log_bytes=message.standing,
            compactions=message.compactions,
        )
    except (DecodeError, ValueError, KeyError, Corrupt) as error:
        raise Corrupt(f"not the list of a round: {error!r}", object=key) from error
