"""Clone lineage: the source of a clone, and the names of the pin and the tag that its source keeps for it."""

from __future__ import annotations

from dataclasses import dataclass

from lancelsm.common.layout import CLONE
from lancelsm.errors import Corrupt
from lancelsm.objects import ObjectStore
from lancelsm.objects.location import is_absolute
from lancelsm.region.markers import REMEDY, read_marker

TAG_PREFIX = "lancelsm.clone."  # of tags of shared base versions; the id of the clone follows

_PIN_PREFIX = "clone-"  # of pins; the first eight digits of the id of the clone follow


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneLineage:
    """How a clone was made: its own table id, and the source table with its snapshot and registry."""

    table: str
    source: str
    snapshot: str
    nonce: str  # of the snapshot
    registry: str

    @property
    def pin(self) -> str:
        """The name of the pin that the source keeps for the clone."""
        return f"{_PIN_PREFIX}{self.table[:8]}"

    @property
    def tag(self) -> str:
        """The tag on the base version of the source. It belongs to no pin, so only a drop of the clone removes it."""
        return f"{TAG_PREFIX}{self.table}"


def read_lineage(store: ObjectStore) -> CloneLineage | None:
    """Read the lineage of a clone; None if the table is not a clone. Raise `Corrupt` if it is unreadable."""
    marker = read_marker(store, CLONE)
    try:
        lineage = None if marker is None else CloneLineage(**marker)
    except TypeError as error:
        raise Corrupt(f"the lineage of the clone is unreadable: {error}", remedy=REMEDY, object=CLONE) from error
    if lineage is not None and not is_absolute(lineage.source):
        what = f"the source of the clone is neither an absolute path nor a URL: {lineage.source!r}"
        raise Corrupt(what, remedy=REMEDY, object=CLONE, field="source")
    return lineage


def tag_prefix_of(pin: str) -> str:
    """Return the prefix of the tag that belongs to the pin of a clone."""
    return f"{TAG_PREFIX}{pin.removeprefix(_PIN_PREFIX)}"
