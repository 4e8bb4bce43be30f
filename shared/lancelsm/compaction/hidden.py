"""Turn fragments with new deletion files into what a commit of the base takes."""

from __future__ import annotations

from collections.abc import Sequence

from lancelsm.common.clock import Ids
from lancelsm.compaction.replaced_rows import Hidden
from lancelsm.dataset import base_rows
from lancelsm.dataset.base_rows import Base
from lancelsm.dataset.base_table import BaseTable
from lancelsm.dataset.statement import StatedFile
from lancelsm.objects import ObjectStore


def changed_fragments(
    base: BaseTable, hidden: Sequence[Hidden], *, objects: ObjectStore, ids: Ids
) -> tuple[dict[int, str], list[StatedFile]]:
    """Return the changed fragments of a base by id, and the lines of their deletion files in the statement.

    Writes a file that hides every row of a fragment in which no row is left.

    Raises:
        Unavailable: the store did not answer.
    """
    changed: dict[int, str] = {}
    lines: list[StatedFile] = []
    for one in hidden:
        line = one.files.new
        if one.metadata is not None:
            changed[one.fragment] = one.metadata
        else:
            (fragment,) = (found for found in base.fragments if found.id == one.fragment)
            changed[one.fragment], line = base_rows.hide_all_rows(
                Base.of(base), fragment, objects=objects, nonce=ids.nonce()
            )
        lines += [] if line is None else [line]
    return changed, lines


def old_files(hidden: Sequence[Hidden]) -> tuple[StatedFile, ...]:
    """Return the lines of the deletion files that the new ones replace."""
    return tuple(one.files.old for one in hidden if one.files.old is not None)
