"""Single rows of a writer are checked and copied at once, and converted together for each entry."""

from __future__ import annotations

import datetime as dt
import gc
import threading
from collections import Counter
from contextlib import contextmanager
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import lancelsm
from lancelsm.errors import Invalid, Unavailable
from lancelsm.record import single_rows
from lancelsm.record.normalize import upserts
from lancelsm.record.schema import TableSchema, declare_primary_key, numbered
from lancelsm.record.single_rows import SingleRow, SingleRows
from lancelsm.wal import group_commit
from lancelsm.wal.region_writer import committed
from tests.interrupts import interrupted

SECONDS = 30
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("text", pa.string()),
        ("small", pa.int8()),
        ("amount", pa.float32()),
        ("price", pa.decimal128(5, 2)),
        ("at", pa.timestamp("ms")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        pa.field("must", pa.bool_(), nullable=False),
        ("tags", pa.list_(pa.string())),
    ]
)
SCHEMA = TableSchema(columns=numbered(declare_primary_key(COLUMNS, ("id",))), primary_key=("id",))
PLAIN = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
ROW = {
    "id": 1,
    "text": "ä",
    "small": 1,
    "amount": 1.5,
    "price": Decimal("1.10"),
    "at": dt.datetime.fromisoformat("2026-01-02T03:04:05"),
    "day": dt.date(2026, 1, 2),
    "raw": b"\x00",
    "must": True,
    "tags": None,
}


def learned(row=ROW):
    rows = SingleRows(SCHEMA)
    assert isinstance(rows.take(row), pa.Table)
    return rows


def converted(rows, taken):
    return [outcome for _, outcome in rows.convert(taken)]


# One row


def test_the_first_row_of_a_form_is_converted_at_once_and_the_next_one_later():
    rows = learned()
    taken = [rows.take({**ROW, "id": number}) for number in (2, 3)]
    assert [type(one) for one in taken] == [SingleRow] * 2
    (together,) = converted(rows, taken)
    assert together.equals(upserts([{**ROW, "id": 2}, {**ROW, "id": 3}], schema=SCHEMA))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"other": 1}, "no column 'other'"),
        ({"id": "1"}, "not a value of int64"),
        ({"id": True}, "not a value of int64"),
        ({"id": 1.0}, "not a value of int64"),
        ({"text": b"x"}, "not a value of string"),
        ({"at": dt.date(2026, 1, 1)}, "not a value of timestamp"),
        ({"day": dt.datetime.fromisoformat("2026-01-01")}, "not a value of date32"),
        ({"must": 1}, "not a value of bool"),
        ({"must": None}, "must not be null"),
        ({"id": None}, "must not be null"),
        ({"tags": "x"}, "not a value of list"),
    ],
)
def test_a_wrong_name_or_type_is_refused_at_once(change, match):
    rows = learned()
    with pytest.raises(Invalid, match=match):
        rows.take({**ROW, **change})
    with pytest.raises(Invalid, match="'must' is missing"):
        rows.take({name: value for name, value in ROW.items() if name != "must"})


@pytest.mark.parametrize(
    "change",
    [
        {"small": 128},
        {"id": 2**63},
        {"text": "\ud800"},
        {"amount": 1e39},
        {"price": Decimal("1.001")},
        {"price": Decimal("NaN")},
        {"at": dt.datetime.fromisoformat("2026-01-01T00:00:00.000001")},
        {"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)},
    ],
)
def test_a_value_that_does_not_fit_fails_its_row_alone(change):
    rows = learned()
    given = [{**ROW, "id": number} for number in range(2, 9)]
    given[3] = {**given[3], **change}
    taken = [rows.take(row) for row in given]
    assert all(isinstance(one, SingleRow) for one in taken)

    found = list(rows.convert(taken))

    assert [row for group, _ in found for row in group] == taken
    ((refused, error),) = [(group, outcome) for group, outcome in found if isinstance(outcome, Invalid)]
    assert (refused, error.where["row"]) == ([taken[3]], 0)
    with pytest.raises(Invalid) as alone:
        upserts(given[3], schema=SCHEMA)
    assert str(alone.value) == str(error)
    kept = pa.concat_tables([outcome for _, outcome in found if isinstance(outcome, pa.Table)])
    assert kept.equals(upserts([row for at, row in enumerate(given) if at != 3], schema=SCHEMA))


def test_a_row_is_copied():
    rows = learned()
    row = {**ROW, "id": 2}
    taken = rows.take(row)
    row.update(id=99, text="changed")
    row.clear()
    assert converted(rows, [taken])[0]["id"].to_pylist() == [2]


@pytest.mark.parametrize("value", [["a"], ("a",), np.array(["a"], object)])
def test_a_value_that_can_be_changed_is_converted_at_once(value):
    rows = learned({**ROW, "tags": value})
    for _ in range(2):
        taken = rows.take({**ROW, "tags": value})
        assert isinstance(taken, pa.Table)
        assert taken["tags"].to_pylist() == [["a"]]
    assert isinstance(rows.take({**ROW, "raw": bytearray(b"x")}), pa.Table)


@pytest.mark.parametrize("number", [np.int64(5), np.int8(5), np.uint16(5)])
def test_numbers_of_numpy_are_converted_together_with_others(number):
    rows = learned({**ROW, "small": number})
    rows.take(ROW)
    taken = [rows.take({**ROW, "small": value}) for value in (number, 7, number, None)]
    assert not any(isinstance(one, pa.Table) for one in taken[:3])
    assert converted(rows, taken[:3])[0]["small"].to_pylist() == [5, 7, 5]


def test_several_rows_and_columns_are_converted_at_once():
    rows = learned()
    several = rows.take([ROW, {**ROW, "id": 2}])
    assert (type(several), several.num_rows) == (pa.Table, 2)
    assert isinstance(rows.take([ROW]), SingleRow)
    columns = rows.take({name: [value] for name, value in ROW.items()})
    assert columns.equals(upserts(ROW, schema=SCHEMA))
    assert rows.take([]).num_rows == 0


def test_a_row_has_about_the_size_of_its_arrow_form():
    rows = SingleRows(TableSchema(columns=numbered(declare_primary_key(PLAIN, ("id",))), primary_key=("id",)))
    rows.take({"id": 1, "text": "x"})
    assert rows.take({"id": 1, "text": "x" * 1000}).size == pytest.approx(1020, rel=0.02)
    assert rows.take({"id": 1, "text": "ä" * 1000}).size == pytest.approx(2020, rel=0.02)


# Arrow rows


def arrow(number, text="x", schema=PLAIN):
    return pa.table([[number], [text]], schema=schema)


def plain():
    schema = TableSchema(columns=numbered(declare_primary_key(PLAIN, ("id",))), primary_key=("id",))
    rows = SingleRows(schema)
    rows.take(arrow(0))
    return rows


def test_arrow_rows_of_a_known_schema_are_converted_together(monkeypatch):
    calls = Counter()
    real = single_rows.upserts_in_order
    monkeypatch.setattr(single_rows, "upserts_in_order", lambda *a, **k: calls.update(n=1) or real(*a, **k))
    rows = plain()
    taken = [rows.take(arrow(number) if number % 2 else arrow(number).to_batches()[0]) for number in range(100)]
    (together,) = converted(rows, taken)
    assert together["id"].to_pylist() == list(range(100))
    assert together["id"].num_chunks == 1
    assert calls["n"] == 1


def test_an_arrow_row_of_another_schema_is_checked_at_once():
    rows = plain()
    with pytest.raises(Invalid, match="no column 'other'"):
        rows.take(pa.table({"id": [1], "other": ["x"]}))
    with pytest.raises(Invalid, match="has type string"):
        rows.take(pa.table({"id": ["1"], "text": ["x"]}))
    assert isinstance(rows.take(arrow(1)), SingleRow)


def test_rows_of_several_forms_keep_their_order():
    rows = plain()
    views = pa.schema([("text", pa.large_string()), ("id", pa.int32())])
    rows.take(pa.table([["x"], [1]], schema=views))
    rows.take({"id": 1, "text": "x"})
    taken = [
        rows.take(arrow(1)),
        rows.take(pa.table([["x"], [2]], schema=views)),
        rows.take(pa.table([["x"], [3]], schema=views)),
        rows.take({"id": 4, "text": "x"}),
        rows.take(arrow(5)),
    ]
    found = list(rows.convert(taken))
    assert [len(group) for group, _ in found] == [1, 2, 1, 1]
    assert pa.concat_tables([table for _, table in found])["id"].to_pylist() == [1, 2, 3, 4, 5]


def test_an_arrow_row_that_does_not_fit_fails_alone():
    rows = plain()
    nullable = pa.schema([("id", pa.int64()), ("text", pa.string())])
    assert isinstance(rows.take(arrow(1, schema=nullable)), pa.Table)
    taken = [rows.take(arrow(number, schema=nullable)) for number in (1, None, 3)]
    outcomes = converted(rows, taken)
    assert [type(outcome) for outcome in outcomes] == [pa.Table, Invalid, pa.Table]
    assert "must not be null" in str(outcomes[1])


def test_dictionaries_that_do_not_fit_together_are_converted_apart():
    kind = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema([("id", pa.int64()), ("text", kind)])
    rows = plain()

    def one(number):
        text = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array([f"text {number}"]))
        return pa.table([pa.array([number]), text], schema=schema)

    rows.take(one(0))
    found = converted(rows, [rows.take(one(number)) for number in range(300)])
    together = pa.concat_tables(found)
    assert together["text"].to_pylist() == [f"text {number}" for number in range(300)]


def test_the_size_of_a_slice_is_not_that_of_the_whole():
    rows = plain()
    whole = pa.table([range(10_000), ["x" * 100] * 10_000], schema=PLAIN)
    assert rows.take(whole.slice(5, 1)).size < 1000


# The writer

LONG = {"group_commit_milliseconds": 1000}


@contextmanager
def raised(kind, writer):
    """Yield the writer, and expect this error when it is closed."""
    with pytest.raises(kind), writer:
        yield writer


def created(path, *, regions=None, **settings):
    return lancelsm.create(path / "t", PLAIN, primary_key="id", regions=regions, settings=settings)


def read(table):
    found = table.scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True))


@pytest.mark.parametrize("regions", [None, "bucket(id, 3)"])
@pytest.mark.parametrize("depth", [1, 4])
def test_a_row_that_does_not_fit_fails_only_its_own_future(tmp_path, regions, depth):
    table = created(tmp_path, regions=regions)
    with raised(Invalid, table.writer(pipeline_depth=depth)) as writer:
        writer.upsert({"id": 0, "text": "x"})
        futures = [writer.submit({"id": number, "text": "x"}) for number in range(1, 50)]
        bad = writer.submit({"id": 50, "text": "\ud800"})
        futures += [writer.submit({"id": number, "text": "x"}) for number in range(51, 100)]
        error = bad.exception(SECONDS)
        assert isinstance(error, Invalid)
        assert error.where["table"] == table.uri
        assert error.where["field"] == "text"
        assert all(future.result(SECONDS).rows == 1 for future in futures)
    assert read(table) == {number: "x" for number in range(100) if number != 50}


@pytest.mark.parametrize("regions", [None, "bucket(id, 3)"])
@pytest.mark.parametrize("depth", [1, 4])
def test_the_last_submission_of_a_key_wins_whatever_its_form(tmp_path, regions, depth):
    table = created(tmp_path, regions=regions)
    expected = {}
    with table.writer(pipeline_depth=depth) as writer:
        for number in range(400):
            key, text = number * 7 % 20, f"{number}"
            form = number % 5
            if form == 0:
                writer.submit({"id": key, "text": text})
            elif form == 1:
                writer.submit(arrow(key, text))
            elif form == 2:
                writer.submit([{"id": key, "text": "old"}, {"id": key, "text": text}])
            elif form == 3:
                writer.submit({"id": [key], "text": [text]})
            else:
                writer.delete([key]) if number % 100 == 4 else writer.submit([{"id": key, "text": text}])
            expected[key] = text
            if form == 4 and number % 100 == 4:
                del expected[key]
    assert read(table) == expected


@pytest.mark.parametrize("regions", [None, "bucket(id, 3)"])
def test_rows_of_a_group_are_converted_once_and_are_one_chunk(tmp_path, monkeypatch, regions):
    table = created(tmp_path, regions=regions)
    calls = Counter()
    real = single_rows.upserts_in_order
    monkeypatch.setattr(single_rows, "upserts_in_order", lambda *a, **k: calls.update(n=1) or real(*a, **k))
    with table.writer() as writer:
        writer.upsert({"id": 0, "text": "x"})
    calls.clear()
    table = lancelsm.open(table.uri, settings={"group_commit_milliseconds": 400})
    with table.writer() as writer:
        writer.upsert({"id": 0, "text": "x"})
        futures = [writer.submit({"id": number, "text": "x"}) for number in range(1, 300)]
        entries = {(e.region, e.position) for future in futures for e in future.result(SECONDS).entries}
    assert len(entries) == (3 if regions else 1)
    assert calls["n"] <= 20
    for region in table.list_regions():
        assert region.head().wal_rows >= 60


def test_a_full_buffer_refuses_single_rows(tmp_path):
    table = lancelsm.open(created(tmp_path).uri, settings={**LONG, "buffer_bytes": 5000})
    with table.writer() as writer:
        writer.submit({"id": 0, "text": "x"})
        for number in range(1, 5):
            writer.submit({"id": number, "text": "x" * 1000})
        with pytest.raises(Unavailable, match="not acknowledged"):
            writer.submit({"id": 5, "text": "x" * 1000})
        writer.submit({"id": 6, "text": "x" * 100})
    assert len(read(table)) == 6


def test_a_full_group_of_single_rows_does_not_wait_for_the_interval(tmp_path):
    table = lancelsm.open(created(tmp_path).uri, settings={**LONG, "group_commit_bytes": 4000})
    with table.writer() as writer:
        futures = [writer.submit({"id": number, "text": "x" * 1000}) for number in range(4)]
        assert futures[0].result(SECONDS).rows == 1
        assert not futures[3].done()


@pytest.mark.parametrize("regions", [None, "bucket(id, 3)"])
def test_all_callers_get_an_error_of_the_conversion_itself(tmp_path, monkeypatch, regions):
    table = created(tmp_path, regions=regions)
    with raised(MemoryError, table.writer()) as writer:
        writer.upsert({"id": 0, "text": "x"})
        monkeypatch.setattr(single_rows, "upserts_in_order", lambda *a, **k: (_ for _ in ()).throw(MemoryError()))
        futures = [writer.submit({"id": number, "text": "x"}) for number in range(1, 9)]
        assert {type(future.exception(SECONDS)) for future in futures} == {MemoryError}
        assert writer._buffer.size == 0
        monkeypatch.undo()
        assert writer.upsert({"id": 9, "text": "x"}).rows == 1


@pytest.mark.parametrize("regions", [None, "bucket(id, 3)"])
def test_rows_of_many_threads_are_each_acknowledged_once(tmp_path, regions):
    table = created(tmp_path, regions=regions)
    with table.writer(pipeline_depth=4) as writer:

        def write(start):
            for number in range(start, start + 500):
                writer.submit({"id": number, "text": f"{number}"}).add_done_callback(lambda done: done.result())

        threads = [threading.Thread(target=write, args=(start,)) for start in range(0, 4000, 500)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    assert read(table) == {number: f"{number}" for number in range(4000)}


def test_a_submission_over_several_regions_counts_its_rows(tmp_path):
    table = created(tmp_path, regions="bucket(id, 3)")
    with table.writer() as writer:
        some = writer.submit([{"id": number, "text": "x"} for number in range(50)])
        other = writer.submit([{"id": number, "text": "y"} for number in range(40, 70)])
        assert (some.result(SECONDS).rows, other.result(SECONDS).rows) == (50, 30)
        assert len(some.result().entries) == len(other.result().entries) == 3


def test_a_submission_creates_few_objects_for_the_garbage_collector(tmp_path):
    table = lancelsm.open(created(tmp_path).uri, settings=LONG)
    rows = [{"id": number, "text": "x"} for number in range(1001)]
    with table.writer() as writer:
        writer.submit(rows[0])
        gc.collect()
        gc.disable()
        try:
            before = len(gc.get_objects())
            futures = [writer.submit(row) for row in rows[1:]]
            created_objects = len(gc.get_objects()) - before
        finally:
            gc.enable()
    assert len(futures) == 1000
    assert created_objects < 4 * 1000


@pytest.mark.parametrize("regions", [None, "bucket(id, 3)"])
def test_rows_of_one_entry_share_one_result_and_a_future_keeps_no_rows(tmp_path, monkeypatch, regions):
    built = []
    monkeypatch.setattr(group_commit, "committed", lambda found: built.append(found) or committed(found))
    table = lancelsm.open(created(tmp_path, regions=regions).uri, settings=LONG)
    with table.writer() as writer:
        futures = [writer.submit({"id": number, "text": "x"}) for number in range(100)]
    assert [future.result(SECONDS).rows for future in futures] == [1] * 100
    assert len(built) == len({future.result().entries for future in futures})
    assert {future.rows for future in futures} == {None}


def test_waiting_rows_wake_their_thread_only_when_a_group_is_full(monkeypatch):
    woken = []
    queue = group_commit.GroupQueue(lambda group: None, clock=_Clock(), seconds=1, most_bytes=10)
    monkeypatch.setattr(queue._change, "notify", lambda: woken.append(queue._bytes))
    for _ in range(10):
        queue.put(group_commit.Submission(SingleRow((), -1, 1, None), 1))
    assert woken == [10]


class _Clock:
    def monotonic(self):
        return 0.0


def test_one_thread_at_a_time_holds_an_eager_lock_and_may_take_it_again():
    lock, inside, most, total = group_commit.EagerLock(), [], [0], [0]

    def work():
        for _ in range(300):
            with lock, lock:
                inside.append(None)
                most[0] = max(most[0], len(inside))
                before = total[0]
                if before % 50 == 0:
                    threading.Event().wait(0.0001)
                total[0] = before + 1
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert (most, total) == ([1], [2400])


def test_an_error_inside_gives_an_eager_lock_back():
    lock = group_commit.EagerLock()
    with pytest.raises(KeyError), lock:
        raise KeyError
    thread = threading.Thread(target=lambda: lock.__enter__() or lock.__exit__())
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive()


@pytest.mark.parametrize("again", [False, True])
def test_an_interrupt_at_any_call_gives_an_eager_lock_back(again):
    def work(lock):
        with lock:
            if again:
                with lock:
                    nothing()

    def nothing():
        pass

    def is_free(lock):
        taken = []
        thread = threading.Thread(target=lambda: taken.append(lock._lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        return taken == [True]

    total = interrupted(lambda: work(group_commit.EagerLock()), 0)
    for at in range(1, total + 1):
        lock = group_commit.EagerLock()
        interrupted(lambda lock=lock: work(lock), at)
        assert is_free(lock), at


def test_an_interrupt_at_any_call_leaves_a_queue_usable():
    def put(queue):
        for _ in range(3):
            queue.put(group_commit.Submission(SingleRow((), -1, 1, None), 1))

    def new():
        return group_commit.GroupQueue(lambda group: None, clock=_Clock(), seconds=0, most_bytes=2)

    total = interrupted(lambda: put(new()), 0)
    for at in range(1, total + 1):
        queue = new()
        interrupted(lambda queue=queue: put(queue), at)
        thread = threading.Thread(target=queue.run, daemon=True)
        thread.start()
        thread.join(SECONDS)
        assert not thread.is_alive(), at
