"""Tags on versions of a base while others take theirs away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pytest
from lance.dataset import Tags

import lancelsm
from lancelsm.dataset.base_table import VersionGone
from lancelsm.dataset.cleanup import clean_versions
from lancelsm.dataset.tags import remove_tag, tag_version, tags
from lancelsm.errors import Corrupt, Invalid

KIND = Tags


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A base of two versions."""
    table = lancelsm.create(tmp_path / "table", [{"id": 1}], primary_key="id")
    assert lance.dataset(table.uri).latest_version == 2
    return table.uri


def before(patch: pytest.MonkeyPatch, method: str, act: Callable[[Any], Any]) -> None:
    """Whenever Lance begins with it, another process has done this."""
    own = getattr(KIND, method)

    def late(of: Any, *arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() as alone:
            alone.setattr(KIND, method, own)
            act(of)
        return own(of, *arguments)

    patch.setattr(KIND, method, late)


def test_a_tag_is_set_and_removed_once_however_often_and_by_how_many(uri, monkeypatch):
    remove_tag(uri=uri, tag="kept")
    before(monkeypatch, "create", lambda of: of.create("kept", 1) if "kept" not in of.list() else None)
    before(monkeypatch, "delete", lambda of: of.delete("kept") if "kept" in of.list() else None)

    for _ in range(2):
        tag_version(uri=uri, version=1, tag="kept")
        assert tags(uri=uri) == {"kept": 1}
    with pytest.raises(Invalid, match="'kept' is on version 1"):
        tag_version(uri=uri, version=2, tag="kept")
    for _ in range(2):
        remove_tag(uri=uri, tag="kept")
        assert tags(uri=uri) == {}


def test_a_version_that_is_cleaned_up_before_its_tag_is_set_is_gone_and_no_damage(uri, monkeypatch):
    before(monkeypatch, "create", lambda _: clean_versions(uri=uri, versions=[1]))

    for _ in range(2):
        with pytest.raises(VersionGone):
            tag_version(uri=uri, version=1, tag="kept")
    assert tags(uri=uri) == {}


def test_no_other_tag_is_read_to_set_or_remove_one(uri, monkeypatch):
    lance.dataset(uri).tags.create("damaged", 1)
    Path(uri, "_refs", "tags", "damaged.json").write_text("{")

    tag_version(uri=uri, version=1, tag="kept")
    remove_tag(uri=uri, tag="kept")
    tag_version(uri=uri, version=2, tag="kept")

    assert lance.dataset(uri).tags.get_version("kept") == 2
    remove_tag(uri=uri, tag="damaged")
    assert tags(uri=uri) == {"kept": 2}


def test_a_tag_that_can_t_be_removed_and_is_there_is_no_tag_that_is_gone(uri, monkeypatch):
    tag_version(uri=uri, version=1, tag="kept")

    def fails(*_: Any) -> None:
        raise ValueError("Not found: _refs")

    monkeypatch.setattr(KIND, "delete", fails)
    with pytest.raises(Corrupt):
        remove_tag(uri=uri, tag="kept")


def test_a_tag_that_is_taken_away_while_tags_are_listed_is_no_damage(uri, monkeypatch):
    tag_version(uri=uri, version=1, tag="kept")
    listed, failures = KIND.list, [ValueError("Not found: _refs/tags/gone.json")] * 3

    def torn(of: Any) -> Any:
        if failures:
            raise failures.pop()
        return listed(of)

    monkeypatch.setattr(KIND, "list", torn)

    assert tags(uri=uri) == {"kept": 1}
    failures += [ValueError("Not found: _refs/tags/damaged.json")] * 100
    with pytest.raises(Corrupt):
        tags(uri=uri)
