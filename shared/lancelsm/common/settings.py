"""Settings: their defaults, and where their values come from.

An argument overrides the environment (`LANCELSM_...`), which overrides the settings of the table, which override the
defaults. Settings change performance, never guarantees. Registry, owner and format are facts of a table, not settings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from lancelsm.common.error_text import did_you_mean, shown
from lancelsm.errors import Invalid, error_context

_PREFIX = "LANCELSM_"
_MOST_SECONDS = 100 * 365 * 86_400  # as `duration` allows
_MOST = (1 << 63) - 1
_MAY_BE_ZERO = frozenset({"hedged_reads_percent", "keep_delete_sequences_seconds"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values in use. Names end in their unit."""

    group_commit_milliseconds: int = 20
    group_commit_bytes: int = 8 << 20
    buffer_bytes: int = 64 << 20  # of rows that a writer buffers before it applies backpressure
    retry_budget_seconds: float = 30.0
    flush_rows: int = 100_000
    flush_bytes: int = 64 << 20
    flush_age_seconds: float = 60.0
    flush_memory_bytes: int = 256 << 20  # of log that the flushes of all regions hold together
    pending_generations_slow: int = 64
    pending_generations_stop: int = 256
    max_generations: int = 8  # not merged ones of a region, above which they are compacted
    merge_generations: int = 8
    merge_age_seconds: float = 900.0
    merge_inprocess_delta_rows: int = 2_000_000
    merge_inprocess_delta_bytes: int = 512 << 20
    merge_inprocess_base_rows: int = 50_000_000
    optimize_small_fragments: int = 64
    optimize_inprocess_bytes: int = 8 << 30
    key_index_rows: int = 1_000_000
    optimize_deleted_percent: int = 10
    collect_interval_seconds: float = 3600.0  # between a round's commit and its sweep
    collect_share_percent: int = 50  # share of the log that one round may delete
    collect_floor_bytes: int = 64 << 20  # of log that a round may always delete
    snapshot_ttl_seconds: float = 3600.0
    skew_allowance_seconds: float = 300.0  # allowed clock difference before a pin counts as expired
    keep_versions_seconds: float = 604_800.0  # how long versions of the base are kept
    keep_delete_sequences_seconds: float = 604_800.0  # how long a merged delete keeps the sequence of its event
    view_cache_bytes: int = 256 << 20  # of what an open table keeps of its last reads
    hedged_reads_percent: int = 0  # share of the reads of an object store that may be sent twice, if they are slow


def resolve(
    *,
    table: Mapping[str, str],
    arguments: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Determine the settings in use for a table.

    Args:
        table: the `settings` of its configuration, as text; unknown names, which a newer release wrote, are ignored.
        arguments: explicit settings of the caller, by name.
        environment: the environment variables; by default those of the process.

    Raises:
        Invalid: an argument has an unknown name, or a value is not a number in range.
    """
    variables = os.environ if environment is None else environment
    from_environment = {
        name.removeprefix(_PREFIX).lower(): value for name, value in variables.items() if name.startswith(_PREFIX)
    }
    known = {field.name for field in fields(Settings)}
    for name in known & from_environment.keys() - (arguments or {}).keys():
        with error_context(variable=f"{_PREFIX}{name.upper()}"):
            parse_settings({name: from_environment[name]})
    texts = {name: value for name, value in {**table, **from_environment}.items() if name in known}
    return replace(Settings(), **parse_settings({**texts, **(arguments or {})}))


def setting_sources(*, table: Mapping[str, str]) -> dict[str, str]:
    """Return for each setting where its value comes from: `environment`, `table` or `default`. See `resolve`."""

    def source(name: str) -> str:
        if f"{_PREFIX}{name.upper()}" in os.environ:
            return "environment"
        return "table" if name in table else "default"

    return {field.name: source(field.name) for field in fields(Settings)}


def given_settings(settings: Settings, *, table: Mapping[str, str]) -> dict[str, object]:
    """Return the settings that neither the table nor the environment explains: those that the caller gave."""
    known = resolve(table=table)
    values = {field.name: getattr(settings, field.name) for field in fields(Settings)}
    return {name: value for name, value in values.items() if value != getattr(known, name)}


def overridden(values: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, object]:
    """Return the settings without those that the environment sets."""
    return {name: value for name, value in values.items() if f"{_PREFIX}{name.upper()}" not in environment}


def parse_settings(values: Mapping[str, object]) -> dict[str, Any]:
    """Parse settings by name to numbers; raise `Invalid` if a name is unknown or a value is not a number in range."""
    kinds: dict[str, type[Any]] = {field.name: type(field.default) for field in fields(Settings)}
    numbers: dict[str, Any] = {}
    for name, value in values.items():
        if name not in kinds:
            remedy = did_you_mean(name, sorted(kinds), what="Settings are")
            raise Invalid(f"unknown setting {shown(name)}", remedy=remedy, field=name)
        try:
            number = kinds[name](value)
        except (TypeError, ValueError, OverflowError) as error:
            raise _invalid_value(name, value, kinds[name]) from error
        in_range = 0 < number <= _most(name) or (number == 0 and name in _MAY_BE_ZERO)
        if not in_range or (isinstance(value, float) and number != value) or isinstance(value, bool):
            raise _invalid_value(name, value, kinds[name])
        numbers[name] = number
    return numbers


def _most(name: str) -> int:
    if name.endswith("_percent"):
        return 100
    return _MOST_SECONDS if name.endswith("_seconds") else _MOST


def _invalid_value(name: str, value: object, kind: type[Any]) -> Invalid:
    whole, above = "whole " if kind is int else "", "from" if name in _MAY_BE_ZERO else "above"
    return Invalid(
        f"setting {name} is {shown(value)}", remedy=f"Give a {whole}number {above} 0, up to {_most(name):,}", field=name
    )
