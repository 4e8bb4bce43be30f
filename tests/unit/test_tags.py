"""Set and remove tags on versions of a base while others remove them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest
from lance.dataset import LanceDataset, Tags

import lancelsm
from lancelsm.dataset.base_table import VersionGone
from lancelsm.dataset.cleanup import clean_versions
from lancelsm.dataset.tags import remove_tag, tag_version, tags
from lancelsm.errors import Corrupt, Invalid


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A base of two versions."""
    table = lancelsm.create(tmp_path / "table", [{"id": 1}], primary_key="id")
    assert lance.dataset(table.uri).latest_version == 2
    return table.uri


def before(patch: pytest.MonkeyPatch, method: str, act: Callable[[Any], Any]) -> None:
    """Let another process run `act` right before each call of a method of Lance's tags."""
    own = getattr(Tags, method)

    def late(lance_tags: Any, *args: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner_patch:
            inner_patch.setattr(Tags, method, own)
            act(lance_tags)
        return own(lance_tags, *args)

    patch.setattr(Tags, method, late)


def test_setting_and_removing_a_tag_is_idempotent_across_processes(uri, monkeypatch):
    remove_tag(uri=uri, tag="kept")
    before(
        monkeypatch,
        "create",
        lambda lance_tags: lance_tags.create("kept", 1) if "kept" not in lance_tags.list() else None,
    )
    before(monkeypatch, "delete", lambda lance_tags: lance_tags.delete("kept") if "kept" in lance_tags.list() else None)

    for _ in range(2):
        tag_version(uri=uri, version=1, tag="kept")
        assert tags(uri=uri) == {"kept": 1}
    with pytest.raises(Invalid, match="'kept' is on version 1"):
        tag_version(uri=uri, version=2, tag="kept")
    for _ in range(2):
        remove_tag(uri=uri, tag="kept")
        assert tags(uri=uri) == {}


def test_a_version_that_is_cleaned_up_before_its_tag_is_set_raises_version_gone(uri, monkeypatch):
    before(monkeypatch, "create", lambda _: clean_versions(uri=uri, versions=[1]))

    for _ in range(2):
        with pytest.raises(VersionGone):
            tag_version(uri=uri, version=1, tag="kept")
    assert tags(uri=uri) == {}


def test_setting_or_removing_a_tag_reads_no_other_tag(uri, monkeypatch):
    lance.dataset(uri).tags.create("damaged", 1)
    Path(uri, "_refs", "tags", "damaged.json").write_text("{")

    tag_version(uri=uri, version=1, tag="kept")
    remove_tag(uri=uri, tag="kept")
    tag_version(uri=uri, version=2, tag="kept")

    assert lance.dataset(uri).tags.get_version("kept") == 2
    remove_tag(uri=uri, tag="damaged")
    assert tags(uri=uri) == {"kept": 2}


def test_a_tag_that_cannot_be_removed_is_corrupt_and_not_taken_for_removed(uri, monkeypatch):
    tag_version(uri=uri, version=1, tag="kept")

    def fails(*_: Any) -> None:
        raise ValueError("Not found: _refs")

    monkeypatch.setattr(Tags, "delete", fails)
    with pytest.raises(Corrupt):
        remove_tag(uri=uri, tag="kept")


def test_tags_are_listed_again_if_one_is_removed_meanwhile(uri, monkeypatch):
    tag_version(uri=uri, version=1, tag="kept")
    listed, failures = Tags.list, [ValueError(f"Not found: _refs/tags/{number}.json") for number in range(3)]

    def torn(lance_tags: Any) -> Any:
        if failures:
            raise failures.pop()
        return listed(lance_tags)

    monkeypatch.setattr(Tags, "list", torn)

    assert tags(uri=uri) == {"kept": 1}
    failures += [ValueError("Not found: _refs/tags/damaged.json")] * 100
    with pytest.raises(Corrupt):
        tags(uri=uri)


def test_versions_are_removed_although_tags_are_removed_meanwhile(uri, monkeypatch):
    own, failures = LanceDataset.cleanup_old_versions, [OSError(f"Not found: _refs/tags/{n}.json") for n in range(3)]

    def torn(dataset: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return own(dataset, **options)

    monkeypatch.setattr(LanceDataset, "cleanup_old_versions", torn)

    assert clean_versions(uri=uri, versions=[1]) == 1
    failures += [OSError("Not found: _refs/tags/damaged.json")] * 100
    with pytest.raises(Corrupt, match="damaged"):
        clean_versions(uri=uri, versions=[1])
