"""Which values an update may set: those that fit the type of the column, at any depth."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.errors import Invalid
from lancelsm.table import Table
from tests.unit.transact_tables import rows_of

STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])
NESTED = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("n", pa.int32()),
        pa.field("f", pa.float32()),
        pa.field("st", STRUCT),
        pa.field("ls", pa.list_(STRUCT)),
        pa.field("m", pa.map_(pa.string(), pa.int8())),
        pa.field("d", pa.dictionary(pa.int32(), pa.int8())),
        pa.field("v", pa.list_(pa.int8(), 2)),
        pa.field("ts", pa.list_(pa.timestamp("us"))),
    ]
)


def nested(path: Path) -> Table:
    table = lancelsm.create(path / "table", NESTED, primary_key="id")
    one = {"a": 2**31 - 1, "b": "x"}
    table.upsert(
        [{"id": 1, "n": 0, "f": 1.0, "st": one, "ls": [one], "m": {"k": 127}, "d": 127, "v": [127, 1], "ts": []}]
    )
    return table


def test_narrow_integers_inside_other_types_do_not_wrap_around(tmp_path: Path) -> None:
    table = nested(tmp_path)
    before = rows_of(table)
    for text, wanted in (("d + 1", 128), ("v[1] + v[1]", 254), ("st.a / 2 * 2 - 1 + 2", 2**31 - 1)):
        table.update(where="true", set={"n": text})
        assert rows_of(table) == [{**before[0], "n": wanted}], text
    for text in ("st.a + 1", "ls[1].a + 1"):
        with pytest.raises(Invalid, match="2147483648 not in range"):
            table.update(where="true", set={"n": text})
    for name in NESTED.names[1:]:
        table.update(where="true", set={name: name})
    assert rows_of(table) == [{**before[0], "n": 2**31 - 1}]


@pytest.mark.parametrize("where", ["true", "false"])
def test_a_value_of_another_shape_is_refused(tmp_path: Path, where: str) -> None:
    table = nested(tmp_path)
    before = rows_of(table)
    texts = [
        *((name, other) for name in ("st", "ls", "m") for other in NESTED.names if name != other),
        *(
            ("st", text)
            for text in ("named_struct('a', 1)", "struct(1, 'x')", "named_struct('a', 1, 'b', 'x', 'c', 2)")
        ),
        ("ls", "make_array(named_struct('a', 1, 'b', 'x', 'c', 2))"),
        *(("f", text) for text in ("1e39", "-1e400")),
        ("ts", "make_array(id)"),
    ]
    for name, text in texts:
        with pytest.raises(Invalid, match=f"column '{name}' can't be set to"):
            table.update(where=where, set={name: text})
    assert rows_of(table) == before
