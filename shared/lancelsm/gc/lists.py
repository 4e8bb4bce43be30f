"""The list of one round as an object: what the round deletes, written before anything names it.

A manifest, or for the base the catalog, names the list that was committed. Spec: proto/lancelsm/v1/round.proto.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from google.protobuf.message import DecodeError

from lancelsm.common.layout import RegionId, round_list, round_number
from lancelsm.common.setsum import Setsum
from lancelsm.errors import Corrupt, Invalid, Unavailable
from lancelsm.generated.lancelsm.v1 import round_pb2 as pb
from lancelsm.objects import put_once
from lancelsm.region.catalog import TableContext

FORMAT = 1


class GarbageKind(StrEnum):
    GENERATION = "generation"  # a directory: everything below it
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
    """One thing to delete. `path` is below the table; `number` is its generation, position, version or round."""

    kind: GarbageKind
    path: str
    number: int
    bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round deletes.

    `floor` is the first position that stays in the log, of the base the oldest version that stays; `discarded` sums the
    entries of the log below it, of all rounds. `fence` is of the base alone: its files were listed before the commit
    that raises `lancelsm.fence` to it. `marked` is when, in Unix seconds; `standing` are the bytes of the log that mark
    saw, of which the round takes its share.
    """

    region: RegionId | None  # None: the base
    number: int
    floor: int
    items: tuple[GarbageItem, ...]
    marked: float
    discarded: Setsum = Setsum.ZERO
    fence: int = 0
    standing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundList:
    """A round with the object that holds it: its key, and the setsum of its bytes."""

    key: str
    setsum: Setsum
    round: Round


def write_list(context: TableContext, found: Round) -> RoundList:
    """Write a round's list under a name of its own, which nothing names yet.

    Raises:
        Unavailable: the store gave no answer.
    """
    key = round_list(found.region, found.number, context.ids.nonce())
    body = encode(found)
    if put_once(context.objects, key, body, attempts=context.budget().attempts()) is None:
        raise Unavailable("the list of a round could not be written", remedy="Retry", table=context.uri, object=key)
    return RoundList(key=key, setsum=Setsum.of_item(body), round=found)


def read_list(context: TableContext, key: str, *, setsum: Setsum | None = None) -> RoundList:
    """The list at a key.

    Args:
        setsum: of its bytes, where something committed says so.

    Raises:
        Corrupt: it is gone, unreadable or another one.
        Invalid: the key is no list's, or a newer release wrote it.
    """
    if round_number(key) is None:
        raise Invalid(f"{key!r:.200} names no round", remedy="Give what mark returned", field="round")
    found = context.objects.get(key)
    if found is None:
        raise Corrupt("the list of a round is gone", remedy="Mark a new one", table=context.uri, object=key)
    read = Setsum.of_item(found.body)
    if setsum is not None and read != setsum:
        raise Corrupt("the list of a round is not the one that was committed", table=context.uri, object=key)
    return RoundList(key=key, setsum=read, round=decode(found.body, key=key))


def find_list(
    context: TableContext, key: str, *, newest: Callable[[], int], setsum: Setsum | None = None
) -> RoundList | None:
    """As `read_list`, but None if a later round is committed by now: it deletes the lists of those before.

    Args:
        newest: reads the number of the newest committed round.
    """
    try:
        return read_list(context, key, setsum=setsum)
    except Corrupt:
        if newest() > (round_number(key) or 0):
            return None
        raise


def encode(found: Round) -> bytes:
    """The bytes of a list, the same for equal values."""
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
        standing=found.standing,
    )
    return message.SerializeToString(deterministic=True)


def decode(body: bytes, *, key: str) -> Round:
    """Inverse of `encode`; raises as `read_list`."""
    try:
        message = pb.Round.FromString(body)
        if message.format > FORMAT:
            raise Invalid(
                f"the list has format {message.format}, this release reads up to {FORMAT}",
                remedy="Install a newer lancelsm",
                object=key,
            )
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
            standing=message.standing,
        )
    except (DecodeError, ValueError, KeyError, Corrupt) as error:
        raise Corrupt(f"not the list of a round: {error!r}", object=key) from error
