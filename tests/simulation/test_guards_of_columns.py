"""Each guard of changes of the columns in this table is needed: without it, its scenario fails."""

from __future__ import annotations

from tests.simulation.marks import without
from tests.simulation.removal import with_and_without
from tests.unit import schema_scenarios as scenarios

GUARDS = {
    "rows of a newer schema are not read with an older one": (
        [without("rows of a newer schema are not read with an older one")],
        scenarios.change_within_a_transaction,
    ),
    "a transaction reads rows under its own columns": (
        [without("transaction reads rows under its own columns")],
        scenarios.transaction_of_an_old_object,
    ),
    "what a region has is not written again": (
        [without("what a region has is not written again")],
        scenarios.change_between_regions,
    ),
    "the configuration has the columns of rows": (
        [without("configuration has the columns of rows")],
        scenarios.writer_finishes,
    ),
    "a head has the schema version of its entries": (
        [without("head has the schema version of its entries", instead=False)],
        scenarios.entry_names_its_version,
    ),
    "the base of a view has the columns of its rows": (
        [without("base has known columns", instead=False)],
        scenarios.older_base,
    ),
    "a configuration takes no older columns": (
        [without("configuration takes no older columns", instead=True)],
        scenarios.late_configuration,
    ),
    "columns that another tool changed are not changed": (
        [without("foreign columns are not changed")],
        scenarios.foreign_columns,
    ),
    "the values of a new column are read back": (
        [without("read-back compares a new column")],
        scenarios.damaged_column,
    ),
}

OWN = tuple(dict.fromkeys(scenario for _, scenario in GUARDS.values()))

test_a_scenario_passes_with_all_guards, test_the_scenario_fails_without_its_guard = with_and_without(GUARDS, own=OWN)
