"""Scrub while others work: what they merge, clean up, drop or create meanwhile is no problem and no error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest

import lancelsm.dataset.scrub_reads as reads
import lancelsm.scrubbing.base as base_scrub
from lancelsm.common.clock import Budget
from lancelsm.common.layout import Version, head_key, published_manifest, version_hint
from lancelsm.dataset.cleanup import clean_versions, stored_versions
from lancelsm.region import compare_and_swap
from lancelsm.region.catalog import Region
from lancelsm.region.handle import open_configured
from lancelsm.registry.object import object_key
from lancelsm.scrubbing.report import ObjectKind, Report
from lancelsm.scrubbing.table import scrub
from lancelsm.table import Table
from tests.unit.tables import create, row

pytestmark = pytest.mark.rest


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with rows at each level and a snapshot of an older version."""
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


def flush_merge_clean(table: Table, times: int = 1) -> None:
    """Flush, merge and collect everything, and remove all old versions of the base."""
    for number in range(times):
        table.upsert([row(number, "later")])
        table.flush()
        table.merge(engine="inprocess")
        table.collect(yes=True, interval_seconds=0)
        versions = [one.version for one in stored_versions(uri=table.uri)]
        clean_versions(uri=table.uri, versions=versions[:-1])


def drop(table: Table) -> None:
    table.drop_snapshot("before")
    flush_merge_clean(table)


def before(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, act: Callable[[], object], *, times: int) -> None:
    """Run `act` right before call number `times`."""
    wrapped, calls = getattr(module, name), [0]

    def acting(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == times:
            act()
        return wrapped(*args, **kwargs)

    monkeypatch.setattr(module, name, acting)


@pytest.mark.one_case
@pytest.mark.parametrize("act", [flush_merge_clean, drop])
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
def test_objects_that_are_swept_while_scrub_reads_them_are_no_problem(
    table: Table, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, times: int, act: Callable[[Table], None]
) -> None:
    acted: list[bool] = []
    before(monkeypatch, module, name, lambda: (acted.append(True), act(table)), times=times)

    report = table.scrub()

    assert acted
    assert report.problems == ()


@pytest.mark.rest
def test_region_and_base_are_read_again_until_they_are_consistent(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before(monkeypatch, base_scrub, "open_base", lambda: flush_merge_clean(table), times=1)
    before(monkeypatch, base_scrub, "mismatch", lambda: flush_merge_clean(table, 2), times=1)

    assert table.scrub().problems == ()


@pytest.mark.rest
def test_a_version_of_the_base_that_is_removed_between_listing_and_reading_is_no_problem(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, calls = lance.dataset, [0]

    def late(uri: str, version: int | None = None, **options: Any) -> Any:
        found = handle(uri, version=version, **options)
        if version is None and uri == table.uri:
            calls[0] += 1
            if calls[0] == 1:
                flush_merge_clean(table, 2)
                raise ValueError(f"Dataset at path {uri} was not found: Not found: version {found.version}")
        return found

    monkeypatch.setattr(lance, "dataset", late)

    assert table.scrub().problems == ()
    assert calls[0] > 1


class ActingPort:
    """A port that runs `act` once, before or after a call of `method` whose argument contains `about`."""

    def __init__(self, inner: Any, method: str, about: str, act: Callable[[], object], *, after: bool) -> None:
        self._inner, self._method, self._about, self._act, self._after = inner, method, about, act, after
        self.done = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._acting(found) if name == self._method else found

    def _acting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def acting(first: Any, *args: Any, **kwargs: Any) -> Any:
            now = not self.done and self._about in str(first)
            self.done |= now
            if now and not self._after:
                self._act()
            answer = call(first, *args, **kwargs)
            if now and self._after:
                self._act()
            return answer

        return acting


def scrub_with(table: Table, port: str, *act: Any, after: bool) -> Report:
    handle = open_configured(table.uri)
    acting = ActingPort(getattr(handle.context, port), *act, after=after)
    report = scrub(replace(handle, context=replace(handle.context, parallel=1, **{port: acting})))
    assert acting.done
    return report


def test_a_published_manifest_that_is_swept_after_the_hint_was_raised_is_no_problem(table: Table) -> None:
    (region,) = table.list_regions()
    objects, key = region.context.objects, version_hint(region.id)
    newest = region.head().manifest_version
    hint = objects.get(key)
    assert hint is not None

    def publish() -> None:
        (Path(table.uri) / key).write_bytes(hint.body)
        objects.delete([published_manifest(region.id, Version(newest - 1))])

    stale = hint.body.replace(str(newest).encode(), str(newest - 1).encode())
    assert stale != hint.body
    (Path(table.uri) / key).write_bytes(stale)

    assert scrub_with(table, "objects", "get", "version_hint", publish, after=True).problems == ()


@pytest.mark.rest
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
    (region,) = table.list_regions()
    with monkeypatch.context() as patch:
        patch.setattr(compare_and_swap, "publish", lambda *_, **__: None)
        table.flush()
    left = published_manifest(region.id, region.head().manifest_version)
    assert region.context.objects.get(left) is None
    assert table.scrub().problems == ()

    table.upsert([row(1)])
    table.flush()

    assert region.context.objects.get(left) is not None
    assert table.scrub().problems == ()


def test_a_missing_published_manifest_is_a_problem(table: Table) -> None:
    (region,) = table.list_regions()
    newest = published_manifest(region.id, region.head().manifest_version)
    region.context.objects.delete([newest])

    assert [(one.path, one.kind) for one in table.scrub().problems] == [(newest, ObjectKind.PUBLISHED)]


def test_a_hint_that_a_crash_left_unwritten_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(compare_and_swap, "_raise_hint", lambda *_: None)
        table = create(tmp_path)
        table.upsert([row(1)])
        table.flush()
    (region,) = table.list_regions()
    assert region.context.objects.get(version_hint(region.id)) is None
    assert table.scrub().problems == ()

    region.context.objects.delete([published_manifest(region.id, Version(1))])

    assert {one.kind for one in table.scrub().problems} == {ObjectKind.HINT}


def test_a_region_that_is_created_and_written_while_its_head_is_read_is_no_problem(tmp_path: Path) -> None:
    table = create(tmp_path, registry="object")
    table.upsert([row(1)])
    (region,) = table.list_regions()
    head = Path(table.uri) / object_key(head_key(region.context.table, region.id))
    hidden = head.rename(head.with_name("hidden"))

    report = scrub_with(table, "objects", "list", region.id, lambda: hidden.rename(head), after=False)

    assert report.problems == ()


@pytest.mark.rest
@pytest.mark.parametrize("kind", ["snapshot", "cursor"])
def test_a_pin_that_is_dropped_while_its_regions_are_read_is_no_problem(table: Table, kind: str) -> None:
    table.set_cursor("mine")

    def drop_pin() -> None:
        (table.drop_snapshot if kind == "snapshot" else table.drop_cursor)("before" if kind == "snapshot" else "mine")
        flush_merge_clean(table)

    listed = "S#" if kind == "snapshot" else "C#"
    assert scrub_with(table, "registry", "list", listed, drop_pin, after=True).problems == ()


def test_a_region_that_is_claimed_and_sealed_while_scrub_reads_it_is_no_problem(table: Table) -> None:
    (region,) = table.list_regions()

    def claim_and_seal() -> None:
        table.claim(region)
        table.upsert([row(2, "claimed")])
        table.seal(region)
        flush_merge_collect(table)

    assert scrub_with(table, "objects", "get", "staged/", claim_and_seal, after=False).problems == ()


def flush_merge_collect(table: Table) -> None:
    table.flush()
    table.merge(engine="inprocess")
    table.collect(yes=True, interval_seconds=0)


@pytest.mark.parametrize("rounds", [1, 4])
def test_versions_are_listed_again_if_some_are_removed_meanwhile(
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
