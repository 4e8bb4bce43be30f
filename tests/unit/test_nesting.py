"""Columns and values that are nested too deeply are refused: Lance and Arrow would fail or crash."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.errors import Invalid
from lancelsm.record.admission import MOST_LEVELS


def in_list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(kind)


def in_struct(kind: pa.DataType) -> pa.DataType:
    return pa.struct([("a", kind)])


def in_map(kind: pa.DataType) -> pa.DataType:
    return pa.map_(pa.string(), kind)


Around = Callable[[pa.DataType], pa.DataType]


def nested(around: Around, levels: int) -> pa.Schema:
    kind = pa.int64()
    for _ in range(levels):
        kind = around(kind)
    return pa.schema([pa.field("id", pa.int64()), pa.field("deep", kind)])


@pytest.mark.parametrize(
    ("around", "levels"), [(in_map, MOST_LEVELS // 2 + 1), (in_list, MOST_LEVELS + 1), (in_struct, MOST_LEVELS + 1)]
)
def test_a_column_of_too_many_levels_is_refused(tmp_path: Path, around: Around, levels: int) -> None:
    with pytest.raises(Invalid, match=f"'deep' is nested in more than {MOST_LEVELS} levels"):
        lancelsm.create(tmp_path / "t", nested(around, levels), primary_key="id")


def test_a_type_that_python_cannot_walk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="'deep' is nested"):
        lancelsm.create(tmp_path / "t", nested(in_list, 3_000), primary_key="id")


DEEP = """
import sys
import numpy as np
import pandas as pd
import lancelsm
from lancelsm.errors import Invalid

deep = around = 1
for _ in range(100_000):
    deep, around = [deep], {"a": around}
itself = []
itself.append(itself)
array = np.empty(1, object)
array[0] = deep
in_array = np.empty(1, object)
in_array[0] = array
values = [[deep], [around], [itself], array, in_array, pd.Series(array)]
frames = [pd.DataFrame({"id": [1], "l": array}), pd.DataFrame({"id": [1]}, index=pd.Index(array, name="l"))]
given = [{"id": [1], "l": one} for one in values] + frames + [[{"id": 1, "l": one}] for one in (deep, around, array)]
table = lancelsm.create(f"{sys.argv[1]}/t", [{"id": 1, "l": [1]}], primary_key="id")
calls = [lambda: lancelsm.create(f"{sys.argv[1]}/u", one, primary_key="id"), lambda: table.upsert(one)]
calls += [lambda: table.get(one), lambda: table.delete(one["l"] if isinstance(one, dict) else one)]
for one in given:
    for call in calls:
        try:
            call()
        except Invalid as error:
            print(error.message[:60])
"""


@pytest.mark.rest
def test_values_of_any_depth_are_refused_without_a_crash(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DEEP, tmp_path], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 44), done
