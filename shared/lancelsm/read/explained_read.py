"""Choose the read that `Table.explain` explains, by the arguments that it was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from lancelsm.errors import Invalid

ReadName = Literal["get", "search", "count", "scan"]

_SEARCHES: Final = frozenset({"vector", "text", "column", "text_columns", "k", "metric", "nprobes", "refine_factor"})
_ARGUMENTS: Final[Mapping[ReadName, frozenset[str]]] = {
    "get": frozenset({"keys", "columns"}),
    "search": _SEARCHES | {"columns", "where"},
    "count": frozenset({"count", "where"}),
    "scan": frozenset({"columns", "where", "limit"}),
}


def explained_read(given: Mapping[str, Any], *, table: str) -> ReadName:
    """Return the name of the read that has these arguments.

    Args:
        given: the arguments that are not None, or False for `count`; without those of every read.

    Raises:
        Invalid: the read has no such argument.
    """
    if "keys" in given:
        name: ReadName = "get"
    elif given.keys() & _SEARCHES:
        name = "search"
    else:
        name = "count" if "count" in given else "scan"
    if extra := given.keys() - _ARGUMENTS[name]:
        chosen_by = ", ".join(sorted(given.keys() & (_SEARCHES | {"keys", "count"})))
        remedy = f"Leave it out, or leave out {chosen_by}" if chosen_by else "Leave it out"
        raise Invalid(f"{name} has no argument {min(extra)}", remedy=remedy, table=table, field=min(extra))
    return name
