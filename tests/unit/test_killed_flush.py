"""A flush that is killed leaves a directory that no manifest names; collection deletes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lancelsm
from lancelsm.compaction import maintenance
from lancelsm.region.compare_and_swap import newest
from lancelsm.table import Table


class Killed(BaseException):
    """The process ends at this line."""


# The steps of a flush, and whether the step is done before the process ends.
STEPS = [
    ("write_generation", False),
    ("write_generation", True),
    ("check_generation", True),
    ("build_generation", True),
]


def killed(real: Callable[..., Any], *, done: bool) -> Callable[..., Any]:
    def step(*arguments: Any, **options: Any) -> Any:
        if done:
            real(*arguments, **options)
        raise Killed

    return step


def directories(table: Table) -> set[str]:
    return {path.name for path in Path(table.uri).glob("_mem_wal/*/*_gen_*")}


def listed(table: Table) -> set[str]:
    (region,) = table.list_regions()
    return {generation.path for generation in newest(region, region.head())[1].generations}


def test_collection_deletes_what_killed_flushes_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lancelsm.create(tmp_path / "table", [{"id": 0, "text": "a"}], primary_key="id")
    table.create_index("text", kind="INVERTED")
    left: set[str] = set()
    for number, (step, done) in enumerate(STEPS, start=1):
        table.upsert({"id": number, "text": "b"})
        with monkeypatch.context() as patch:
            patch.setattr(maintenance, step, killed(getattr(maintenance, step), done=done))
            with pytest.raises(Killed):
                table.flush()
        left |= directories(table)
        table.flush()
    orphans = left - listed(table)
    assert len(orphans) == len(STEPS) - 1, "a flush that is killed before it writes leaves nothing"
    assert orphans <= directories(table)

    table.run(engine="inprocess")
    table.upsert({"id": 99, "text": "c"})
    table.flush()
    for _ in range(2):
        table.collect(yes=True, interval_seconds=0)

    assert directories(table) == listed(table)
    assert table.scan().to_arrow().num_rows == len(STEPS) + 2
    assert table.scrub().ok
