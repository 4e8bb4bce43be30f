"""Of what a clone was made: what it remembers of its source, and how its source names what it keeps for it."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.common.layout import CLONE
from lancelsm.errors import Corrupt
from lancelsm.objects import ObjectStore
from lancelsm.region.markers import REMEDY, read_marker

TAGS = "lancelsm.clone."  # of versions that clones share, before the clones' ids

_PINS = "clone-"  # the same of pins, before what the ids begin with


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneLineage:
    """What a clone remembers of its making: the table it is, the source, and the source's snapshot and pin."""

    table: str
    source: str
    snapshot: str
    nonce: str  # of the snapshot
    registry: str

    @property
    def pin(self) -> str:
        """The name of the source's pin for the clone."""
        return f"{_PINS}{self.table[:8]}"

    @property
    def tag(self) -> str:
        """The tag of the source's version; no pin's, so that only the clone's end removes it."""
        return f"{TAGS}{self.table}"


def read_lineage(store: ObjectStore) -> CloneLineage | None:
    """Of what a clone was made; None for a table that is no clone. Raises `Corrupt` if it can't be read."""
    marker = read_marker(store, CLONE)
    try:
        return None if marker is None else CloneLineage(**marker)
    except TypeError as error:
        raise Corrupt(f"what the clone remembers of its source: {error}", remedy=REMEDY, object=CLONE) from error


def tags_of(pin: str) -> str:
    """How the tag begins that belongs to a clone's pin."""
    return f"{TAGS}{pin.removeprefix(_PINS)}"
