"""The verifier does not trust the check of the base that mark recorded: it sums statement, manifest and files again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lancelsm.common.layout import table_key
from lancelsm.common.setsum import Setsum
from lancelsm.dataset.statement import Statement, decode, encode, write_statement
from lancelsm.errors import Corrupt
from lancelsm.gc import collect, verify_base_check
from lancelsm.region.base_checked import CHECKED, Checked, read_checked
from lancelsm.table import Table
from tests.simulation.marks import without
from tests.simulation.removal import with_and_without
from tests.unit.test_statement import base_files, flip, generations, merged


def marked(path: Path) -> tuple[Table, tuple[str, ...], Checked]:
    """Create a table with rounds that delete generations, after its base was checked."""
    table = merged(path)
    assert generations(table)
    rounds = collect.mark(table._handle).rounds
    checked = read_checked(table._handle)
    assert checked is not None
    return table, rounds, checked


def is_refused(table: Table, rounds: tuple[str, ...], named: str) -> None:
    with pytest.raises(Corrupt) as raised:
        collect.verify(table._handle, rounds)
    assert raised.value.where["object"] == named
    assert "Nothing was deleted" in raised.value.remedy


def file_that_changed_after_the_check(path: Path) -> None:
    table, rounds, _ = marked(path)
    for folder in ("data/", "_deletions/"):
        key = next(key for key in base_files(table) if key.startswith(folder))
        flip(table, key)
        is_refused(table, rounds, key)
        flip(table, key)
    assert set(collect.verify(table._handle, rounds).rounds) == set(rounds)


def manifest_that_changed_after_the_check(path: Path) -> None:
    table, rounds, checked = marked(path)
    (manifest,) = Path(table.uri, "_versions").glob(f"*{2**64 - 1 - checked.version}.manifest")
    body = manifest.read_bytes()
    assert body.count(b"lancelsm.rows") == 1
    manifest.write_bytes(body.replace(b"lancelsm.rows", b"lancelsm.swor"))  # it still decodes
    is_refused(table, rounds, f"_versions/{manifest.name}")


def statement_that_changed_with_its_file(path: Path) -> None:
    table, rounds, checked = marked(path)
    key = next(key for key in base_files(table) if key.startswith("data/"))
    flip(table, key)
    stored = Path(table.uri, checked.key)
    lines = dict(decode(stored.read_bytes(), key=checked.key).files)
    own = Setsum.of_item(key.encode() + b"\0", Path(table.uri, key).read_bytes())
    wrong = stored.read_bytes().replace(lines[key].sum.digest(), own.digest())
    stored.write_bytes(wrong)
    is_refused(table, rounds, checked.key)


def file_that_the_check_lacks(path: Path) -> None:
    table, rounds, checked = marked(path)
    context = table._handle.context
    key = next(key for key in base_files(table) if key.startswith("data/"))
    found = decode(Path(table.uri, checked.key).read_bytes(), key=checked.key)
    less = Statement(version=found.version, files={name: one for name, one in found.files.items() if name != key})
    forged = Checked(version=checked.version, key=write_statement(context.objects, less), manifest=checked.manifest)
    context.registry.swap(table_key(context.table), expect={}, change={CHECKED: forged.text})
    assert encode(less) != encode(found)
    is_refused(table, rounds, key)


def test_a_file_is_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, rounds, _ = marked(tmp_path)
    read: list[str] = []
    pieces: Callable[..., Any] = verify_base_check.file_pieces

    def counted(root: str, key: str, size: int, **options: Any) -> Any:
        read.append(key)
        return pieces(root, key, size, **options)

    monkeypatch.setattr(verify_base_check, "file_pieces", counted)

    collect.verify(table._handle, rounds)
    assert sorted(read) == sorted(base_files(table))
    collect.verify(table._handle, rounds)
    assert len(read) == len(base_files(table))


GUARDS = {
    "verifier sums the files of the base": (
        [without("verifier sums the files of the base")],
        file_that_changed_after_the_check,
    ),
    "verifier sums the manifest of the checked base": (
        [without("verifier sums the manifest of the checked base")],
        manifest_that_changed_after_the_check,
    ),
    "verifier sums the statement of the check": (
        [without("verifier sums the statement of the check")],
        statement_that_changed_with_its_file,
    ),
    "verifier knows each file of the checked base": (
        [without("verifier knows each file of the checked base")],
        file_that_the_check_lacks,
    ),
}

test_a_guarded_scenario_passes, test_it_fails_without_the_guard = with_and_without(
    GUARDS, own=[scenario for _, scenario in GUARDS.values()]
)
