"""Turn the options of an upsert and the function of a transaction into decisions over live rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.errors import Invalid
from lancelsm.read.transact import rules
from lancelsm.read.transact.edits import check_keys
from lancelsm.read.transact.transaction import Decide, Decision
from lancelsm.record.key import key_column
from lancelsm.record.schema import TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertOptions:
    """Which rows of an upsert are written, and with which columns.

    Args:
        names: the columns that were given.
    """

    if_absent: bool = False
    if_newer: str | None = None
    partial: bool = False
    names: Sequence[str] = ()

    @property
    def need_rows(self) -> bool:
        """Whether the write depends on the live rows."""
        return self.if_absent or self.if_newer is not None or self.partial

    def decide(self, given: pa.Table, schema: TableSchema) -> Decide:
        """Return the decision for the given rows of one region, in stored form."""

        def decision(current: pa.Table | None) -> Decision:
            rows = given
            if current is not None and self.if_absent:
                rows = rules.absent(rows, current, schema)
            if current is not None and self.if_newer is not None:
                rows = rules.newer(rows, current, schema, column=self.if_newer)
            if current is not None and self.partial:
                rows = rules.filled(rows, current, schema, names=self.names)
            return Decision(rows=rows, skipped=given.num_rows - rows.num_rows)

        return decision


def check_options(
    schema: TableSchema, *, if_absent: bool, if_newer: str | None, if_unchanged: str | None, names: Sequence[str]
) -> None:
    """Raise `Invalid` for options that exclude each other, or a column that `if_newer` can't use."""
    given = {"if_absent": if_absent, "if_newer": if_newer is not None, "if_unchanged": if_unchanged is not None}
    if len(chosen := [name for name, is_given in given.items() if is_given]) > 1:
        raise Invalid(f"{' and '.join(chosen)} exclude each other", remedy="Give one of them", field=chosen[1])
    if if_newer is not None:
        rules.check_ordered(schema, if_newer)
        if if_newer not in names:
            raise Invalid(
                f"the rows lack column {if_newer!r}, which if_newer compares",
                remedy="Give its value in each row",
                field=if_newer,
            )


def decide_by(
    fn: Callable[[pa.Table], pa.Table], schema: TableSchema, *, all_keys: pa.Table
) -> Callable[[pa.Table], Decide]:
    """Return, for the keys of one region, the decision of the function of a transaction.

    Args:
        fn: returns changes in stored form, see `stored_edits`.
        all_keys: of the transaction. The function may return rows of all of them; each region takes its own.
    """

    def of_region(keys: pa.Table) -> Decide:
        own = key_column(keys, schema.primary_key)

        def decision(current: pa.Table) -> Decision:
            rows = fn(current)
            check_keys(rows, all_keys, schema)  # guard: transaction writes only keys that it read
            return Decision(rows=rows.filter(pc.is_in(key_column(rows, schema.primary_key), value_set=own)))

        return decision

    return of_region
