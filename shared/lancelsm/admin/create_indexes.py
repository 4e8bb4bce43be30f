"""Check the indexes of a new table before anything is written, and build them before the table exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lancelsm.common.error_text import shown
from lancelsm.compaction.indexes import create_index
from lancelsm.dataset.indexes import check_index
from lancelsm.errors import Invalid
from lancelsm.record.schema import TableSchema
from lancelsm.region.handle import TableHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRequest:
    """The arguments of `Table.create_index` for one column."""

    column: str
    kind: str
    name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def read_indexes(given: object, *, schema: TableSchema, uri: str) -> list[IndexRequest]:
    """Check indexes by column: a kind, or a mapping with `kind`, the options of Lance and possibly `name`.

    Raises:
        Invalid: unknown column, or a kind or option that Lance refuses for a table without rows.
    """
    if not isinstance(given, Mapping):
        remedy = 'Give a dict of columns and kinds, such as {"vec": "IVF_SQ", "title": "INVERTED"}'
        raise Invalid(f"indexes is {shown(given)}", remedy=remedy, table=uri, field="indexes")
    requests = []
    for column, wanted in given.items():
        arguments = dict(wanted) if isinstance(wanted, Mapping) else {"kind": wanted}
        kind, name = arguments.pop("kind", None), arguments.pop("name", None)
        if not isinstance(kind, str) or not isinstance(name, str | None) or not all(map(_is_text, arguments)):
            remedy = 'Give a kind, such as "IVF_SQ", or {"kind": "IVF_SQ", OPTION: VALUE}'
            raise Invalid(f"the index on {column!r} is {shown(wanted)}", remedy=remedy, table=uri, field="indexes")
        check_index(schema, column=column, kind=kind, name=name, options=arguments, table=uri)
        requests.append(IndexRequest(column=column, kind=kind, name=name, options=arguments))
    return requests


def _is_text(name: object) -> bool:
    return isinstance(name, str)


def build_indexes(handle: TableHandle, requests: list[IndexRequest]) -> None:
    """Build the indexes of a table that has no configuration yet. Replace those of an interrupted call.

    Raises:
        Invalid: Lance can't build one from the rows.
        Contended, Unavailable: build them again.
    """
    for one in requests:
        create_index(handle, one.column, kind=one.kind, name=one.name, replace_existing=True, options=dict(one.options))
