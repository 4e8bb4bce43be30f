"""The function that scrubs: what it finds is its answer, and no error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lancelsm.errors import Invalid
from lancelsm.stack import documents
from tests.handlers.conftest import ORDERS, Context, Deployment, loaded


def test_what_is_wrong_is_an_answer(deployment: Deployment) -> None:
    table = deployment.table()
    table.upsert(ORDERS)
    handler = loaded("scrub").handler
    assert handler({"table": table.uri}, Context()) == documents.scrubbed(table.scrub())
    entry = sorted((Path(table.uri) / "_mem_wal").glob("*/wal/*.arrow"))[0]
    entry.write_bytes(entry.read_bytes()[:-9])

    answer = handler({"table": table.uri}, Context())

    assert answer["ok"] is False
    assert [problem["path"] for problem in answer["problems"]] == [entry.relative_to(table.uri).as_posix()]
    whole = next(region.id for region in table.regions() if region.id != entry.parts[-3])
    assert handler({"table": table.uri, "region": whole, "limit": 100}, Context())["ok"] is True


def test_a_snapshot_that_is_not_there_is_refused(deployment: Deployment) -> None:
    table = deployment.table()

    with pytest.raises(Invalid) as failure:
        loaded("scrub").handler({"table": table.uri, "at": "never"}, Context())

    assert json.loads(str(failure.value))["error"]["snapshot"] == "never"
