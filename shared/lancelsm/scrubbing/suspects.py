"""Collect suspect objects of a region until a head that is read later explains or confirms them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lancelsm.region.head import Head
from lancelsm.region.manifest import Manifest
from lancelsm.scrubbing.report import ObjectKind, Tally

Still = Callable[[Head, Manifest | None], bool]
"""Returns whether a suspect is still a problem, given a later head and its manifest (None: it can't be read)."""


def always(_head: Head, _manifest: Manifest | None) -> bool:
    """Count a problem with any later head."""
    return True


def while_named(key: str) -> Still:
    """Return the condition for a problem that counts while the later head names this manifest."""
    return lambda later, _: later.manifest_key == key


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """An object that looks wrong."""

    path: str
    kind: ObjectKind
    problem: str
    still: Still


@dataclass(slots=True)
class Suspects:
    """Suspect objects in the order in which they were found. Several threads may add at once."""

    _found: list[Suspect] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, path: str, kind: ObjectKind, problem: str, *, still: Still = always) -> None:
        self._found.append(Suspect(path=path, kind=kind, problem=problem, still=still))

    def settle(self, tally: Tally, head: Head, manifest: Manifest | None) -> None:
        """Report suspects that the later head does not explain, then forget all."""
        for one in self._found:
            if one.still(head, manifest):
                tally.add(one.path, one.kind, one.problem)
        self._found.clear()

    def settle_pinned(self, tally: Tally, *, held: bool) -> None:
        """Report all suspects if the pin that needs them still exists (`held`), then forget all."""
        for one in self._found if held else ():
            tally.add(one.path, one.kind, one.problem)
        self._found.clear()
