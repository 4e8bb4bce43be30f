"""`lancelsm redrive` reports the results of dead letters even if the queue fails later."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lancelsm.errors import Unavailable
from lancelsm.stack.delivery import redrive
from lancelsm.stack.delivery.redrive import Redriven, Verdict
from tests.cli.console import Run


@pytest.fixture
def failing_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue fails after the first dead letter."""

    def walk(*_: object, **__: object) -> Iterator[Redriven]:
        known = {"table": "s3://lake/orders", "region": "r", "quarantine_reason": "column v is null"}
        yield Redriven(id="7d6f1c0a", rows=3, verdict=Verdict.APPENDED, reason="", **known)
        raise Unavailable("the queue gave no answer")

    monkeypatch.setattr(redrive, "redrive", walk)


@pytest.mark.usefixtures("failing_queue")
def test_dead_letters_appended_before_an_error_are_printed(run: Run) -> None:
    done = run("redrive", "--queue", "queue", "--yes")

    assert done.code == Unavailable.exit_code
    assert "7d6f1c0a" in done.out
    assert "appended" in done.out
    assert "column v is null" in done.out
    assert "the queue gave no answer" in done.err


@pytest.mark.usefixtures("failing_queue")
def test_an_error_in_json_contains_the_dead_letters_appended_before_it(run: Run) -> None:
    done = run("redrive", "--queue", "queue", "--yes", "--output", "json")

    assert done.code == Unavailable.exit_code
    error = done.document["error"]
    assert (error["kind"], [one["verdict"] for one in error["dead_letters"]]) == ("Unavailable", ["appended"])
