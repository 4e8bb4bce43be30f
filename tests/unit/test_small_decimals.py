"""A decimal with far more digits than its column is refused: Arrow makes zero of one, and crashes at another."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest

from lancelsm.errors import Invalid
from lancelsm.record.values import column, json_column

KINDS = [pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(38, 2), pa.decimal128(5, -2), pa.decimal256(76, 2)]


@pytest.mark.parametrize("text", ["1e-77", "1e-151", "-1e-400000000", "1e400000000"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("convert", [column, json_column])
def test_a_decimal_that_does_not_fit_is_invalid(
    convert: Callable[[list[Decimal | None], pa.Field], pa.Array], kind: pa.DataType, text: str
) -> None:
    with pytest.raises(Invalid, match=r"row 1.*Give integers or Decimals"):
        convert([None, Decimal(text)], pa.field("n", kind))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_trailing_zeros_of_a_decimal_fit(kind: pa.DataType) -> None:
    assert column([Decimal("200.00"), Decimal("1.2e3")], pa.field("n", kind)).to_pylist() == [200, 1200]
