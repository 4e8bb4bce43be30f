"""Actors that change the columns and the regions of the table while those of `actors` run."""

from __future__ import annotations

import time
from collections.abc import Callable

from lancelsm.errors import Invalid
from lancelsm.table import Table
from tests.stress.actors import TRANSIENT, ActorContext, read_some
from tests.stress.stream import COLUMNS, REGIONS, Expected

COARSE = "bucket(id, 1)"  # each region of it has whole regions of `REGIONS`, so an operation stays whole in each


def change_columns(context: ActorContext) -> None:
    """Add, rename, widen and drop columns beside those of the streams. A killed call is repeated or given up."""
    table, expected = context.open(), Expected(context.seed)
    while not context.over:
        try:
            _change(table, context)
        except (*TRANSIENT, Invalid):  # Invalid: the call before was killed, and had changed the column
            table = context.open()
            continue
        if read_some(context, table, expected):
            context.count()
        time.sleep(0.3)


def _change(table: Table, context: ActorContext) -> None:
    rng = context.rng
    extra = [field for field in table.schema if field.name not in COLUMNS.names]
    if len(extra) < 3:
        kind, default = rng.choice([("int32", 7), ("string", "x"), ("float", 1.5), ("int32", None)])
        table.add_column(f"extra {context.done}", kind, default=default)
        return
    one = rng.choice(extra)
    changes: list[Callable[[], object]] = [
        lambda: table.drop_column(one.name),
        lambda: table.rename_column(one.name, f"renamed {context.done}"),
    ]
    if one.type == "int32":
        changes.append(lambda: table.widen_column(one.name, "int64"))
    rng.choice(changes)()


def reshard(context: ActorContext) -> None:
    """Give the table one region spec and the other in turn. No acknowledged row may be lost."""
    table, expected = context.open(), Expected(context.seed)
    while not context.over:
        try:
            table.reshard(COARSE if context.done % 2 else REGIONS)
        except TRANSIENT:
            continue
        if read_some(context, table, expected):
            context.count()
        time.sleep(2.0)
