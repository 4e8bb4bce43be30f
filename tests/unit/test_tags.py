"""Tags on versions of a base while others take theirs away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pytest

import lancelsm
from lancelsm.dataset.tags import tag_version, tags
from lancelsm.errors import Corrupt


def test_a_tag_that_is_taken_away_while_tags_are_listed_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lancelsm.create(tmp_path / "table", [{"id": 1}], primary_key="id")
    uri = str(tmp_path / "table")
    tag_version(uri=uri, version=1, tag="kept")
    kind = type(lance.dataset(uri).tags)
    listed, failures = kind.list, [ValueError("Not found: _refs/tags/gone.json")] * 3

    def torn(of: Any) -> Any:
        if failures:
            raise failures.pop()
        return listed(of)

    monkeypatch.setattr(kind, "list", torn)

    assert tags(uri=uri) == {"kept": 1}
    failures += [ValueError("Not found: _refs/tags/damaged.json")] * 100
    with pytest.raises(Corrupt):
        tags(uri=uri)
