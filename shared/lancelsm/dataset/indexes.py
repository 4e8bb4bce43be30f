"""The indexes of a base: build, list and drop them, and what the base records about them.

Three records belong together:

* the indexes of the base themselves, which Lance keeps;
* the **wanted list** in the schema metadata: what every flush builds for its generation. A number, raised with each new
  index, lets the head of a region refuse a flush that read an older list;
* the **promise** in the details of the MemWAL index: indexes that every listed generation has. Lance's planner and
  LanceDB rely on it.

Lance refuses a commit of the promise if another commit changed the list or the promise since the version that was read
(`CreateIndex` against `Merge`, and against `CreateIndex` of the same name). So a promise is always one of the list of
its version. `compaction.indexes` keeps the order of the commits. Model: tests/model/index_promise.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, cast

import lance
import pyarrow as pa

from lancelsm.common.json_text import parse_json
from lancelsm.dataset import base_rows
from lancelsm.dataset.base_manifest import MEM_WAL_INDEX
from lancelsm.dataset.base_rows import Base, CommittedVersion
from lancelsm.dataset.base_table import BaseTable, open_dataset
from lancelsm.dataset.durable import make_durable
from lancelsm.dataset.index_extension import segment_rows
from lancelsm.dataset.index_options import checked_options
from lancelsm.dataset.mem_wal_details import change_details
from lancelsm.dataset.merged_generations import read_details
from lancelsm.dataset.native import native_errors, read_errors
from lancelsm.errors import Corrupt, Invalid, LsmError
from lancelsm.generated.lance.table_pb2 import MemWalIndexDetails
from lancelsm.objects import ObjectStore
from lancelsm.record.schema import TableSchema, unknown_column

WANTED = "lancelsm.indexes"
KEY_INDEX = "lancelsm_key"  # an index of our own on the key; readers of generations do not need it

_VECTOR = "IVF_"
_TEXT = ("INVERTED", "FTS")
_INVERTED, _BTREE = "INVERTED", "BTREE"
_LANCE_PREFIX = "__"
_CHECK = "Check kind, column and options; vectors take IVF_PQ and others, text INVERTED, other columns BTREE"


class IndexState(StrEnum):
    WANTED = "wanted"
    LEAVING = "leaving"
    DROPPING = "dropping"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedIndex:
    """An index that every generation has, besides the base.

    `options` are those of Lance for an index of this kind in a generation. An index that leaves the list is still
    built, but no longer promised; `DROPPING`: its index of the base is then dropped too.
    """

    name: str
    column: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    state: IndexState = IndexState.WANTED

    def same_files(self, other: WantedIndex) -> bool:
        """Return whether an index that was built for `other` serves this one."""
        return replace(other, state=self.state) == self


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedList:
    """The indexes that every flush builds, and the number of the list. A base without a list has number 0.

    Args:
        trained: for indexes for vectors: the rows of the base when the index was trained, or when that was last tried.
        stalled: indexes of the base that Lance refuses to extend to all rows. They are not promised, so no collection
            waits for them.
    """

    number: int = 0
    indexes: tuple[WantedIndex, ...] = ()
    trained: Mapping[str, int] = field(default_factory=dict)
    stalled: frozenset[str] = frozenset()

    @property
    def promised(self) -> tuple[str, ...]:
        """The names that may be promised once every listed generation has them."""
        wanted = {index.name for index in self.indexes if index.state is IndexState.WANTED}
        return tuple(sorted(wanted - self.stalled))

    def of(self, indexes: Iterable[WantedIndex]) -> WantedList:
        """Return the list with these indexes alone; what it records about others goes."""
        kept = tuple(indexes)
        names = {index.name for index in kept}
        return replace(self, indexes=kept, trained={name: self.trained[name] for name in self.trained if name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseIndex:
    """An index of the base. `rows` counts the rows of the base that it covers, `segments` those of each segment."""

    name: str
    columns: tuple[str, ...]
    kind: str
    rows: int
    segments: tuple[int, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metric(self) -> str | None:
        """The metric of a vector index; None for another one."""
        found = self.details.get("metric_type")
        return None if found is None else str(found).lower()

    @property
    def in_generations(self) -> WantedIndex | None:
        """Return how a generation is indexed for searches with this index; None if they need no index there."""
        if len(self.columns) != 1 or self.name == KEY_INDEX:
            return None
        kind, options = generation_index(self.kind, self.metric, self.details)
        if kind is None:
            return None
        return WantedIndex(name=self.name, column=self.columns[0], kind=kind, options=options)


def generation_index(kind: str, metric: str | None, details: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    """Return kind and options of the index in a generation, by those of the base; (None, {}) if it needs none.

    IVF_SQ serves float vectors under an index of any kind: it is built in a fraction of the time that HNSW takes. A
    text index has the same tokenizer as the base. Other scalar indexes only make exact searches faster.
    """
    if kind.startswith(_VECTOR):
        return ("IVF_FLAT" if metric == "hamming" else "IVF_SQ"), {"metric": metric or "l2", "num_partitions": 1}
    if kind == _INVERTED:
        names = _TEXT_OPTIONS | (_CODE_OPTIONS if details.get("base_tokenizer") == "code" else frozenset())
        known = {name: value for name, value in details.items() if name in names and value is not None}
        return _INVERTED, known
    return (_BTREE, {}) if kind == _BTREE else (None, {})


_TEXT_OPTIONS = frozenset(
    {
        "base_tokenizer",
        "language",
        "with_position",
        "max_token_length",
        "lower_case",
        "stem",
        "remove_stop_words",
        "custom_stop_words",
        "ascii_folding",
        "min_ngram_length",
        "max_ngram_length",
        "prefix_only",
    }
)


_CODE_OPTIONS = frozenset({"split_identifiers", "split_on_numerics", "preserve_original", "index_operators"})


def base_indexes(base: BaseTable) -> list[BaseIndex]:
    """List the indexes over rows of this version, by name. Raises `Corrupt` or `Unavailable` like `open_base`."""
    with read_errors("the base's indexes can't be read", table=base.uri):
        found = [
            BaseIndex(
                name=one.name,
                columns=tuple(one.field_names),
                kind=index_kind(one.index_type),
                rows=one.num_rows_indexed,
                segments=segment_rows(base, [segment.fragment_ids for segment in one.segments]),
                details=dict(one.details or {}),
            )
            for one in base.dataset.describe_indices()
            if one.name != MEM_WAL_INDEX and not one.name.startswith(_LANCE_PREFIX)
        ]
    return sorted(found, key=lambda index: index.name)


def index_kind(stored: str) -> str:
    """Return the name by which an index of this stored type is created."""
    return {"Inverted": _INVERTED, "BTree": _BTREE, "LabelList": "LABEL_LIST"}.get(stored, stored.upper())


def default_name(column: str) -> str:
    """Return the name of an index on a column whose creator gave none."""
    return f"{column}_idx"


def build_index(
    base: BaseTable, *, column: str, kind: str, name: str | None, replace_existing: bool, options: Mapping[str, Any]
) -> str:
    """Build an index over the rows of the base. Return its name, by default `default_name`.

    Args:
        kind: as Lance names it, such as IVF_PQ, IVF_HNSW_SQ, INVERTED, BTREE or BITMAP.
        replace_existing: replace an index of this name.
        options: Lance's own for this kind, such as `metric`, `num_partitions` or `with_position`.

    Raises:
        Invalid: the column doesn't exist, the kind has no such option, Lance can't build such an index, or there is
            one of this name.
        Contended: the base changed meanwhile, several times.
        Unavailable: the store did not answer. The index may exist.
    """
    chosen = _checked_name(base.schema, column, name, table=base.uri)
    existing = {index.name: index for index in base_indexes(base)}
    if chosen in existing and not replace_existing:
        raise Invalid(
            f"there is an index {chosen!r}",
            remedy="Choose another name, or replace it: replace=True, --replace",
            table=base.uri,
            field="name",
        )
    given = checked_options(kind.upper(), options, column=base.schema.columns.field(column), table=base.uri)
    remedy = (kind.upper().startswith(_VECTOR) and vectors_remedy(base.schema, column)) or _CHECK
    with _building(f"the index {chosen!r} can't be built", table=base.uri, remedy=remedy):
        _build(_dataset(base), column=column, kind=kind.upper(), name=chosen, options=given)
    make_durable(base.uri)
    return chosen


def check_index(
    schema: TableSchema, *, column: str, kind: str, name: str | None, options: Mapping[str, Any], table: str
) -> None:
    """Check the arguments of `build_index`: build the index in memory, on no rows.

    Raises:
        Invalid: the column doesn't exist, the name is reserved, the kind has no such option, or Lance refuses kind or
            options for the column.
    """
    chosen = _checked_name(schema, column, name, table=table)
    only = schema.columns.field(column)
    given = checked_options(kind.upper(), options, column=only, table=table)
    remedy = (kind.upper().startswith(_VECTOR) and vectors_remedy(schema, column)) or _CHECK
    with _on_no_rows(), _building(f"the index {chosen!r} can't be built", table=table, remedy=remedy):
        dataset = lance.write_dataset(pa.schema([pa.field(column, only.type)]).empty_table(), "memory://check")
        _build(dataset, column=column, kind=kind.upper(), name=chosen, options=given)


def vectors_remedy(schema: TableSchema, *columns: str) -> str | None:
    """Return how to create a table whose vectors can be searched, if one of the columns has lists without a length."""
    for column in columns:
        kind = schema.columns.field(column).type
        lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if lists and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
            return f"Create the table with vectors of a fixed length: pa.list_(pa.float32(), LENGTH) for {column!r}"
    return None


@contextmanager
def _on_no_rows() -> Iterator[None]:
    """Nothing can be damaged if there are no rows: what Lance takes for damage is a wrong option."""
    try:
        yield
    except Corrupt as error:
        raise Invalid(error.message, remedy=_CHECK, table=str(error.where.get("table"))) from error.__cause__


def _checked_name(schema: TableSchema, column: str, name: str | None, *, table: str) -> str:
    """Return the name of an index. Raise `Invalid` if the column doesn't exist, or the name is reserved."""
    if column not in schema.names:
        raise unknown_column(column, schema.names, table=table)
    chosen = name or default_name(column)
    if chosen == KEY_INDEX or chosen.startswith(_LANCE_PREFIX):
        raise Invalid(f"the name {chosen!r} is reserved", remedy="Choose another name", table=table, field="name")
    return chosen


def build_key_index(base: BaseTable) -> bool:
    """Build our own index on a key of one column, for reads by key. Return False if Lance can't index the column.

    Raises:
        Contended: the base changed meanwhile, several times.
        Unavailable: the store did not answer. The index may exist.
    """
    try:
        with _building("the index on the key can't be built", table=base.uri):
            _build(_dataset(base), column=base.schema.primary_key[0], kind=_BTREE, name=KEY_INDEX, options={})
    except Invalid:
        return False
    make_durable(base.uri)
    return True


def _build(dataset: lance.LanceDataset, *, column: str, kind: str, name: str, options: Mapping[str, Any]) -> None:
    if kind.startswith(_VECTOR):
        dataset.create_index(column, kind, name=name, replace=True, **options)
    else:
        dataset.create_scalar_index(
            column,
            cast("Any", _INVERTED if kind in _TEXT else kind),
            name=name,
            replace=True,
            **options,
        )


@contextmanager
def _building(doing: str, *, table: str, remedy: str = _CHECK) -> Iterator[None]:
    """Translate errors of Lance about the arguments of an index."""
    try:
        with native_errors(doing, table=table):
            yield
    except (LsmError, ConnectionError, MemoryError):
        raise
    # Lance checks an option where it uses it: a wrong one raises any other error of Python.
    except Exception as cause:
        args = cause.args[0] if cause.args and isinstance(cause.args[0], tuple) else cause.args
        text = " ".join(str(part) for part in args) or type(cause).__name__
        raise Invalid(f"{doing}: {text}", remedy=remedy, table=table) from cause


def drop_base_index(base: BaseTable, name: str) -> None:
    """Drop an index of the base; do nothing if it is gone.

    Raises:
        Contended: the base changed meanwhile.
        Unavailable: the store did not answer. The index may be dropped.
    """
    if name not in {index.name for index in base_indexes(base)}:
        return
    with native_errors(f"the index {name!r} can't be dropped", table=base.uri):
        _dataset(base).drop_index(name)


def wanted_list(base: BaseTable) -> WantedList:
    """Decode the wanted list of this version of the base. Raises `Corrupt` if it can't be decoded."""
    text = base.metadata.get(WANTED)
    if text is None:
        return WantedList()
    try:
        document = parse_json(text)
        return WantedList(
            number=int(document["number"]),
            indexes=tuple(
                WantedIndex(
                    name=str(one["name"]),
                    column=str(one["column"]),
                    kind=str(one["kind"]),
                    options=dict(one["options"]),
                    state=IndexState(one["state"]),
                )
                for one in document["indexes"]
            ),
            trained={str(name): int(rows) for name, rows in document.get("trained", {}).items()},
            stalled=frozenset(map(str, document.get("stalled", ()))),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise Corrupt(
            f"the list of indexes in the base is unreadable: {cause!r}",
            remedy=f"Restore the base to a version whose schema metadata {WANTED} is valid",
            table=base.uri,
            version=base.version,
            field=WANTED,
        ) from cause


def write_wanted(base: BaseTable, wanted: WantedList) -> bool:
    """Commit a wanted list on this version of the base. Return False if another commit came first.

    Raises:
        Unavailable: the store did not answer; the list may be written.
    """
    document = {
        "number": wanted.number,
        "indexes": [
            {
                "name": one.name,
                "column": one.column,
                "kind": one.kind,
                "options": dict(one.options),
                "state": one.state.value,
            }
            for one in wanted.indexes
        ],
        **({"trained": dict(wanted.trained)} if wanted.trained else {}),
        **({"stalled": sorted(wanted.stalled)} if wanted.stalled else {}),
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    outcome = base_rows.commit(
        Base.of(base), changed={}, new=(), metadata={**base.metadata, WANTED: text}, properties={}
    )
    make_durable(base.uri)
    return isinstance(outcome, CommittedVersion)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the details of the MemWAL index say: these indexes, or `every` index, exist in every generation."""

    names: tuple[str, ...]
    every: bool


def read_promise(*, objects: ObjectStore, version: int) -> Promise | None:
    """Read the promise of one version of the base; None without a MemWAL index. Raises like `read_details`."""
    found = read_details(objects=objects, version=version)
    if found is None:
        return None
    message = found.message
    return Promise(names=tuple(sorted(message.maintained_indexes)), every=message.maintain_all_indexes)


def write_promise(base: BaseTable, promise: Promise, *, objects: ObjectStore) -> bool:
    """Commit a promise on this version of the base. Return False if another commit came first.

    Raises: the same errors as `change_details`.
    """

    def change(message: MemWalIndexDetails, _: str) -> None:
        del message.maintained_indexes[:]
        message.maintained_indexes.extend(promise.names)
        message.maintain_all_indexes = promise.every

    return change_details(base, change, objects=objects)


def _dataset(base: BaseTable) -> lance.LanceDataset:
    return open_dataset(uri=base.uri, version=base.version, storage_options=base.storage_options)
