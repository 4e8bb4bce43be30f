"""Damage the SQLite file of a registry as a whole. `test_scrub_corpus` damages single records."""

from __future__ import annotations

from pathlib import Path

import pytest

import lancelsm
from lancelsm.common.layout import SQLITE
from lancelsm.errors import Corrupt, LsmWarning
from lancelsm.registry import SwapApplied
from lancelsm.scrubbing.report import ObjectKind
from lancelsm.scrubbing.table import scrub_location
from lancelsm.table import Table
from tests.unit.tables import create, row, rows_of

FLIPS = {"flipped": 0, "flipped tree": 100, "flipped page": 4096}  # offsets of the flipped bits
NO_PROBLEM = {"doubled": "no reader opens a second file"}
OTHER_ROWS = {"stale": "an older copy of the registry is an older, consistent table"}


def filled(path: Path, value: str) -> Table:
    table = create(path, regions="bucket(id, 2)", registry="sqlite")
    for number in range(2):
        table.upsert([row(key, f"{value} {number}") for key in range(5 * number, 9)])
        table.flush()
    table.snapshot("kept")
    return table


def body_of(table: Table) -> bytes:
    table._handle.context.registry.close()  # type: ignore[attr-defined]
    return (Path(table.uri) / SQLITE).read_bytes()


@pytest.mark.one_case
@pytest.mark.parametrize("fault", ["missing", "cut", "empty", "stale", "foreign", "doubled", *FLIPS])
def test_a_damaged_registry_file_is_named_and_refused(tmp_path: Path, fault: str) -> None:
    table = filled(tmp_path, "ours")
    stale, foreign = body_of(table), body_of(filled(tmp_path / "other", "theirs"))
    table.upsert([row(1, "later")])
    table.flush()
    rows, intact, path = rows_of(table), body_of(table), Path(table.uri) / SQLITE
    bodies = {
        "cut": intact[: len(intact) * 2 // 3],
        "empty": b"",
        "stale": stale,
        "foreign": foreign,
        "doubled": intact,
    }
    bodies |= {name: flip_bit_at(intact, at) for name, at in FLIPS.items()}

    if fault == "doubled":
        path = path.with_stem("registry-2")
    else:
        path.unlink()
    if fault != "missing":
        path.write_bytes(bodies[fault])

    assert scrub_location(table.uri).ok == (fault in NO_PROBLEM)
    if fault in NO_PROBLEM:
        assert rows_of(lancelsm.open(table.uri)) == rows
    elif fault in OTHER_ROWS:
        with pytest.warns(LsmWarning, match="the registry is an older copy"):
            assert rows_of(lancelsm.open(table.uri)) != rows
    else:
        with pytest.raises(Corrupt):
            rows_of(lancelsm.open(table.uri))


def flip_bit_at(body: bytes, at: int) -> bytes:
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


def test_an_invalid_sum_in_a_snapshot_record_is_named(tmp_path: Path) -> None:
    table = filled(tmp_path, "ours")
    registry = table._handle.context.registry
    (first, *_) = [found for found in registry.list(f"S#{table.config.table}") if "#" in found[0].sort]
    key, record = first
    changed = registry.swap(key, expect={"version": record["version"]}, change={"version": 9, "entry_setsum": "x"})
    assert isinstance(changed, SwapApplied)

    assert [(one.path, one.kind) for one in table.scrub().problems] == [
        (f"{key.partition}/{key.sort}", ObjectKind.SNAPSHOT)
    ]
