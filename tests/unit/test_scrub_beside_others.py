"""Scrub beside others: what is merged, cleaned up, dropped or made while it reads is no problem, and no error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest

import lancelsm.dataset.scrub_reads as reads
import lancelsm.scrub.base as base_scrub
from lancelsm.common.clock import Budget
from lancelsm.common.layout import Version, head_key, published_manifest, version_hint
from lancelsm.dataset.cleanup import clean_versions, stored_versions
from lancelsm.region import compare_and_swap
from lancelsm.region.catalog import Region
from lancelsm.region.handle import open_configured
from lancelsm.registry.object import object_key
from lancelsm.scrub.report import ObjectKind, Report
from lancelsm.scrub.table import scrub
from lancelsm.table import Table
from tests.unit.tables import create, row


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Rows at each level; a snapshot of an older version."""
    table = create(tmp_path)
    for number in range(3):
        table.upsert([row(key, str(number)) for key in range(number, 6)])
        table.flush()
        if number == 0:
            table.merge(engine="inprocess")
            table.snapshot("before")
            table.upsert([row(9)])
            table.flush()
            table.merge(engine="inprocess")
    table.upsert([row(1, "tail")])
    return table


def fold(table: Table, times: int = 1) -> None:
    """Take everything into the base, and remove what that leaves, old versions at once."""
    for number in range(times):
        table.upsert([row(number, "later")])
        table.flush()
        table.merge(engine="inprocess")
        table.collect(yes=True, interval_seconds=0)
        versions = [one.version for one in stored_versions(uri=table.uri)]
        clean_versions(uri=table.uri, versions=versions[:-1])


def drop(table: Table) -> None:
    table.drop_snapshot("before")
    fold(table)


def before(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, act: Callable[[], object], *, times: int) -> None:
    """Act once, before the call of this number."""
    wrapped, calls = getattr(module, name), [0]

    def acting(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == times:
            act()
        return wrapped(*arguments, **named)

    monkeypatch.setattr(module, name, acting)


@pytest.mark.parametrize("act", [fold, drop])
@pytest.mark.parametrize(
    ("module", "name", "times"),
    [
        (reads, "_as_stored", 1),
        (reads, "_named_files", 1),
        (reads, "read_generation", 1),
        (reads, "_index", 1),
        (base_scrub, "read_markers", 1),
        (base_scrub, "examine_base", 1),
        (base_scrub, "examine_indexes", 1),
        (base_scrub, "open_base", 1),
        (base_scrub, "open_base", 2),
        (base_scrub, "examine_base", 2),
        (base_scrub, "examine_indexes", 2),
    ],
)
def test_what_is_swept_while_it_is_read_is_no_problem(
    table: Table, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, times: int, act: Callable[[Table], None]
) -> None:
    acted: list[bool] = []
    before(monkeypatch, module, name, lambda: (acted.append(True), act(table)), times=times)

    report = table.scrub()

    assert acted
    assert report.problems == ()


def test_region_and_base_are_read_anew_until_they_are_one_state(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    before(monkeypatch, base_scrub, "open_base", lambda: fold(table), times=1)
    before(monkeypatch, base_scrub, "mismatch", lambda: fold(table, 2), times=1)

    assert table.scrub().problems == ()


def test_a_version_that_goes_between_its_listing_and_its_reading_was_the_newest_no_more(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, calls = lance.dataset, [0]

    def late(uri: str, version: int | None = None, **options: Any) -> Any:
        found = handle(uri, version=version, **options)
        if version is None and uri == table.uri:
            calls[0] += 1
            if calls[0] == 1:
                fold(table, 2)
                raise ValueError(f"Dataset at path {uri} was not found: Not found: version {found.version}")
        return found

    monkeypatch.setattr("lancelsm.dataset.base_table.lance.dataset", late)

    assert table.scrub().problems == ()
    assert calls[0] > 1


class _Acting:
    """A port that acts once, before or after a method is called with such an argument."""

    def __init__(self, inner: Any, method: str, about: str, act: Callable[[], object], *, after: bool) -> None:
        self._inner, self._method, self._about, self._act, self._after = inner, method, about, act, after
        self.done = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._acting(found) if name == self._method else found

    def _acting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def acting(first: Any, *arguments: Any, **named: Any) -> Any:
            now = not self.done and self._about in str(first)
            self.done |= now
            if now and not self._after:
                self._act()
            answer = call(first, *arguments, **named)
            if now and self._after:
                self._act()
            return answer

        return acting


def scrubbed(table: Table, port: str, *act: Any, after: bool) -> Report:
    handle = open_configured(table.uri)
    acting = _Acting(getattr(handle.context, port), *act, after=after)
    report = scrub(replace(handle, context=replace(handle.context, parallel=1, **{port: acting})))
    assert acting.done
    return report


def test_a_published_version_that_is_swept_below_a_hint_that_was_raised_meanwhile_is_no_problem(table: Table) -> None:
    (region,) = table.regions()
    objects, key = region.context.objects, version_hint(region.id)
    newest = region.head().manifest_version
    raised = objects.get(key)
    assert raised is not None

    def publish() -> None:
        (Path(table.uri) / key).write_bytes(raised.body)
        objects.delete([published_manifest(region.id, Version(newest - 1))])

    lagging = raised.body.replace(str(newest).encode(), str(newest - 1).encode())
    assert lagging != raised.body
    (Path(table.uri) / key).write_bytes(lagging)

    assert scrubbed(table, "objects", "get", "version_hint", publish, after=True).problems == ()


def test_a_manifest_between_its_swap_and_its_publication_is_no_problem(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, reports = compare_and_swap.publish, list[Report]()

    def late(region: Region, staged: compare_and_swap.Staged, *, budget: Budget) -> None:
        reports.append(table.scrub())
        publish(region, staged, budget=budget)

    monkeypatch.setattr(compare_and_swap, "publish", late)
    table.flush()
    table.merge(engine="inprocess")
    table.collect(yes=True, interval_seconds=0)

    assert len(reports) > 1
    assert [report.problems for report in reports] == [()] * len(reports)


def test_a_manifest_that_a_crash_left_unpublished_is_no_problem_and_the_next_commit_publishes_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    (region,) = table.regions()
    with monkeypatch.context() as crashed:
        crashed.setattr(compare_and_swap, "publish", lambda *_, **__: None)
        table.flush()
    left = published_manifest(region.id, region.head().manifest_version)
    assert region.context.objects.get(left) is None
    assert table.scrub().problems == ()

    table.upsert([row(1)])
    table.flush()

    assert region.context.objects.get(left) is not None
    assert table.scrub().problems == ()


def test_a_manifest_that_was_published_and_is_gone_is_a_problem(table: Table) -> None:
    (region,) = table.regions()
    newest = published_manifest(region.id, region.head().manifest_version)
    region.context.objects.delete([newest])

    assert [(one.path, one.kind) for one in table.scrub().problems] == [(newest, ObjectKind.PUBLISHED)]


def test_a_hint_that_a_crash_left_unwritten_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as crashed:
        crashed.setattr(compare_and_swap, "_raise_hint", lambda *_: None)
        table = create(tmp_path)
        table.upsert([row(1)])
        table.flush()
    (region,) = table.regions()
    assert region.context.objects.get(version_hint(region.id)) is None
    assert table.scrub().problems == ()

    region.context.objects.delete([published_manifest(region.id, Version(1))])

    assert {one.kind for one in table.scrub().problems} == {ObjectKind.HINT}


def test_a_region_that_is_made_and_written_while_its_head_is_looked_for_is_no_problem(tmp_path: Path) -> None:
    table = create(tmp_path, registry="object")
    table.upsert([row(1)])
    (region,) = table.regions()
    head = Path(table.uri) / object_key(head_key(region.context.table, region.id))
    not_yet = head.rename(head.with_name("not yet"))

    report = scrubbed(table, "objects", "list", region.id, lambda: not_yet.rename(head), after=False)

    assert report.problems == ()


@pytest.mark.parametrize("kind", ["snapshot", "cursor"])
def test_a_pin_that_is_dropped_while_its_regions_are_read_is_no_problem(table: Table, kind: str) -> None:
    table.set_cursor("mine")

    def dropped() -> None:
        (table.drop_snapshot if kind == "snapshot" else table.drop_cursor)("before" if kind == "snapshot" else "mine")
        fold(table)

    listed = "S#" if kind == "snapshot" else "C#"
    assert scrubbed(table, "registry", "list", listed, dropped, after=True).problems == ()


def test_a_table_that_is_claimed_and_sealed_while_it_is_read_has_no_problem(table: Table) -> None:
    (region,) = table.regions()

    def claimed() -> None:
        table.claim(region)
        table.upsert([row(2, "claimed")])
        table.seal(region)
        fold_sealed(table)

    assert scrubbed(table, "objects", "get", "staged/", claimed, after=False).problems == ()


def fold_sealed(table: Table) -> None:
    table.flush()
    table.merge(engine="inprocess")
    table.collect(yes=True, interval_seconds=0)


@pytest.mark.parametrize("rounds", [1, 4])
def test_versions_that_are_removed_while_they_are_listed_are_listed_anew(
    table: Table, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    versions, left = lance.LanceDataset.versions, [rounds]

    def raced(dataset: lance.LanceDataset) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(f"Not found: manifest {left[0]} of {dataset.uri}")
        return versions(dataset)

    monkeypatch.setattr(lance.LanceDataset, "versions", raced)

    assert stored_versions(uri=table.uri)
    assert not left[0]
