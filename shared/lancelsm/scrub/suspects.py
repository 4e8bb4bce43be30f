"""What looks wrong in a region: it is held until a head that is read later explains it, or does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lancelsm.region.head import Head
from lancelsm.region.manifest import Manifest
from lancelsm.scrub.report import ObjectKind, Tally

Still = Callable[[Head, Manifest | None], bool]
"""Whether a problem is one, given a later head and the manifest that this one names: None if it can't be read."""


def always(_head: Head, _manifest: Manifest | None) -> bool:
    """No head explains it."""
    return True


def while_named(key: str) -> Still:
    """It is wrong while a head names this manifest."""
    return lambda later, _: later.manifest_key == key


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    path: str
    kind: ObjectKind
    problem: str
    still: Still


@dataclass(slots=True)
class Suspects:
    """In the order in which they were found. Several threads may add at once."""

    _found: list[Suspect] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, path: str, kind: ObjectKind, problem: str, *, still: Still = always) -> None:
        self._found.append(Suspect(path=path, kind=kind, problem=problem, still=still))

    def settle(self, tally: Tally, head: Head, manifest: Manifest | None) -> None:
        """Report those that a later head doesn't explain, and forget all."""
        for one in self._found:
            if one.still(head, manifest):
                tally.add(one.path, one.kind, one.problem)
        self._found.clear()

    def settle_pinned(self, tally: Tally, *, held: bool) -> None:
        """Report all if the pin that needs the objects is held still, whatever heads say; forget all."""
        for one in self._found if held else ():
            tally.add(one.path, one.kind, one.problem)
        self._found.clear()
