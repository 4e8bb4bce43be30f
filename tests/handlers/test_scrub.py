"""The function `scrub` returns the problems that it finds and raises no error for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lancelsm.errors import Invalid
from lancelsm.stack import documents
from tests.handlers.conftest import ORDERS, Context, Deployment, load_function


def test_problems_are_returned_and_not_raised(deployment: Deployment) -> None:
    table = deployment.table()
    table.upsert(ORDERS)
    handler = load_function("scrub").handler
    assert handler({"table": table.uri}, Context()) == documents.scrubbed(table.scrub())
    entry = sorted((Path(table.uri) / "_mem_wal").glob("*/wal/*.arrow"))[0]
    entry.write_bytes(entry.read_bytes()[:-9])

    answer = handler({"table": table.uri}, Context())

    assert answer["ok"] is False
    assert [problem["path"] for problem in answer["problems"]] == [entry.relative_to(table.uri).as_posix()]
    intact = next(region.id for region in table.regions() if region.id != entry.parts[-3])
    assert handler({"table": table.uri, "region": intact, "limit": 100}, Context())["ok"] is True


def test_an_unknown_snapshot_is_refused(deployment: Deployment) -> None:
    table = deployment.table()

    with pytest.raises(Invalid) as raised:
        load_function("scrub").handler({"table": table.uri, "at": "never"}, Context())

    assert json.loads(str(raised.value))["error"]["snapshot"] == "never"
