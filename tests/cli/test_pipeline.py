"""What the commands do with a table, and which documents they print."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from lancelsm.common.settings import Settings
from lancelsm.demo.year import Shown
from tests.cli.console import ORDERS, Json, Run, lines


def test_a_table_is_created_written_flushed_merged_and_read(tmp_path: Path, run: Run, as_json: Json) -> None:
    location, file = tmp_path / "t", tmp_path / "rows.ndjson"
    file.write_text(lines({"id": 1, "state": "new"}, {"id": 2, "state": "new"}))

    arguments = ["init", location, "--schema", file, "--primary-key", "id", "--regions", "bucket(id, 4)"]
    assert as_json(*arguments) == {"table": str(location), "regions": 4, "rows": 0}
    assert as_json(*arguments, "--exist-ok") == {"table": str(location), "regions": 4, "rows": 0}
    assert run(*arguments[:-1], "bucket(id, 5)", "--exist-ok").code == 1

    written = as_json("write", location, file)
    assert written["rows"] == 2
    assert sum(entry["rows"] for entry in written["entries"]) == 2
    assert all(entry.keys() == {"region", "position", "rows"} for entry in written["entries"])
    assert sorted(row["id"] for row in run("scan", location, "--output", "json").rows) == [1, 2]

    flushed = as_json("flush", location)["generations"]
    assert sum(generation["rows"] for generation in flushed) == 2
    assert all((location / generation["path"]).is_dir() for generation in flushed)

    assert as_json("compact", location) == {"generations": []}
    merged = as_json("merge", location, "--engine", "inprocess")
    assert merged["merged"] == sorted(
        ({"region": g["region"], "generation": 1} for g in flushed), key=lambda one: one["region"]
    )
    assert (merged["rows_upserted"], merged["rows_deleted"]) == (2, 0)

    assert as_json("get", location, "--key", "2") == {"id": 2, "state": "new"}
    assert as_json("delete", location, "--key", '{"id": 2}')["rows"] == 1
    assert as_json("get", location, "--key", "2") is None
    assert as_json("scan", location, "--count") == {"count": 1}

    status = as_json("status", location)
    assert status["base_version"] >= merged["base_version"]
    assert sum(region["wal_rows"] for region in status["regions"]) == 1
    assert {tuple(region) for region in status["regions"]} == {
        (
            "region", "values", "epoch", "owner", "status", "next_position", "generations", "merged_generation",
            "newest_generation", "wal_rows", "wal_bytes",
        )
    }  # fmt: skip


@pytest.mark.rest
def test_rows_are_written_under_conditions_and_updated(orders: Path, tmp_path: Path, run: Run, as_json: Json) -> None:
    file = tmp_path / "rows.ndjson"
    before = as_json("get", orders, "--key", "1", "--with-token")
    assert before["row"]["id"] == 1

    file.write_text(lines({"id": 1, "price": 9}, {"id": 9, "price": 9}))
    assert as_json("write", orders, file, "--partial")["rows"] == 2
    assert as_json("get", orders, "--key", "1") == {**before["row"], "price": 9.0}

    file.write_text(lines({"id": 1, "state": "x", "price": 8}, {"id": 10, "state": "x", "price": 8}))
    done = as_json("write", orders, file, "--if-absent")
    assert (done["rows"], done["skipped"]) == (1, 1)
    assert as_json("write", orders, file, "--if-newer", "price")["skipped"] == 2
    assert run("write", orders, file, "--if-unchanged", before["token"]).code == 3

    assert (
        as_json("update", orders, "--set", "price = price + 1", "--set", "state='y'", "--where", "id > 8")["rows"] == 2
    )
    assert as_json("get", orders, "--key", "10") == {"id": 10, "state": "y", "price": 9.0}


def test_init_loads_rows_and_stores_settings(orders: Path, tmp_path: Path, as_json: Json) -> None:
    file = tmp_path / "orders.parquet"

    created = as_json(
        "init",
        tmp_path / "t",
        "--schema",
        file,
        "--primary-key",
        "id",
        "--load",
        "--set",
        "flush_rows=7",
        "--owner",
        "me",
    )

    assert created == {"table": str(tmp_path / "t"), "regions": 1, "rows": 3}
    described = as_json("describe", tmp_path / "t")
    assert described["settings"] == {"flush_rows": "7"}
    assert (described["owner"], described["registry"], described["regions"]) == ("me", "sqlite", "unsharded")


def test_describe_shows_columns_and_key(orders: Path, as_json: Json) -> None:
    described = as_json("describe", orders)

    assert described["primary_key"] == ["id"]
    assert described["regions"] == "bucket(id, 2)"
    assert (described["base_rows"], described["sequence_by"]) == (3, [])
    assert described["schema"]["columns"] == [
        {"name": "id", "type": "int64", "nullable": False, "field_id": 0},
        {"name": "state", "type": "string", "nullable": True, "field_id": 1},
        {"name": "price", "type": "double", "nullable": True, "field_id": 2},
    ]


def test_composite_keys_are_given_as_json_objects(tmp_path: Path, run: Run, as_json: Json) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("shop,no,total\nä,1,1.5\nb,1,2.5\n")
    as_json("init", tmp_path / "t", "--schema", file, "--primary-key", "shop,no", "--regions", "bucket(shop, 3)")
    as_json("write", tmp_path / "t", file)

    assert as_json("get", tmp_path / "t", "--key", '{"no": 1, "shop": "ä"}') == {"shop": "ä", "no": 1, "total": 1.5}
    plain = run("get", tmp_path / "t", "--key", "1", "--output", "json")
    assert plain.code == 1
    assert "shop, no" in plain.document["error"]["message"]


@pytest.mark.parametrize("key", ['"007"', "007", '{"code": "007"}'])
def test_a_text_key_needs_no_quotes(tmp_path: Path, as_json: Json, key: str) -> None:
    file = tmp_path / "rows.ndjson"
    file.write_text(lines({"code": "007", "n": 1}))
    as_json("init", tmp_path / "t", "--schema", file, "--primary-key", "code", "--load")

    assert as_json("get", tmp_path / "t", "--key", key) == {"code": "007", "n": 1}


def test_several_files_are_written_in_order(orders: Path, tmp_path: Path, as_json: Json) -> None:
    files = [tmp_path / "a.ndjson", tmp_path / "b.csv"]
    files[0].write_text(lines({"id": 9, "state": "first", "price": 1.0}))
    files[1].write_text("id,state,price\n9,second,2\n10,,\n")

    assert as_json("write", orders, *files)["rows"] == 3

    assert as_json("get", orders, "--key", "9")["state"] == "second"
    assert as_json("get", orders, "--key", "10") == {"id": 10, "state": None, "price": None}


def test_stdin_is_read_as_json_lines(orders: Path, as_json: Json) -> None:
    row = {"id": 4, "state": '日本 "quoted"\nline', "price": 0.1}

    assert as_json("write", orders, "-", stdin=lines(row))["rows"] == 1
    assert as_json("get", orders, "--key", "4") == row
    assert as_json("delete", orders, "--keys", "-", stdin=lines({"id": 4}, {"id": 1}))["rows"] == 2
    assert as_json("scan", orders, "--count") == {"count": 2}


@pytest.mark.parametrize("suffix", ["ndjson", "csv", "parquet", "arrow"])
def test_writing_no_rows_makes_no_entry(orders: Path, tmp_path: Path, as_json: Json, suffix: str) -> None:
    file = tmp_path / f"none.{suffix}"
    assert as_json("scan", orders, "--where", "false", "--to", file)["rows"] == 0

    assert as_json("write", orders, file) == {"rows": 0, "entries": []}
    assert as_json("write", orders, "-") == {"rows": 0, "entries": []}


def test_a_large_file_becomes_several_entries(orders: Path, tmp_path: Path, as_json: Json) -> None:
    as_json("config", "set", orders, "group_commit_bytes=2000")
    file = tmp_path / "many.csv"
    file.write_text("id,state,price\n" + "".join(f"{i},{'x' * 50},\n" for i in range(200)))

    written = as_json("write", orders, file)

    assert written["rows"] == 200
    assert len(written["entries"]) > 4
    assert as_json("scan", orders, "--count") == {"count": 200}


def test_rows_can_be_deleted_by_a_file_and_by_a_condition(orders: Path, tmp_path: Path, as_json: Json) -> None:
    keys = tmp_path / "keys.csv"
    keys.write_text("id\n1\n77\n")

    assert as_json("delete", orders, "--keys", keys)["rows"] == 2
    assert as_json("delete", orders, "--where", "state = 'paid'")["rows"] == 1
    assert as_json("delete", orders, "--where", "state = 'nobody'") == {"rows": 0, "entries": []}
    assert as_json("scan", orders, "--count") == {"count": 1}


def test_scan_takes_columns_conditions_and_a_limit(orders: Path, run: Run) -> None:
    rows = run("scan", orders, "--columns", "state,id", "--where", "id >= 2", "--output", "json").rows

    assert sorted(rows, key=lambda row: row["id"]) == [{"state": "paid", "id": 2}, {"state": "żółć ✓", "id": 3}]
    assert [list(row) for row in rows] == [["state", "id"]] * 2
    assert len(run("scan", orders, "--limit", "2", "--output", "json").rows) == 2
    assert run("scan", orders, "--where", "id > 99", "--output", "json").out == ""


def test_history_shows_which_generations_a_version_merged(orders: Path, as_json: Json) -> None:
    as_json("write", orders, "-", stdin=lines({"id": 1, "state": "void", "price": None}))
    (flushed,) = as_json("flush", orders)["generations"]
    merged = as_json("merge", orders, "--engine", "inprocess")

    versions = as_json("history", orders)["versions"]

    assert [v["merged"] for v in versions if v["merged"]] == [[{"region": flushed["region"], "generation": 1}]]
    (found,) = (v for v in versions if v["version"] == merged["base_version"])
    assert (found["operation"], found["rows"]) == ("Merge", 3)
    (newest,) = as_json("history", orders, "--limit", "1")["versions"]
    assert newest == versions[-1]


def test_a_merge_with_nothing_to_merge_says_so(orders: Path, run: Run, as_json: Json) -> None:
    assert as_json("merge", orders)["merged"] == []
    assert "Nothing to merge" in run("merge", orders).out


def test_inspect_shows_staged_and_published_manifests(orders: Path, as_json: Json) -> None:
    manifests = as_json("inspect", "manifest", orders)["manifests"]

    assert [m["published"] for m in manifests] == [True, True]
    assert sorted(m["values"]["bucket"] for m in manifests) == [0, 1]
    for manifest in manifests:
        assert (orders / manifest["staged"]).is_file()
        assert manifest["head"]["manifest_version"] == manifest["version"] == 1

    for file in (orders / "_mem_wal" / manifests[0]["region"] / "manifest").glob("*.binpb"):
        file.unlink()
    found = as_json("inspect", "manifest", orders, "--region", manifests[0]["region"])["manifests"]
    assert [m["published"] for m in found] == [False]


def test_inspect_distinguishes_committed_entries_fences_and_orphans(orders: Path, as_json: Json) -> None:
    as_json("write", orders, "-", stdin=lines({"id": 1, "state": "a", "price": None}))
    as_json("flush", orders)
    (entry,) = as_json("write", orders, "-", stdin=lines({"id": 1, "state": "b", "price": None}))["entries"]
    region = entry["region"]
    as_json("region", "claim", orders, "--region", region)
    log = orders / "_mem_wal" / region / "wal"
    (log / f"{format(9, '064b')[::-1]}.arrow").write_bytes(b"cut")
    copied = (log / f"{format(2, '064b')[::-1]}.arrow").read_bytes()
    (log / f"{format(8, '064b')[::-1]}.arrow").write_bytes(copied)

    found = as_json("inspect", "entries", orders, "--region", region[:6])["entries"]

    assert [(e["position"], e["state"], e["fence"]) for e in found] == [
        (1, "flushed", False),
        (2, "tail", False),
        (3, "tail", True),
        (8, "uncommitted", False),
        (9, "unreadable", None),
    ]
    assert [e["sound"] for e in found] == [True, True, True, False, None]


def test_inspect_finds_generations_that_no_manifest_names(orders: Path, as_json: Json) -> None:
    as_json("write", orders, "-", stdin=lines({"id": 1, "state": "a", "price": None}))
    (flushed,) = as_json("flush", orders)["generations"]
    as_json("merge", orders, "--engine", "inprocess")
    orphan = orders / "_mem_wal" / flushed["region"] / "0123abcd_gen_2"
    orphan.mkdir()
    (orphan / "data").write_bytes(b"12345")

    found = as_json("inspect", "generations", orders)["generations"]

    assert [(g["generation"], g["state"]) for g in found] == [(1, "merged"), (2, "orphan")]
    assert (found[0]["path"], found[0]["rows"], found[0]["first_position"]) == (flushed["path"], 1, 1)
    assert (found[1]["objects"], found[1]["bytes"], found[1]["rows"]) == (1, 5, None)


def test_a_table_gets_other_regions(orders: Path, run: Run, as_json: Json) -> None:
    old = as_json("region", "list", orders)["regions"]
    rows = run("scan", orders, "--output", "json").out

    done = as_json("reshard", orders, "bucket(id, 3)")

    assert done == {"regions": "bucket(id, 3)", "sealed": len(old), "opened": 3}
    assert sorted(run("scan", orders, "--output", "json").out.splitlines()) == sorted(rows.splitlines())
    found = as_json("region", "list", orders)["regions"]
    assert sorted(one["status"] for one in found) == ["open"] * 3 + ["sealed"] * len(old)
    failed = run("reshard", orders)
    assert (failed.code, "no reshard was interrupted" in failed.err) == (1, True)


def test_regions_are_listed_claimed_and_sealed(orders: Path, run: Run, as_json: Json) -> None:
    listed = as_json("region", "list", orders)["regions"]
    assert [(r["epoch"], r["owner"], r["status"]) for r in listed] == [(1, "default", "open")] * 2
    first, second = (r["region"] for r in listed)

    (claimed,) = as_json("region", "claim", orders, "--region", first, "--owner", "loader")["regions"]
    assert (claimed["region"], claimed["epoch"], claimed["owner"]) == (first, 2, "loader")
    (sealed,) = as_json("region", "seal", orders, "--region", second)["regions"]
    assert (sealed["status"], sealed["owner"]) == ("sealed", "")

    rows = [{"id": i, "state": None, "price": None} for i in range(20)]
    assert run("write", orders, "-", stdin=lines(*rows)).code in (1, 3)
    assert len(as_json("region", "claim", orders, "--region", first)["regions"]) == 1


def test_a_lost_registry_is_rebuilt(orders: Path, as_json: Json) -> None:
    as_json("write", orders, "-", stdin=lines({"id": 4, "state": "kept", "price": None}))
    for file in (orders / "_lancelsm").glob("registry.sqlite*"):
        file.unlink()

    rebuilt = as_json("registry", "rebuild", orders)

    assert [r["owner"] for r in rebuilt["regions"]] == ["default", "default"]
    assert rebuilt["orphans"] == []
    assert as_json("get", orders, "--key", "4")["state"] == "kept"


def test_run_flushes_and_merges_everything_and_returns(orders: Path, as_json: Json) -> None:
    as_json("write", orders, "-", stdin=lines({"id": 4, "state": "kept", "price": None}))

    ran = as_json("run", orders, "--engine", "inprocess")

    assert (ran["generations"], ran["merges"]) == (1, 1)
    assert {r["owner"] for r in ran["regions"]} == {"default"}
    status = as_json("status", orders)
    assert [(r["generations"], r["wal_rows"]) for r in status["regions"]] == [(0, 0)] * 2
    assert as_json("optimize", orders)["fragments_removed"] == 0


def test_run_prints_what_it_flushed_and_merged(orders: Path, run: Run, as_json: Json) -> None:
    as_json("write", orders, "-", stdin=lines({"id": 4, "state": "kept", "price": None}))

    printed = [run("run", orders, "--engine", "inprocess").out.partition("\n")[0] for _ in range(2)]

    assert printed == [
        "Flushed 1 generation, compacted 0, merged 1 in 1 merge; compacted the base 0 times",
        "Flushed 0 generations, compacted 0, merged 0 in 0 merges; compacted the base 0 times",
    ]


def test_config_set_changes_only_the_named_settings(orders: Path, run: Run, as_json: Json) -> None:
    as_json("config", "set", orders, "flush_rows=7", "merge_generations=3")

    assert as_json("config", "set", orders, "flush_rows=8")["settings"] == {"flush_rows": "8", "merge_generations": "3"}
    wrong = run("config", "set", orders, "flush_row=8", "--output", "json")
    assert (wrong.code, wrong.document["error"]["field"]) == (1, "flush_row")
    assert as_json("describe", orders)["settings"]["flush_rows"] != str(Settings().flush_rows)


@pytest.mark.rest
def test_every_command_also_prints_text_for_people(orders: Path, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "orders.parquet"
    commands: list[tuple[str, ...]] = [
        ("write", str(orders), str(file)),
        ("delete", str(orders), "--key", "1"),
        ("flush", str(orders)),
        ("merge", str(orders), "--engine", "inprocess"),
        ("scan", str(orders)),
        ("scan", str(orders), "--count"),
        ("scan", str(orders), "--to", str(tmp_path / "out.csv")),
        ("get", str(orders), "--key", "2"),
        ("get", str(orders), "--key", "1"),
        *((name, str(orders)) for name in ("status", "describe", "history", "optimize", "run")),
        *(("inspect", what, str(orders)) for what in ("manifest", "entries", "generations")),
        *(("region", what, str(orders)) for what in ("list", "claim")),
        ("region", "seal", str(orders), "--yes"),
        ("config", "set", str(orders), "flush_rows=5"),
    ]
    for arguments in commands:
        done = run(*arguments)
        assert (done.code, done.err) == (0, ""), (arguments, done)
        assert done.out.strip(), arguments
        assert not done.out.startswith(("{", "[")), arguments


def test_values_are_not_read_as_markup(orders: Path, run: Run) -> None:
    run("write", orders, "-", stdin=lines({"id": 1, "state": "[red]tab\there\x1b[0m[/red]", "price": None}))

    assert "[red]tab\\there\\x1b[0m[/red]" in run("get", orders, "--key", "1").out
    assert "1\t[red]tab\\there\\x1b[0m[/red]\t\n" in run("scan", orders).out


def test_rows_loaded_from_a_file_are_read_unchanged(orders: Path, run: Run) -> None:
    rows = run("scan", orders, "--output", "json").rows

    assert sorted(rows, key=lambda row: row["id"]) == ORDERS.to_pylist()


@pytest.mark.parametrize("index", range(4))
def test_the_shared_options_may_stand_anywhere(orders: Path, run: Run, index: int) -> None:
    arguments: list[object] = ["region", "list", orders]
    arguments[index:index] = ["--output", "json", "--storage-option", "a=b"]

    done = run(*arguments)

    assert (done.code, len(done.document["regions"])) == (0, 2)


def test_storage_options_reach_the_store(orders: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[object] = []
    monkeypatch.setattr(
        "lancelsm.region.handle.open_table", lambda uri, *, storage_options, **_: received.append(storage_options)
    )

    run("--storage-option", "region=x", "flush", orders, "--storage-option", "key=a=b")

    assert received == [{"region": "x", "key": "a=b"}]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "ndjson", "arrow"])
def test_a_scan_into_a_file_can_be_written_again(orders: Path, run: Run, as_json: Json, suffix: str) -> None:
    file = orders.with_name(f"copy.{suffix}")
    assert as_json("scan", orders, "--to", file) == {"file": str(file), "rows": 3}

    as_json("init", orders.with_name("copy"), "--schema", orders.with_name("orders.parquet"), "--primary-key", "id")
    as_json("write", orders.with_name("copy"), file)

    rows = run("scan", orders.with_name("copy"), "--output", "json").rows
    assert sorted(rows, key=lambda row: row["id"]) == ORDERS.to_pylist()


def test_adopt_refuses_an_existing_table_and_a_location_without_one(orders: Path, run: Run) -> None:
    for arguments in ((orders,), (orders.with_name("none"),), (orders, "--regions", "bucket(id, 4)")):
        done = run("region", "adopt", *arguments, "--output", "json")

        assert (done.code, done.document["error"]["kind"]) == (1, "Invalid")


def test_the_demo_prints_its_progress_and_its_result(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    numbers = ("scheduled", "cancelled", "flown", "events", "rows_per_second", "entries", "generations", "merges")
    directories: list[object] = []

    def fake_demo(*, directory: object, console: Console) -> Shown:
        directories.append(directory)
        console.print("progress")
        return Shown(table="t", **dict.fromkeys(numbers, 1))

    monkeypatch.setattr("lancelsm.demo.embedded.run_demo", fake_demo)

    text, document_run = run("demo", "--dir", tmp_path), run("demo", "--output", "json")

    assert (text.code, text.out, directories) == (0, "progress\n", [tmp_path, None])
    assert (document_run.document, document_run.err) == ({"table": "t", **dict.fromkeys(numbers, 1)}, "progress\n")


def test_the_demo_takes_either_a_stage_or_a_directory(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stages: list[str] = []

    def fake_demo(*, stage: str, console: Console) -> Shown:
        stages.append(stage)
        console.print("progress")
        return Shown(table="s3://t", scheduled=1, cancelled=1, flown=1, events=1, rows_per_second=1, entries=1,
                     generations=1, merges=1)  # fmt: skip

    monkeypatch.setattr("lancelsm.demo.deployed.run_demo", fake_demo)

    document_run = run("demo", "--stage", "local", "--output", "json")
    refused = run("demo", "--stage", "x", "--dir", tmp_path)

    assert (document_run.document["table"], document_run.err, refused.code) == ("s3://t", "progress\n", 2)
    assert stages == ["local"]


def test_list_prints_the_names_of_the_tables_below_a_directory(run: Run, as_json: Json, orders: Path) -> None:
    orders.rename(orders.with_name("orders.lance"))

    assert as_json("list", orders.parent) == ["orders"]
    assert run("list", orders.parent).out == "orders\n"
    assert run("list", orders.parent / "nothing").out.startswith(f"no table in {orders.parent / 'nothing'}; ")
