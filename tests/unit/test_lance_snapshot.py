"""The generations that Lance's readers get beside the base."""

from __future__ import annotations

from pathlib import Path

import pytest

from lancelsm.errors import Invalid
from tests.unit.tables import create, row


def test_an_index_or_a_snapshot_that_can_not_be_read_is_refused(tmp_path: Path) -> None:
    table = create(tmp_path)
    table.upsert([row(1)])
    table.snapshot("monday")

    with pytest.raises(Invalid, match="the table has no index 'vec_idx'"):
        table.lance_snapshot(index="vec_idx")
    with pytest.raises(Invalid, match="does not keep merged generations"):
        table.at("monday").lance_snapshot(index="v_idx")
