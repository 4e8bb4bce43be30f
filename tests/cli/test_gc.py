"""The command `gc`: a dry run by default; with --yes it deletes after the interval."""

from __future__ import annotations

from pathlib import Path

import lance

from lancelsm.common.layout import published_manifest
from lancelsm.table import Table
from tests.cli.console import Json, Run
from tests.unit.tables import create, generation_paths, row


def merged_table(path: Path, **settings: object) -> Table:
    table = create(path, settings=settings)
    for key in range(3):
        table.upsert([row(key)])
        table.flush()
    table.merge(engine="inprocess")
    return table


def test_gc_without_yes_lists_candidates_with_reasons_and_deletes_nothing(tmp_path: Path, as_json: Json) -> None:
    uri = merged_table(tmp_path).uri

    dry_run = as_json("gc", uri)

    assert set(dry_run) == {"round", "phase", "candidates", "kept", "deleted"}
    assert (dry_run["round"], dry_run["phase"], dry_run["deleted"]) == ([], "marked", 0)
    assert all(set(one) == {"path", "kind", "bytes", "why"} for one in dry_run["candidates"])
    assert {one["kind"] for one in dry_run["candidates"]} == {"generation", "entry", "staged", "published"}
    assert as_json("gc", uri) == dry_run


def test_gc_gives_the_reason_for_each_older_object_that_is_kept(tmp_path: Path, as_json: Json) -> None:
    table = merged_table(tmp_path, keep_versions_seconds=0.001)
    lance.dataset(table.uri).tags.create("release", 2)
    table.upsert([row(6)])
    pin = table.snapshot("monday", "1h")
    for key in (7, 8):
        table.upsert([row(key)])
        table.flush()
        table.merge(engine="inprocess")
    (Path(table.uri) / "data" / "0000.lance").write_bytes(b"an orphan of the base")
    (region,) = table.list_regions()
    directory = f"_mem_wal/{region.id}"
    pinned = pin.regions[region.id]
    names = {int(path.name.rpartition("_")[2]): path.name for path in generation_paths(tmp_path)}
    fourth = names[4]

    kept = as_json("gc", table.uri)["kept"]

    needed = "a snapshot needs it"
    assert {(one["path"], one["kind"], one["why"]) for one in kept} == {
        (f"{directory}/wal/", "entry", "snapshot monday needs it from position 4 on"),
        (f"{directory}/{fourth}", "generation", "its entries are still in the log, up to position 5"),
        (pinned.manifest_key, "staged", needed),
        (published_manifest(region.id, pinned.manifest_version), "published", needed),
        ("version 2", "base_version", "it is tagged"),
        (f"version {pin.base_version}", "base_version", "snapshot monday needs it"),
    }
    assert len(kept) == 6, "each object is listed once"


def test_gc_deletes_after_the_interval_and_at_once_if_the_interval_is_0(tmp_path: Path, as_json: Json) -> None:
    table = merged_table(tmp_path)

    committed = as_json("gc", table.uri, "--yes")
    waiting = as_json("gc", table.uri, "--yes", "--interval", "1h")
    swept = as_json("gc", table.uri, "--yes", "--interval", "0s")

    assert (committed["phase"], waiting["phase"], swept["phase"]) == ("committed", "committed", "swept")
    assert waiting["round"] == committed["round"] != []
    assert swept["deleted"] == len(committed["candidates"])
    assert as_json("gc", table.uri, "--yes", "--interval", "0s")["phase"] == "idle"
    assert table.scan().to_arrow().num_rows == 3


def test_gc_without_yes_shows_a_committed_round_that_waits_for_its_sweep(
    tmp_path: Path, as_json: Json, run: Run
) -> None:
    uri = merged_table(tmp_path).uri
    committed = as_json("gc", uri, "--yes")

    dry_run, text = as_json("gc", uri), run("gc", uri)

    assert (dry_run["round"], dry_run["phase"], dry_run["deleted"]) == (committed["round"], "committed", 0)
    waits = "; its round is committed and waits for its sweep"
    assert dry_run["candidates"] == [{**one, "why": one["why"] + waits} for one in committed["candidates"]]
    found = f"{len(committed['candidates'])} candidates"
    assert f"{found}; nothing was deleted: a round waits for the end of its interval" in text.out
    assert "its round is committed" in text.out
    assert as_json("gc", uri) == dry_run


def test_gc_prints_its_result_as_text(tmp_path: Path, run: Run) -> None:
    uri = merged_table(tmp_path).uri

    dry_run, done = run("gc", uri), run("gc", uri, "--yes", "--interval", "0s")

    assert "nothing was deleted: use --yes" in dry_run.out
    assert "the base has it since version" in dry_run.out
    assert "deleted" in done.out
    refused = run("gc", uri, "--interval", "soon", "--output", "json")
    assert (refused.code, refused.document["error"]["field"]) == (1, "interval")


def test_gc_counts_an_expired_snapshot_as_deleted_at_once(tmp_path: Path, run: Run) -> None:
    table = merged_table(tmp_path, skew_allowance_seconds=0.001)
    table.snapshot("old", 0.001)

    done = run("gc", table.uri, "--yes")

    waiting = len(table.collect().candidates)
    assert f"{waiting} candidates committed for deletion after the interval, 1 deleted" in done.out
