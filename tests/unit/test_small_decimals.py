"""A decimal with far more digits than its column is refused: Arrow makes zero of one, and crashes at another."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from lancelsm.errors import Invalid
from lancelsm.record.files import read_file
from lancelsm.record.values import column, json_column

KINDS = [pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(38, 2), pa.decimal128(5, -2), pa.decimal256(76, 2)]


@pytest.mark.parametrize("text", ["1e-77", "1e-151", "-1e-400000000", "1e400000000"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("convert", [column, json_column])
def test_a_decimal_that_does_not_fit_is_invalid(
    convert: Callable[[list[Decimal | None], pa.Field], pa.Array], kind: pa.DataType, text: str
) -> None:
    with pytest.raises(Invalid, match=r"row 1.*Give (integers or Decimals|numbers, or text,) of"):
        convert([None, Decimal(text)], pa.field("n", kind))


@pytest.mark.parametrize("text", ["1e-77", "1e-400000000", f"0.{'0' * 76}1"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_decimal_of_a_csv_file_that_does_not_fit_is_invalid(tmp_path: Path, kind: pa.DataType, text: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"n\n100\n{text}\n")
    with pytest.raises(Invalid, match="column 'n', row 1"):
        read_file(str(file), schema=pa.schema({"n": kind}))
    file.write_text("n\n 100\n1.2e3 \n")
    assert read_file(str(file), schema=pa.schema({"n": kind}))["n"].to_pylist() == [100, 1200]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_trailing_zeros_of_a_decimal_fit(kind: pa.DataType) -> None:
    assert column([Decimal("200.00"), Decimal("1.2e3")], pa.field("n", kind)).to_pylist() == [200, 1200]
