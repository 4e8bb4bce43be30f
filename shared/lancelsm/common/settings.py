"""How fast and how much: every setting, its default, and where its value comes from.

An argument wins over the environment (`LANCELSM_...`), that over the table's own `settings`, that over the default.
Settings change pace, never what is promised; registry, owner and format are facts of a table, not settings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from lancelsm.errors import Invalid, error_context

_PREFIX = "LANCELSM_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Values in use. Names end in their unit."""

    group_commit_milliseconds: int = 20
    group_commit_bytes: int = 8 << 20
    buffer_bytes: int = 64 << 20  # rows that a writer holds before it pushes back
    retry_budget_seconds: float = 30.0
    flush_rows: int = 100_000
    flush_bytes: int = 64 << 20
    flush_age_seconds: float = 60.0
    pending_generations_slow: int = 64
    pending_generations_stop: int = 256
    merge_generations: int = 8
    merge_age_seconds: float = 900.0
    merge_inprocess_delta_rows: int = 2_000_000
    merge_inprocess_delta_bytes: int = 512 << 20
    merge_inprocess_base_rows: int = 50_000_000
    optimize_small_fragments: int = 64
    optimize_deleted_percent: int = 10
    collect_interval_seconds: float = 3600.0  # between a round's commit and its sweep
    collect_share_percent: int = 50  # of the log that one round may delete
    collect_floor_bytes: int = 64 << 20  # that it may delete whatever their share
    snapshot_ttl_seconds: float = 3600.0
    skew_allowance_seconds: float = 300.0  # that clocks may differ when a pin is judged expired
    keep_versions_seconds: float = 604_800.0  # of the base


def resolve(
    *,
    table: Mapping[str, str],
    arguments: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """The settings in use for a table.

    Args:
        table: the `settings` of its configuration, as text; names that only a newer release knows are left out.
        arguments: by name; what a caller gave explicitly.
        environment: the process's by default.

    Raises:
        Invalid: an unknown name, or a value that is no positive number.
    """
    surroundings = os.environ if environment is None else environment
    named = {
        name.removeprefix(_PREFIX).lower(): value for name, value in surroundings.items() if name.startswith(_PREFIX)
    }
    known = {field.name for field in fields(Settings)}
    for name in known & named.keys() - (arguments or {}).keys():
        with error_context(variable=f"{_PREFIX}{name.upper()}"):
            checked({name: named[name]})
    chosen = {name: value for name, value in {**table, **named}.items() if name in known}
    return replace(Settings(), **checked({**chosen, **(arguments or {})}))


def checked(values: Mapping[str, object]) -> dict[str, Any]:
    """Settings by name as numbers of their type; raises `Invalid` as `resolve`."""
    kinds: dict[str, type[Any]] = {field.name: type(field.default) for field in fields(Settings)}
    numbers: dict[str, Any] = {}
    for name, value in values.items():
        if name not in kinds:
            raise Invalid(
                f"there is no setting {name!r}", remedy=f"Settings are {', '.join(sorted(kinds))}", field=name
            )
        try:
            number = kinds[name](value)
        except (TypeError, ValueError, OverflowError) as error:
            raise _no_setting(name, value, kinds[name]) from error
        if not number > 0 or (isinstance(value, float) and number != value):
            raise _no_setting(name, value, kinds[name])
        numbers[name] = number
    return numbers


def _no_setting(name: str, value: object, kind: type[Any]) -> Invalid:
    whole = "whole " if kind is int else ""
    return Invalid(f"setting {name} is {value!r}", remedy=f"Give a {whole}number above 0", field=name)
