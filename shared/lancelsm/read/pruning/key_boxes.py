"""What a condition says about the key: boxes, of which a row's key is in at least one if the condition is true for it.

A box maps key columns to the values that they may have; a column that it leaves out may have any value. `Truth` has the
boxes of the keys for which a condition may be true, and of those for which it may be false. So NOT swaps both, and a
condition that is null for a row is in neither. More keys may be in the boxes than needed, and never fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Final

from lancelsm.record.ranges import Ranges

Box = Mapping[str, Ranges]
Boxes = Sequence[Box]

ANY: Final[Boxes] = ({},)
NOTHING: Final[Boxes] = ()
_MOST = 64  # boxes; above it, some are widened


@dataclass(frozen=True, slots=True)
class Truth:
    """The keys for which a condition may be true, and those for which it may be false."""

    true: Boxes
    false: Boxes

    def negated(self) -> Truth:
        """Return the truth of NOT."""
        return Truth(self.false, self.true)


UNKNOWN: Final = Truth(ANY, ANY)


def conjunction(parts: Iterable[Truth]) -> Truth:
    """Return the truth of conditions with AND between them."""
    found = list(parts)
    return Truth(_all(found), _either(one.false for one in found))


def disjunction(parts: Iterable[Truth]) -> Truth:
    """Return the truth of conditions with OR between them."""
    return conjunction(one.negated() for one in parts).negated()


def _all(parts: Sequence[Truth]) -> Boxes:
    """Return boxes around the keys for which all parts may be true. By halves, since a long list makes long ranges."""
    if len(parts) <= 1:
        return parts[0].true if parts else ANY
    half = len(parts) // 2
    return _both(_all(parts[:half]), _all(parts[half:]))


def _both(one: Boxes, two: Boxes) -> Boxes:
    """Return boxes around the keys that are in a box of each side."""
    if len(one) * len(two) > _MOST:
        return min(one, two, key=lambda side: (ANY[0] in side, len(side)))
    pairs = (_narrowed(a, b) for a, b in product(one, two))
    return _either([tuple(box for box in pairs if all(box.values()))])


def _narrowed(one: Box, two: Box) -> Box:
    return {**one, **{name: one[name] & values if name in one else values for name, values in two.items()}}


def _either(sides: Iterable[Boxes]) -> Boxes:
    """Return boxes around the keys that are in a box of a side. Boxes of one column are joined."""
    boxes = list(chain.from_iterable(sides))
    if ANY[0] in boxes:
        return ANY
    ranges: dict[str, list[Ranges]] = {}
    others: dict[frozenset[tuple[str, Ranges]], Box] = {}
    for box in boxes:
        if len(box) == 1:
            ((name, values),) = box.items()
            ranges.setdefault(name, []).append(values)
        else:
            others[frozenset(box.items())] = box
    found = [*others.values(), *({name: _union(values)} for name, values in ranges.items())]
    return tuple(found) if len(found) <= _MOST else (_around(found),)


def _around(boxes: Sequence[Box]) -> Box:
    """Return one box that contains all of these."""
    names = [name for name in boxes[0] if all(name in box for box in boxes)]
    return {name: _union([box[name] for box in boxes]) for name in names}


def _union(parts: Iterable[Ranges]) -> Ranges:
    return Ranges.of(chain.from_iterable(parts))
