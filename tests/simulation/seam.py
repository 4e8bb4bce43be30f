"""Put the calls of `lancelsm.dataset`, the seam to Lance, under faults and under a schedule.

A call is numbered by the plan and is a switch point. Its effect on Lance happens as a whole or not at all, before or
after the fault; only Lance itself could fail in between. Each function of `lancelsm.dataset` is in one of the sets
below. A test checks this, so that a new function can't be forgotten.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from types import ModuleType
from typing import Any, Protocol
from unittest import mock

import lancelsm.dataset
from lancelsm.compaction import maintenance
from lancelsm.errors import Unavailable
from tests.simulation.faults import FaultPlan
from tests.simulation.schedule import Schedule

READS = frozenset(
    {
        "base_table.open_base",
        "base_rows.indexed_fragments",
        "base_reads.rows_of_keys",
        "generation.generation_version",
        "generation.lookup_generation",
        "generation.possible_keys",
        "read_back.check_deletions",
        "read_back.check_rows",
        "statement.sum_file",
    }
)
STREAMS = frozenset(
    {
        "base_rows.scan",
        "base_rows.look_up",
        "base_reads.scan_base",
        "generation.read_generation",
    }
)
EXPIRING = frozenset({"base_rows.expired_rows"})
"""Streams of a table whose rows expire: test_expired_rows.py has its own scenario."""
WRITES = frozenset(
    {
        "base_rows.write_rows",
        "base_rows.hide_rows",
        "base_rows.commit",
        "column_changes.commit_change",
        "merged_generations._mark",
        "optimize.compact",
        "index_extension.extend_indexes",
        "optimize.state_result",
        "generation_writer._write_dataset",
        "pk_index.write_pk_index",
    }
)
# These make calls of other sets, so they also meet faults in between.
OUTER_WRITES = frozenset({"base_table.create_base", "base_table.ensure_mem_wal", "generation_writer.write_generation"})
# Calls of a collection; tests/simulation/test_table_collection.py puts them under faults.
COLLECTING_READS = frozenset(
    {
        "cleanup.named_files",
        "cleanup.searched_indexes",
        "cleanup.stored_versions",
        "statement.check_found",
        "statement.file_pieces",
        "statement.files_of",
    }
)
COLLECTING_WRITES = frozenset({"cleanup.clean_versions"})
# These call Lance through the functions above or through the object store.
COMPOSED = frozenset(
    {
        "base_table.find_base",
        "base_table.newest_version",  # only in tables that are held open: test_guards_of_reads.py
        "lance_readers.lance_snapshot",  # only for readers of Lance
        "optimize.bytes_to_rewrite",  # only for the choice of an engine
        "region_snapshots.read_region_snapshot",  # only for eventual reads: test_guards_of_views.py
        "base_table.replace_mem_wal",  # only for adopt
        "file_ranges.range_reader",  # only for files above 64 MiB
        "foreign_rows.counted_rows",
        "foreign_rows.repeated_keys",
        "newest_base.read_newest_base",  # through the object store
        "base_table.open_dataset",  # within each of the others
        "base_rows.hide_all_rows",
        "counted_files.open_file",  # for the reads of generations and key indexes
        "damaged.naming_damage",  # after a failure
        "durable.make_durable",
        "generation_writer.discard_generation",  # only for a full disk
        "generation.check_generation",
        "key_filter.may_have",  # within possible_keys
        "merged_generations.find_manifest",
        "merged_generations.read_markers",
        "merged_generations.repair_markers",
        "pk_index.find_rows",  # within lookup_generation
        "pk_index.index_problem",  # within examine_generation
        "read_back.read_unnamed",  # within check_rows
        "read_back.sum_new",
        "scrub_reads.examine_base",  # only for scrub, which writes nothing
        "scrub_reads.examine_generation",
        "scrub_reads.examine_indexes",
        "scrub_reads.own_row_setsum",  # if rows don't add up under the columns of the base
        "deleted_keys.check_deletes",
        "deleted_keys.copy_deletes",  # within share_base
        "deleted_keys.deletes_of_other_regions",
        "deleted_keys.back_up_deletes",
        "deleted_keys.has_deletes",
        "deleted_keys.find_deletes",
        "deleted_keys.keep_deletes",
        "deleted_keys.read_deletes",
        "base_rows.commit_operation",  # within commit and commit_change
        "statement.named_files",  # within files_of and commit
        "statement.check_stated",  # within compact, and for backups
        "statement.read_statement",
        "statement.state_files",  # within commit
        "statement.sum_manifest",
        "statement.usable_statement",
        "statement.write_statement",
    }
)
PURE = frozenset(
    {
        "index_extension.is_training_due",
        "index_extension.segment_rows",
        "index_extension.segments_to_merge",
        "index_options.checked_options",
        "assignments.expression_type",
        "assignments.read_assignments",
        "base_rows.by_fragment",
        "base_manifest.decode_manifest",
        "base_manifest.split_manifest",
        "base_table.base_of",
        "base_table.counters",
        "base_table.first_version",
        "base_table.no_dataset",
        "bloom.bit_positions",
        "bloom.build_bloom",
        "bloom.is_filterable",
        "bloom.may_contain",
        "condition_tokens.read_tokens",
        "condition_tokens.refused",
        "conditions.checked_sql",
        "conditions.described_problem",
        "conditions.read_condition",
        "conditions.unexpired",
        "deleted_keys.late_floor",
        "deleted_keys.sequences_of",
        "deletions.arrow_problem",
        "deletions.every_row",
        "deletions.hidden_rows",
        "base_rows.native_schema",
        "column_changes.first_unused_id",
        "fields.encoded_column",
        "fields.encoded_fields",
        "fields.fitted",
        "fields.ids_in_order",
        "fields.nullable_column",
        "fields.numbering",
        "generation_writer.threads_for",
        "fields.renamed_column",
        "fields.stored_fields",
        "foreign_rows.described_keys",
        "indexes.default_name",
        "indexes.index_kind",
        "indexes.vectors_remedy",
        "key_filter.build_key_filter",
        "literals.literals",
        "merged_generations.manifest_names",
        "native.invalid_condition",
        "native.native_errors",
        "native.read_errors",
        "native.retry_removed",
        "native.sql_remedy",
        "native.text_of",
        "native.translated",
        "read_back.data_path",
        "read_back.differs",
        "read_back.equal_values",
        "scan_options.scan_options",
        "scan_options.scanned",
        "scrub_reads.shared_directories",
        "search_reads.blocklist",
        "search_reads.is_text_query",
        "search_reads.match_query",
        "statement.check_line",
        "statement.check_rows_of",
        "statement.decode",
        "statement.encode",
        "statement.manifest_line",
        "statement.metadata_of",
        "statement.sum_body",
    }
)
# Indexes and searches: tests/unit/test_indexes.py stops after each step.
INDEXES = frozenset(
    {
        "generation_indexes.index_generation",
        "index_extension.retrain_index",
        "indexes.base_indexes",
        "indexes.build_index",
        "indexes.build_key_index",
        "mem_wal_details.change_details",
        "indexes.check_index",
        "indexes.drop_base_index",
        "indexes.generation_index",
        "indexes.read_promise",
        "indexes.wanted_list",
        "indexes.write_promise",
        "indexes.write_wanted",
        "region_snapshots.write_region_snapshot",
        "sharding_specs.replace_specs",  # only for a reshard
        "merged_generations.read_details",
        "search_reads.fragments_without_text_index",
        "search_reads.indexed_rows",
        "search_reads.keys_with_row_ids",
        "search_reads.matching_text",
        "search_reads.nearest",
        "search_reads.rows_of_fragments",
        "search_reads.scores_of",
        "search_reads.searched_base",
        "search_reads.searched_generation",
        "search_reads.text_lengths",
    }
)
# Commands of an operator, apart from the write path; and a look at a local disk.
ASIDE = frozenset(
    {
        "adoption.read_adoptable",
        "adoption.take_over",
        "adoption.write_facts",
        "cleanup.link_in_base",
        "copies.read_copy",
        "copies.share_base",
        "copies.write_copy",
        "tags.remove_tag",
        "tags.tag_version",
        "tags.tags",
        "versions.base_versions",
    }
)

_USERS = [
    f"lancelsm.{name}"
    for name in ("dataset", "region", "read", "compaction", "history", "gc", "admin", "scrubbing", "table")
]
"""The packages that call the seam."""

PROCESS: ContextVar[str] = ContextVar("PROCESS", default="")
"""The calling process, since the functions of the seam have no such argument."""


@contextmanager
def at(process: str) -> Iterator[None]:
    """Within this context, calls are made by this process."""
    token = PROCESS.set(process)
    try:
        yield
    finally:
        PROCESS.reset(token)


Original = Callable[..., Any]


class Simulated(Protocol):
    """The plan and the schedule that calls pass."""

    plan: FaultPlan
    schedule: Schedule


@contextmanager
def through(environment: Simulated) -> Iterator[None]:
    """Within this context, calls of the seam pass the plan and schedule of the environment, without any fsync."""
    with ExitStack() as stack:
        for name, original, uses in _uses():
            wrapped = _wrapped(environment, name, original)
            for module, attribute in uses:
                stack.enter_context(mock.patch.object(module, attribute, wrapped))
        for module in (maintenance, _module("base_table")):
            stack.enter_context(mock.patch.object(module, "make_durable"))
        yield


def functions() -> set[str]:
    """Return every public function of the seam as `module.name`."""
    modules = [_module(found.name) for found in pkgutil.iter_modules(lancelsm.dataset.__path__)]
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in modules
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"lancelsm.dataset.{name}")


@cache
def _uses() -> list[tuple[str, Original, list[tuple[ModuleType, str]]]]:
    """Return each function, and every name of it in a module of the library.

    A module that was imported only within a context would keep the calls of that context. So all are imported first.
    """
    for package in _USERS:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(found.name)
    functions = {
        name: _function(name)
        for name in sorted(READS | STREAMS | EXPIRING | WRITES | OUTER_WRITES | COLLECTING_READS | COLLECTING_WRITES)
    }
    ours = [module for name, module in sorted(sys.modules.items()) if name.partition(".")[0] == "lancelsm"]
    bound = [(module, attribute, value) for module in ours for attribute, value in vars(module).items()]
    return [
        (name, function, [(module, attribute) for module, attribute, value in bound if value is function])
        for name, function in functions.items()
    ]


def _function(name: str) -> Original:
    module, _, attribute = name.partition(".")
    function: Original = getattr(_module(module), attribute)
    return function


def _wrapped(environment: Simulated, name: str, original: Original) -> Original:
    if name in STREAMS | EXPIRING:
        return _stream(environment, name, original)

    def call(*args: Any, **options: Any) -> Any:
        if name == "base_rows.write_rows":
            # Read the batches here: Lance would read them in a thread of its own, outside plan and schedule.
            base, columns, batches = args
            args = (base, columns, list(batches))

        def act() -> Any:
            environment.schedule.switch()
            return original(*args, **options)

        def unknown(cause: str) -> Any:
            raise Unavailable(cause)

        # A late call of an outer function would make its inner calls in another process.
        return _perform(
            environment, name, args, options, act, unknown=unknown if name in WRITES | COLLECTING_WRITES else None
        )

    return call


def _stream(environment: Simulated, name: str, original: Original) -> Original:
    def call(*args: Any, **options: Any) -> Iterator[Any]:
        # No switch point, since Arrow's reader may be below it on the stack. The data that it reads never changes.
        _perform(environment, name, args, options, lambda: None, unknown=None)
        yield from original(*args, **options)

    return call


def _perform(
    environment: Simulated,
    name: str,
    args: tuple[Any, ...],
    options: dict[str, Any],
    act: Callable[[], Any],
    *,
    unknown: Callable[[str], Any] | None,
) -> Any:
    return environment.plan.perform("lance", name, _subject(args, options), PROCESS.get(), act, unknown=unknown)


def _subject(args: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Return the version of the base, or the name of the generation, that a call works on."""
    about = args[0] if args else options.get("base", options.get("uri"))
    return f"version {about.version}" if hasattr(about, "version") else str(about or "").rpartition("/")[2]
