"""Every public call ends in a result or in one of the six kinds of errors, whatever its arguments are."""

from __future__ import annotations

import datetime as dt
import decimal
import inspect
import math
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from botocore.exceptions import EndpointConnectionError
from hypothesis import given, settings
from hypothesis import strategies as st

import lancelsm
from lancelsm.client import Client
from lancelsm.common.argument_checks import checked
from lancelsm.common.layout import CONFIG
from lancelsm.errors import Corrupt, LsmError
from lancelsm.region.handle import open_table

ROWS = [{"id": 1, "state": "new", "tags": ["a"]}, {"id": 2, "state": None, "tags": None}]


class Deep(list[Any]):
    """A list whose text is short, so that a failing example can be printed."""

    def __repr__(self) -> str:
        return "DEEP"


DEEP = Deep()
for _ in range(2_000):
    DEEP = Deep([DEEP])


# `st.builds` makes a new object for each call: generators can be read once.
ODD = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            0,
            1,
            -1,
            2**31,
            2**63 - 1,
            2**63,
            -(2**63) - 1,
            10**400,
            0.5,
            math.nan,
            math.inf,
            -0.0,
            1e308,
            1j,
            "",
            "id",
            "id = 1",
            "id = ?",
            "state = 'a' LIMIT 1",
            "id = 99999999999999999999",
            "\0",
            "\ud800",
            "a\nb",
            "x" * 5_000,
            "(" * 3_000,
            "never",
            "1h",
            "earliest",
            b"id",
            bytearray(b"\xff"),
            memoryview(b"id"),
            [],
            [1],
            [None],
            ["id"],
            ["id", "id"],
            ["id", 1],
            [[1]],
            [{}],
            [{"id": 1}],
            [{"id": 1}, {"id": "x"}],
            [{"id": 1, "state": "x", "tags": "x"}],
            [{"id": 1, "state": "x", "tags": np.int64(5)}],
            [{"id": 1, "state": "\ud800", "tags": [1]}],
            [{"id": 10**30, "state": uuid.UUID(int=1), "tags": DEEP}],
            [{1: 2}],
            (),
            (1,),
            (1, 2),
            {},
            {"id": 1},
            {"id": [1]},
            {"id": [1, 2], "state": "x"},
            {"id": [1], "state": ["x"], "tags": [["y"]]},
            {"id": 3, "state": "x", "tags": ["y"]},
            {"id": "x"},
            {1: 1},
            {"flush_rows": 10**30},
            {"snapshot_ttl_seconds": math.inf},
            {"flush_rows": "NaN"},
            {"aws_region": 1},
            set(),
            {1, 2},
            frozenset({"id"}),
            range(3),
            range(10**12),
            DEEP,
            object,
            int,
            len,
            ...,
            dt.datetime(2024, 1, 1),  # noqa: DTZ001
            dt.timedelta.max,
            decimal.Decimal("NaN"),
            decimal.Decimal(10) ** 40,
            uuid.UUID(int=7),
            Path("x"),
            Path("\0"),
            np.int64(1),
            np.timedelta64(1, "D"),
            np.float32("nan"),
            np.bool_(True),
            np.array([1, 2]),
            np.array(1),
            np.array([[1]]),
            np.array(["a", None], dtype=object),
            np.array([1j]),
            pa.scalar(1),
            pa.array([1]),
            pa.array([None]),
            pa.array(["x"]),
            pa.chunked_array([], pa.int64()),
            pa.table({"id": [1]}),
            pa.table({"id": [1, 1], "state": ["a", "b"], "tags": [["x"], None]}),
            pa.table([[1], [2]], names=["id", "id"]),
            pa.schema([("id", pa.int64())]),
            pa.schema([]),
            pa.int64(),
            pa.record_batch({"id": [1]}),
        ]
    ),
    st.builds(lambda: iter([1, 2])),
    st.builds(lambda: (row for row in ROWS)),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=3), max_size=3),
)

# These would never return, or start Spark.
NOT_ODD = {"ports", "self", "service", "fetch", "clock", "ids", "follow", "until_idle", "engine"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "t"
    table = lancelsm.create(path, ROWS, primary_key="id", settings={"retry_budget_seconds": 0.2})
    table.upsert([{"id": 3, "state": "x", "tags": []}])
    return path


def arguments_of(function: Callable[..., Any], data: st.DataObject) -> dict[str, Any]:
    """Draw odd values for some of the parameters, and for all that are required."""
    given = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in NOT_ODD:
            continue
        if parameter.default is parameter.empty or data.draw(st.booleans(), label=f"give {name}"):
            given[name] = data.draw(ODD, label=name)
    return given


def call(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Call a function and use up its result. An error must be one of the six kinds, and nothing is damaged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return used(function(**given))
        except Corrupt as error:
            pytest.fail(f"{error!r}, but nothing is damaged")
        except LsmError as error:
            return None if str(error) and error.remedy else pytest.fail(f"{error!r} does not say what to do")


def used(result: Any) -> Any:
    """Read a result, which may be read only now."""
    if isinstance(result, AbstractContextManager) and not isinstance(result, pa.RecordBatchReader):
        with result:
            pass
    elif isinstance(result, lancelsm.Rows):
        result.to_arrow()
    elif isinstance(result, Iterator):
        list(islice(result, 3))
    return result


TABLE_CALLS = sorted(
    name for name, found in inspect.getmembers(lancelsm.Table, inspect.isfunction) if not name.startswith("_")
)


def check_table_call(template: Path, folder: Path, name: str, data: st.DataObject) -> None:
    given = arguments_of(partial(getattr(lancelsm.Table, name), None), data)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    call(getattr(lancelsm.open(folder), name), given)
    assert lancelsm.open(folder).scrub().ok


def check_create(folder: Path, data: st.DataObject) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    given = arguments_of(lancelsm.create, data)
    if data.draw(st.booleans()):
        given["uri"] = folder
    else:
        given["data_or_schema"] = ROWS
    if isinstance(given["uri"], str | Path) and not str(given["uri"]).startswith("/"):
        given["uri"] = f"{folder}/{given['uri']}"
    given["settings"] = given.get("settings", {"retry_budget_seconds": 0.2})
    call(lancelsm.create, given)


def check_open(template: Path, data: st.DataObject) -> None:
    given = arguments_of(lancelsm.open, data)
    if data.draw(st.booleans()):
        given["uri"] = template
    call(lancelsm.open, given)


def check_admin(template: Path, folder: Path, data: st.DataObject) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    table, backup = folder / "t", folder / "b"
    shutil.copytree(template, table)
    functions = [lancelsm.backup, lancelsm.restore, lancelsm.clone, lancelsm.drop, open_table]
    function = data.draw(st.sampled_from(functions))
    given = arguments_of(function, data)
    right = {"table": lancelsm.open(table), "snapshot": "s", "to": folder / "n"}
    right |= {"source": backup, "uri": table if function is open_table else folder / "n"}
    given |= {name: right[name] for name in data.draw(st.sets(st.sampled_from(sorted(right)))) if name in given}
    for name in {"to", "uri", "source"} & given.keys():
        if isinstance(given[name], str | Path) and not str(given[name]).startswith("/"):
            given[name] = f"{folder}/{given[name]}"
    right["table"].snapshot("s")
    lancelsm.backup(right["table"], backup)
    call(function, given)
    if (table / CONFIG).exists():
        assert lancelsm.open(table).scrub().ok


WRITER_CALLS = ("upsert", "delete", "submit")


def check_writer_call(template: Path, folder: Path, name: str, data: st.DataObject) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    with lancelsm.open(folder).writer() as writer:
        method = getattr(writer, name)
        result = call(method, arguments_of(method, data))
        if name == "submit" and result is not None:
            result.result()


CLIENT_CALLS = ("upsert", "delete", "write", "query", "count", "flush", "close")


class NoService:
    """A service without a network."""

    def __call__(self, name: str, **_: Any) -> NoService:
        return self

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def fail(**_: Any) -> None:
            raise EndpointConnectionError(endpoint_url="http://localhost")

        return fail


def check_client_call(name: str, data: st.DataObject) -> None:
    client = Client(interval_seconds=None, retry_seconds=0.001, service=NoService())
    method = getattr(client, name)
    call(method, arguments_of(method, data))


def check_client(data: st.DataObject) -> None:
    call(Client, {**arguments_of(Client, data), "interval_seconds": None})


@pytest.mark.parametrize("name", TABLE_CALLS)
def test_a_call_of_a_table_ends_right(template: Path, tmp_path: Path, name: str) -> None:
    sample(5, partial(check_table_call, template, tmp_path / "t", name))


@pytest.mark.parametrize("name", WRITER_CALLS)
def test_a_call_of_a_writer_ends_right(template: Path, tmp_path: Path, name: str) -> None:
    sample(10, partial(check_writer_call, template, tmp_path / "t", name))


@pytest.mark.parametrize("name", CLIENT_CALLS)
def test_a_call_of_a_client_ends_right(name: str) -> None:
    sample(30, partial(check_client_call, name))


def test_create_open_and_client_end_right(template: Path, tmp_path: Path) -> None:
    sample(20, partial(check_create, tmp_path / "t"))
    sample(20, partial(check_admin, template, tmp_path / "t"))
    sample(30, partial(check_open, template))
    sample(50, check_client)


@pytest.mark.long
@pytest.mark.parametrize("name", TABLE_CALLS)
def test_many_calls_of_a_table_end_right(template: Path, tmp_path: Path, name: str) -> None:
    sample(400, partial(check_table_call, template, tmp_path / "t", name))


@pytest.mark.long
def test_many_calls_of_writers_and_clients_end_right(template: Path, tmp_path: Path) -> None:
    for name in WRITER_CALLS:
        sample(400, partial(check_writer_call, template, tmp_path / "t", name))
    for name in CLIENT_CALLS:
        sample(400, partial(check_client_call, name))
    sample(400, partial(check_create, tmp_path / "t"))
    sample(400, partial(check_admin, template, tmp_path / "t"))
    sample(400, partial(check_open, template))
    sample(400, check_client)


@pytest.mark.parametrize("name", TABLE_CALLS)
def test_the_arguments_of_each_call_of_a_table_are_checked_once(name: str) -> None:
    layers = [getattr(lancelsm.Table, name)]
    while hasattr(layers[-1], "__wrapped__"):
        layers.append(layers[-1].__wrapped__)
    assert [one.__code__ for one in layers].count(checked(len).__code__) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda table: table.upsert(),
        lambda table: table.scan("id", "id"),
        lambda table: table.get([1], nonsense=1),
        lambda table: table.snapshot(),
        lambda _: lancelsm.create("x"),
        lambda _: lancelsm.open(),
        lambda _: Client("dev"),
    ],
)
def test_a_wrong_number_of_arguments_is_a_type_error(template: Path, wrong: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError):
        wrong(lancelsm.open(template))


def test_an_array_without_a_dimension_is_no_list(template: Path) -> None:
    with pytest.raises(lancelsm.Invalid, match="columns is of type ndarray"):
        lancelsm.open(template).scan(columns=np.array("id"))  # type: ignore[arg-type]


@pytest.mark.parametrize("unit", ["D", "ns"])
def test_a_duration_of_numpy_is_no_number(template: Path, unit: str) -> None:
    with pytest.raises(lancelsm.Invalid, match="limit is of type timedelta64"):
        lancelsm.open(template).scan(limit=np.timedelta64(1, unit))  # type: ignore[arg-type, call-overload]


def sample(examples: int, check: Callable[[st.DataObject], None]) -> None:
    @settings(max_examples=examples)
    @given(st.data())
    def one(data: st.DataObject) -> None:
        check(data)

    one()
