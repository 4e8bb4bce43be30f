"""`lancelsm scrub`: its document, its text and its exit code."""

from __future__ import annotations

from pathlib import Path

from tests.cli.console import Json, Run, lines


def test_an_intact_table_is_ok(orders: Path, as_json: Json) -> None:
    document = as_json("scrub", orders)

    assert document["ok"] is True
    assert document["checked"] > 0
    assert document["complete"] is True
    assert document["problems"] == []


def test_a_scrub_with_a_limit_is_not_complete(orders: Path, as_json: Json) -> None:
    assert as_json("scrub", orders, "--limit", "1")["complete"] is False


def test_a_problem_has_a_path_and_a_kind_and_makes_the_exit_code_4(orders: Path, run: Run) -> None:
    run("write", orders, "-", stdin=lines({"id": 9, "state": "new", "price": 1.0}))
    (entry,) = (orders / "_mem_wal").glob("*/wal/*.arrow")
    entry.unlink()

    done = run("scrub", orders, "--output", "json")
    text = run("scrub", orders)

    path = entry.relative_to(orders).as_posix()
    assert done.code == text.code == 4
    assert done.document["ok"] is False
    assert done.document["problems"] == [{"path": path, "kind": "entry", "problem": "it is gone"}]
    assert path in text.out
    assert "1 problem" in text.out


def test_the_text_says_that_a_limit_left_objects_unread(orders: Path, run: Run) -> None:
    done = run("scrub", orders, "--limit", 1)

    assert done.code == 0
    assert " objects and records checked, 0 problems; " in done.out
    assert "not everything was read" in done.out
