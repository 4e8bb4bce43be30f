"""Indexes of the base and of generations: what they cover, crashes, and what Lance's readers are promised."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.compaction import background, maintenance
from lancelsm.compaction import indexes as maintained
from lancelsm.compaction.background import BackgroundRunner
from lancelsm.dataset import indexes as stored
from lancelsm.errors import Contended, Invalid
from lancelsm.read.index_status import IndexStatus, promise_problem, read_index_statuses
from lancelsm.region.compare_and_swap import newest
from lancelsm.stack.doctor.table_checks import table_checks
from lancelsm.table import Table
from tests.unit.index_tables import (
    COLUMNS,
    DIMENSIONS,
    check_promise,
    create,
    generations,
    indexes_of,
    promised,
    rows,
    vector,
)

BOTH = {"text_idx": "Inverted", "vec_idx": "IVF_SQ"}


def problem_of(table: Table) -> str:
    manifests = [newest(region, region.head())[1] for region in table.list_regions()]
    return promise_problem(table._handle.read_base(), manifests, objects=table._handle.context.objects)


class Crash(BaseException):
    """The process ends at this line."""


def indexed(path: Path, **options: Any) -> Table:
    """A table with two generations, of which one was flushed before the indexes existed."""
    table = create(path, **options)
    table.upsert(rows(range(10), version=1))
    table.flush()
    table.create_index("vec", kind="IVF_FLAT", num_partitions=1)
    table.create_index("text", kind="INVERTED")
    table.upsert(rows(range(5, 15), version=2))
    table.delete([20])
    table.flush()
    return table


def test_an_index_is_in_the_base_and_in_generations_before_and_after_its_creation(tmp_path: Path) -> None:
    table = indexed(tmp_path, regions="bucket(id, 2)")

    assert indexes_of(table.uri) == {"text_idx": "Inverted", "vec_idx": "IVF_FLAT"}
    assert [indexes_of(uri) for uri, _ in generations(table)] == [BOTH] * 4
    assert promised(table) == {"text_idx", "vec_idx"}
    details = lance.dataset(table.uri).mem_wal_index_details()
    assert details["maintained_indexes"] == ["text_idx", "vec_idx"]
    assert details["maintain_all_indexes"]
    found = {one.name: one for one in table.list_indices()}
    assert list(table.status().indexes) == table.list_indices()
    assert found["vec_idx"] == IndexStatus(
        name="vec_idx",
        columns=("vec",),
        kind="IVF_FLAT",
        metric="l2",
        rows=40,
        rows_without=0,
        generations=4,
        generations_without=0,
        maintained=True,
        segments=1,
        trained_rows=40,
        stalled=False,
    )
    assert problem_of(table) == ""


def test_rows_are_the_same_with_indexes_and_survive_merge_and_collection(tmp_path: Path) -> None:
    table = indexed(tmp_path)
    before = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])

    table.merge()
    maintenance.optimize_table(table._handle)
    after = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    table.collect(yes=True, interval_seconds=0)
    table.collect(yes=True, interval_seconds=0)

    assert after == before
    assert generations(table) == []
    assert {one.name: one.rows_without for one in table.list_indices()} == {"text_idx": 0, "vec_idx": 0}
    assert table.scrub().problems == ()
    check_promise(table)


@pytest.mark.parametrize(
    ("kind", "options", "in_generation"),
    [
        ("IVF_FLAT", {"num_partitions": 1, "metric": "cosine"}, "IVF_SQ"),
        ("IVF_SQ", {"num_partitions": 2, "metric": "dot"}, "IVF_SQ"),
        ("IVF_PQ", {"num_partitions": 1}, "IVF_SQ"),
        ("IVF_HNSW_SQ", {"num_partitions": 1}, "IVF_SQ"),
        ("INVERTED", {"with_position": True}, "Inverted"),
        ("FTS", {"stem": False}, "Inverted"),
        ("BTREE", {}, "BTree"),
        ("BITMAP", {}, None),
        ("NGRAM", {}, None),
        ("ZONEMAP", {}, None),
    ],
)
def test_each_kind_of_index_is_built_with_its_options(
    tmp_path: Path, kind: str, options: dict[str, Any], in_generation: str | None
) -> None:
    table = create(tmp_path)
    column = "vec" if kind.startswith("IVF_") else "text"

    made = table.create_index(column, kind=kind, name="it", **options)
    table.upsert(rows(range(3), version=1))
    table.flush()

    ((uri, _),) = generations(table)
    assert indexes_of(uri) == ({} if in_generation is None else {"it": in_generation})
    if in_generation is not None:
        base, generation = (lance.dataset(one) for one in (table.uri, uri))
        (details,) = (one.details for one in generation.describe_indices())
        (of_base,) = (one.details for one in base.describe_indices() if one.name == "it")
        shared = ("metric_type", "with_position", "stem")
        assert {name: details.get(name) for name in shared} == {name: of_base.get(name) for name in shared}
        check_promise(table)
    assert made.metric == (options.get("metric", "l2") if column == "vec" else None)


@pytest.mark.parametrize(
    ("column", "options", "problem"),
    [
        ("nope", {"kind": "BTREE"}, "no column 'nope'"),
        ("vec", {"kind": "IVF_WRONG", "name": "it"}, "IVF_WRONG"),
        ("vec", {"kind": "BTREE", "name": "it"}, "BTREE"),
        ("text", {"kind": "IVF_FLAT"}, "text"),
        ("vec", {"kind": "IVF_PQ", "name": "it", "num_partitions": 1, "num_sub_vectors": 3}, "num_sub_vectors"),
        ("vec", {"kind": "IVF_FLAT", "name": "it", "metric": "nope"}, "nope"),
        ("vec", {"kind": "ivf_pq", "name": "it", "num_partition": 4}, "IVF_PQ has no option.*mean 'num_partitions'"),
        ("vec", {"kind": "IVF_SQ", "name": "it", "num_sub_vectors": 4}, "IVF_SQ has no option 'num_sub_vectors'"),
        ("vec", {"kind": "IVF_FLAT", "name": "it", "train": False}, "IVF_FLAT has no option 'train'"),
        ("text", {"kind": "INVERTED", "fragment_ids": [0]}, "INVERTED has no option 'fragment_ids'"),
        ("id", {"kind": "BTREE", "num_partitions": 4}, "BTREE has no option 'num_partitions'"),
        ("text", {"kind": "INVERTED", "with_positions": True}, "with_positions"),
        ("text", {"kind": "INVERTED", "name": "vec_idx"}, "there is an index 'vec_idx'"),
        ("text", {"kind": "INVERTED", "name": stored.KEY_INDEX}, "reserved"),
    ],
)
def test_an_index_that_lance_refuses_is_invalid_and_changes_nothing(
    tmp_path: Path, column: str, options: dict[str, Any], problem: str
) -> None:
    table = create(tmp_path)
    table.create_index("vec", kind="IVF_FLAT", num_partitions=1)
    before = indexes_of(table.uri)

    with pytest.raises(Invalid, match=problem) as raised:
        table.create_index(column, **options)

    assert raised.value.where["table"] == table.uri
    assert indexes_of(table.uri) == before
    check_promise(table)


def test_a_table_is_created_with_indexes(tmp_path: Path) -> None:
    indexes = {"vec": {"kind": "IVF_FLAT", "metric": "cosine", "name": "near"}, "text": "INVERTED"}
    table = create(tmp_path, range(20), indexes=indexes)
    table.upsert(rows([3], version=1))
    table.flush()

    assert [(one.name, one.kind, one.metric, one.rows, one.maintained) for one in table.list_indices()] == [
        ("near", "IVF_FLAT", "cosine", 20, True),
        ("text_idx", "INVERTED", None, 20, True),
    ]
    check_promise(table)


def test_vectors_without_a_fixed_length_are_refused_with_the_type_to_use(tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path / "table", [{"id": 1, "tags": ["a"], "vec": [0.5, 1.0]}], primary_key="id")
    calls: tuple[Callable[[], object], ...] = (
        lambda: table.create_index("vec", kind="ivf_flat"),
        lambda: lancelsm.create(tmp_path / "other", table.scan(), primary_key="id", indexes={"vec": "IVF_SQ"}),
        lambda: table.search([0.5, 1.0]),
        lambda: table.search([0.5, 1.0], column="vec"),
    )
    for call in calls:
        with pytest.raises(Invalid, match=r"pa\.list_\(pa\.float32\(\), LENGTH\) for 'vec'"):
            call()
    for call in (lambda: table.create_index("vec", kind="BTREE"), lambda: table.create_index("tags", kind="IVF_FLAT")):
        with pytest.raises(Invalid, match="Check kind, column and options"):
            call()


@pytest.mark.parametrize(
    ("indexes", "problem"),
    [
        ({"nope": "IVF_FLAT"}, "nope"),
        ({"text": "IVF_FLAT"}, "text"),
        ({"text": "WRONG"}, r"built: Only "),
        ({"text": "INVERTED", "vec": {"kind": "IVF_PQ", "num_sub_vectors": 3}}, "num_sub_vectors"),
        ({"vec": {"kind": "IVF_FLAT", "metric": "nope"}}, "nope"),
        ({"vec": {"kind": "IVF_FLAT", "name": stored.KEY_INDEX}}, "reserved"),
        ({"vec": {"num_partitions": 4}}, "num_partitions"),
        ({"vec": {"kind": "IVF_FLAT", 1: 2}}, "vec"),
        ({"vec": None}, "vec"),
    ],
)
def test_a_table_with_a_wrong_index_is_not_created(tmp_path: Path, indexes: dict[str, Any], problem: str) -> None:
    with pytest.raises(Invalid, match=problem) as raised:
        create(tmp_path, indexes=indexes)

    assert raised.value.where["table"] == str(tmp_path / "table")
    assert not (tmp_path / "table").exists()


def test_a_creation_that_ended_after_an_index_is_finished_by_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any, **__: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("lancelsm.admin.create.configs.create", crash)
        with pytest.raises(Crash):
            create(tmp_path, indexes={"text": "INVERTED"})
    with pytest.raises(Invalid, match="no table"):
        lancelsm.open(tmp_path / "table")

    table = create(tmp_path, indexes={"text": "INVERTED"})

    assert [(one.name, one.rows, one.maintained) for one in table.list_indices()] == [("text_idx", 40, True)]
    assert table.scrub().ok


def test_an_index_of_an_empty_table_covers_rows_that_come_later(tmp_path: Path) -> None:
    table = lancelsm.create(tmp_path / "table", COLUMNS, primary_key="id")
    for column, kind in (("vec", "IVF_SQ"), ("text", "INVERTED")):
        table.create_index(column, kind=kind)

    table.upsert(rows(range(30)))
    table.run()

    assert {one.name: (one.rows, one.rows_without) for one in table.list_indices()} == dict.fromkeys(BOTH, (30, 0))


@pytest.mark.parametrize(
    "vectors",
    [[None, None], [[float("nan")] * DIMENSIONS] * 2, [[float("inf")] * DIMENSIONS, None]],
    ids=["null", "nan", "infinite"],
)
def test_a_generation_without_a_vector_to_find_needs_no_vector_index(tmp_path: Path, vectors: list[Any]) -> None:
    table = create(tmp_path)
    table.create_index("vec", kind="IVF_FLAT", num_partitions=1)

    table.upsert([{"id": number, "vec": one, "text": None} for number, one in enumerate(vectors)])
    table.flush()
    table.delete([5, 6])
    table.flush()

    assert [indexes_of(uri) for uri, _ in generations(table)] == [{}, {}]
    assert [one.indexes is not None for _, one in generations(table)] == [True, True]
    assert problem_of(table) == ""


def test_rows_that_lance_cannot_index_are_flushed_and_the_status_counts_them(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.create_index("vec", kind="IVF_FLAT", num_partitions=1)

    table.upsert([{"id": 1, "vec": [3e38] * DIMENSIONS, "text": ""}, *rows([2])])
    table.flush()

    assert table.get([1])["vec"].to_pylist() == [pytest.approx([3e38] * DIMENSIONS)]
    ((_, generation),) = generations(table)
    assert generation.indexes is None
    (status,) = table.list_indices()
    assert (status.generations_without, status.rows_without) == (1, 2)
    assert "1 generations lack an index" in problem_of(table)

    table.merge()
    (status,) = table.list_indices()
    assert (status.generations_without, status.rows_without) == (1, 2)  # the same rows, now of the base

    handle, (region,) = table._handle, table.list_regions()
    _, manifest = newest(region, region.head())
    other = replace(manifest, region=uuid.uuid4())  # a pending generation in a directory of the same name
    (status,) = read_index_statuses(handle.read_base(), [manifest, other], objects=handle.context.objects)
    assert (status.generations_without, status.rows_without) == (2, 4)


def test_binary_vectors_are_searched_by_hamming_distance(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("bits", pa.list_(pa.uint8(), 8))])
    data = pa.Table.from_pylist([{"id": n, "bits": [n % 256] * 8} for n in range(300)], schema=schema)
    table = lancelsm.create(tmp_path / "table", data, primary_key="id")

    table.create_index("bits", kind="IVF_FLAT", metric="hamming", num_partitions=1)
    table.upsert([{"id": 1, "bits": [255] * 8}])
    table.flush()

    ((uri, _),) = generations(table)
    assert indexes_of(uri) == {"bits_idx": "IVF_FLAT"}


# Crashes and races

STEPS = ["build_index", "write_wanted", "_require", "build_generation", "write_promise", "commit"]


def crash_at(step: str, call: int) -> Any:
    """Replace a step so that the process ends before the given call of it."""
    module = stored if hasattr(stored, step) else maintained
    real: Callable[..., Any] = getattr(module, step)
    left = [call]

    def crashing(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise Crash
        return real(*arguments, **options)

    return mock.patch.object(module, step, crashing)


def crash_then_optimize(table: Table, step: str, call: int, change: Callable[[], object]) -> None:
    """Let a change of the indexes crash at a step; then write, flush and optimize. Check the promise after each."""
    with crash_at(step, call):
        try:
            change()
        except Crash:
            check_promise(table)
    table.upsert(rows(range(3), version=3))
    table.flush()
    check_promise(table)
    maintenance.optimize_table(table._handle)
    check_promise(table)


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_after_a_crash_of_a_creation_the_promise_holds_and_optimize_finishes_it(
    tmp_path: Path, step: str, call: int
) -> None:
    table = create(tmp_path)
    table.create_index("text", kind="INVERTED")
    for version in (1, 2):
        table.upsert(rows(range(10), version=version))
        table.flush()

    crash_then_optimize(table, step, call, lambda: table.create_index("vec", kind="IVF_FLAT", num_partitions=1))

    crashed_before_the_base = step == "build_index" or (step, call) == ("write_promise", 1)
    assert promised(table) >= {"text_idx"} | (set() if crashed_before_the_base else {"vec_idx"})
    assert problem_of(table) == ""


@pytest.mark.parametrize("name", [None, "vec_idx"])
def test_an_index_that_is_replaced_is_not_promised_before_generations_have_the_new_one(
    tmp_path: Path, name: str | None
) -> None:
    table = create(tmp_path)
    table.create_index("vec", kind="IVF_FLAT", num_partitions=1, metric="l2")
    table.upsert(rows(range(10)))
    table.flush()

    with crash_at("build_index", 1), pytest.raises(Crash):
        table.create_index("vec", kind="IVF_FLAT", name=name, replace=True, num_partitions=1, metric="cosine")

    assert promised(table) == set()
    maintenance.optimize_table(table._handle)
    assert promised(table) == {"vec_idx"}


WRONG: list[dict[str, Any]] = [
    {"metric": "far"},
    {"num_partitions": -1},
    {"num_partitions": 2**70},
    {"num_sub_vectors": 0},
    {"kind": "IVF_X"},
    {"kind": "INVERTED"},
    {"kind": "INVERTED", "column": "text", "language": "Klingon"},
    {"column": "nope"},
]


def test_a_replacement_with_a_wrong_option_changes_nothing(tmp_path: Path) -> None:
    table = indexed(tmp_path)
    before = table.status().base_version

    for options in WRONG:
        with pytest.raises(Invalid):
            table.create_index(**{"column": "vec", "kind": "IVF_FLAT", "name": "vec_idx", "replace": True, **options})

        assert table.status().base_version == before, options


def test_an_index_is_maintained_again_if_its_replacement_does_not_fit_the_rows(tmp_path: Path) -> None:
    table = indexed(tmp_path)

    with pytest.raises(Invalid, match="sample_rate"):  # Lance looks at this option once it has rows
        table.create_index("vec", kind="IVF_FLAT", replace=True, num_partitions=1, sample_rate=0)

    assert promised(table) == {"vec_idx", "text_idx"}
    assert indexes_of(table.uri)["vec_idx"] == "IVF_FLAT"
    assert problem_of(table) == ""


@pytest.mark.parametrize("step", ["write_wanted", "_require", "build_generation"])
def test_a_run_finishes_an_interrupted_creation_once(tmp_path: Path, step: str) -> None:
    table = create(tmp_path)
    table.upsert(rows(range(10), version=1))
    table.flush()
    with crash_at(step, 1), pytest.raises(Crash):
        table.create_index("vec", kind="IVF_FLAT", num_partitions=1)
    busy = replace(table._handle.settings, merge_generations=99)
    handle = replace(table._handle, config=replace(table._handle.config, settings=busy))
    runner = BackgroundRunner(handle, engine="inprocess")

    def tick() -> int:
        runner.round(everything=False)
        return table.status().base_version

    version = tick()

    assert promised(table) == {"vec_idx"}
    assert problem_of(table) == ""
    with mock.patch.object(background, "finish_indexes") as again:
        assert [tick(), tick()] == [version, version]
    assert again.call_count == 1, "the indexes changed once, and were looked at again"


@pytest.mark.parametrize("step", ["write_wanted", "write_promise", "drop_base_index"])
@pytest.mark.parametrize("call", [1, 2])
def test_after_a_crash_of_a_drop_the_promise_holds_and_optimize_finishes_it(
    tmp_path: Path, step: str, call: int
) -> None:
    table = indexed(tmp_path)

    crash_then_optimize(table, step, call, lambda: table.drop_index("vec_idx"))

    started = (step, call) != ("write_wanted", 1)
    assert ("vec_idx" in indexes_of(table.uri)) == (not started)
    assert promised(table) == ({"text_idx"} if started else {"text_idx", "vec_idx"})


def test_a_dropped_index_is_no_longer_built_and_can_be_created_again(tmp_path: Path) -> None:
    table = indexed(tmp_path)

    table.drop_index("vec_idx")
    table.upsert(rows(range(3), version=3))
    table.flush()

    assert [set(indexes_of(uri)) for uri, _ in generations(table)][-1] == {"text_idx"}
    table.create_index("vec", kind="IVF_FLAT", num_partitions=1, metric="cosine")
    for uri, _ in generations(table):
        metrics = [one.details["metric_type"] for one in lance.dataset(uri).describe_indices() if one.name == "vec_idx"]
        assert metrics == ["COSINE"]
    check_promise(table)
    with pytest.raises(Invalid, match="no index 'other'"):
        table.drop_index("other")


def test_a_base_restored_to_an_older_list_does_not_stop_flushes(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.create_index("vec", kind="IVF_FLAT", num_partitions=1)
    base = lance.dataset(table.uri)
    table.create_index("text", kind="INVERTED")
    lance.dataset(table.uri, version=base.version).restore()

    table.upsert(rows(range(5), version=1))
    table.flush()

    check_promise(table)
    maintenance.optimize_table(table._handle)
    assert promised(table) == {"vec_idx"}
    check_promise(table)


def test_optimize_repairs_a_table_whose_indexes_another_tool_created(tmp_path: Path) -> None:
    table = create(tmp_path)
    lance.dataset(table.uri).create_index("vec", "IVF_FLAT", name="vec_idx", num_partitions=1)
    lance.dataset(table.uri).create_scalar_index("text", "INVERTED", name="text_idx")
    table.upsert(rows(range(5), version=1))
    table.flush()
    assert "LanceDB refuses" in problem_of(table)
    assert [one.kind for one in table.status().problems] == ["foreign_commit", "index_promise"]
    assert [(one.name, one.ok) for one in table_checks(table.uri)][-1] == ("indexes", False)

    maintenance.optimize_table(table._handle)

    assert problem_of(table) == ""
    assert table.status().problems == ()
    assert [(one.name, one.ok) for one in table_checks(table.uri)][-1] == ("indexes", True)
    assert promised(table) == {"text_idx", "vec_idx"}
    check_promise(table)


def test_optimize_ends_the_promise_of_an_index_that_another_tool_dropped(tmp_path: Path) -> None:
    table = indexed(tmp_path)
    lance.dataset(table.uri).drop_index("vec_idx")

    maintenance.optimize_table(table._handle)

    assert promised(table) == {"text_idx"}


def test_a_promise_that_lost_its_race_is_not_committed(tmp_path: Path) -> None:
    table = indexed(tmp_path)
    base = table._handle.read_base()
    objects = table._handle.context.objects
    stored.write_wanted(base, stored.WantedList(number=9))

    assert not stored.write_promise(base, stored.Promise(names=("x",), every=False), objects=objects)
    assert stored.write_promise(
        table._handle.read_base(), stored.Promise(names=("text_idx",), every=False), objects=objects
    )
    assert not stored.write_wanted(base, stored.WantedList(number=10))


def test_only_one_process_maintains_the_indexes(tmp_path: Path) -> None:
    table = create(tmp_path)
    with maintained.lease(table._handle.context, maintained.INDEXES_LEASE), pytest.raises(Contended, match="'indexes'"):
        lancelsm.open(table.uri).create_index("vec", kind="IVF_FLAT")


def test_a_table_without_indexes_has_no_list_and_older_releases_read_its_manifests(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert(rows(range(3)))
    table.flush()
    maintenance.optimize_table(table._handle)

    (region,) = table.list_regions()
    assert newest(region, region.head())[1].index_number == 0
    assert stored.WANTED not in table._handle.read_base().metadata


# The key


def test_optimize_indexes_the_key_of_a_large_base_and_no_collection_waits_for_it(tmp_path: Path) -> None:
    table = create(tmp_path, settings={"key_index_rows": 45})
    table.create_index("text", kind="INVERTED")
    maintenance.optimize_table(table._handle)
    assert stored.KEY_INDEX not in indexes_of(table.uri)
    table.upsert(rows(range(40, 50)))
    table.flush()
    table.merge(engine="inprocess")

    maintenance.optimize_table(table._handle)

    assert indexes_of(table.uri) == {stored.KEY_INDEX: "BTree", "text_idx": "Inverted"}
    assert promised(table) == {"text_idx"}
    assert problem_of(table) == ""
    assert table.get([45])["id"].to_pylist() == [45]
    table.upsert(rows([7], version=1))
    table.flush()
    check_promise(table)
    table.merge(engine="inprocess")
    lance.dataset(table.uri).optimize.optimize_indices(index_names=["text_idx"])
    table.collect(yes=True, interval_seconds=0)
    table.collect(yes=True, interval_seconds=0)
    assert generations(table) == []


def test_a_key_of_several_columns_gets_no_index(tmp_path: Path) -> None:
    data = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    table = lancelsm.create(tmp_path / "table", data, primary_key=["a", "b"], settings={"key_index_rows": 1})

    maintenance.optimize_table(table._handle)

    assert indexes_of(table.uri) == {}


# Damage


@pytest.mark.parametrize("part", ["_indices/*/*", "_versions/*.manifest"])
def test_scrub_finds_a_damaged_index_of_a_generation(tmp_path: Path, part: str) -> None:
    table = create(tmp_path)
    table.create_index("vec", kind="IVF_FLAT", num_partitions=1)
    table.upsert(rows(range(5), version=1))
    table.flush()
    ((uri, _),) = generations(table)
    assert table.scrub().problems == ()
    damaged = sorted(Path(uri).glob(part))[0]
    body = bytearray(damaged.read_bytes())
    body[len(body) // 3] ^= 1
    damaged.chmod(0o644)
    damaged.write_bytes(body)

    problems = table.scrub().problems

    assert problems
    assert "of its indexes" in str(problems) or "its files are not" in str(problems)


def test_the_sum_of_the_rows_does_not_change_with_an_index(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert(rows(range(5), version=1))
    table.flush()
    ((_, before),) = generations(table)

    table.create_index("vec", kind="IVF_FLAT", num_partitions=1)

    ((_, after),) = generations(table)
    assert after.folded == before.folded
    assert after.indexes is not None
    assert after.indexes.version == 2
    assert table.scrub().problems == ()
    assert table.get([1])["vec"].to_pylist() == [pytest.approx(vector(10_001))]
