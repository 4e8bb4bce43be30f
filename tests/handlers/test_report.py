"""The function `report` draws the tables of a deployment as a widget of CloudWatch: HTML, whatever is damaged."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lancelsm.common.layout import table_key
from lancelsm.errors import Invalid
from lancelsm.stack.table_report import panel as panels
from lancelsm.table import Table
from tests.handlers.conftest import ORDERS, Context, Deployment, load_function
from tests.simulation.faults import FakeClock
from tests.unit.counting import CountingRegistry

ENDPOINT = "arn:aws:lambda:us-east-1:111111111111:function:lancelsm-test-report:live"
# What CloudWatch sends beside the parameters of a widget.
WIDGET = {"dashboardName": "lancelsm-test", "widgetId": "widget-1", "theme": "dark", "width": 800, "params": {}}


@dataclass(frozen=True)
class Widget:
    """The function in a deployment with the tables `calm` and `late`, of which `late` has a row that waits."""

    module: Any
    late: Table

    def show(self, **parameters: Any) -> str:
        shown = self.module.handler({"widgetContext": WIDGET, **parameters}, Context())
        assert isinstance(shown, str)
        assert "<script" not in shown
        return shown


@pytest.fixture
def widget(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Widget:
    monkeypatch.setenv("LANCELSM_REGISTRY", "dynamodb:none")
    monkeypatch.setenv("LANCELSM_REPORT", ENDPOINT)
    module, registry = load_function("report"), CountingRegistry()
    for name in ("calm", "late"):
        table = deployment.table(name)
        registry.swap(table_key(table.config.table), expect=None, change={"uri": table.uri, "format": 1})
    table.upsert(ORDERS[:1])
    elsewhere = {"uri": "s3://of-others/tables/secret", "format": 1}
    registry.swap(table_key("0" * 8), expect=None, change=elsewhere)
    monkeypatch.setattr(module, "_registry", lambda: registry)
    return Widget(module, table)


def test_a_widget_lists_the_tables_and_shows_the_one_that_waits_the_longest(widget: Widget) -> None:
    shown = widget.show()

    assert re.findall(r'data-label="table"><div>(\w+)<', shown) == ["late", "calm"]
    assert "<h1>late</h1>" in shown
    assert "<h1>calm</h1>" not in shown
    for section in ("Levels", "Regions and their lag", "Growth of the base", "History of merges and collections"):
        assert f"<h2>{section}</h2>" in shown
    assert shown.count('<main class="lsm" data-theme="dark">') == 2
    assert "secret" not in shown
    assert re.findall(r'endpoint="([^"]+)">(.*?)</cwdb-action>', shown) == [
        (ENDPOINT, json.dumps({"table": widget.late.uri.replace("late", name)})) for name in ("late", "calm")
    ]


def test_a_click_shows_the_report_of_a_table(widget: Widget) -> None:
    assert "<h1>calm</h1>" in widget.show(table="calm")
    assert "<h1>late</h1>" in widget.show(table=widget.late.uri)


def test_a_report_lists_no_objects_and_changes_nothing(widget: Widget) -> None:
    root = Path(widget.late.uri).parent
    before = {file: file.stat().st_mtime_ns for file in root.rglob("*") if file.is_file() and "sqlite" not in file.name}
    shown = widget.show()

    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert "Storage and its cost" not in shown
    assert "The content of objects was not checked" in shown


def cut(file: Path) -> None:
    file.write_bytes(b"{")


@pytest.mark.parametrize(
    ("damage", "files"),
    [
        (cut, "_lancelsm/config.json"),
        (cut, "_versions/*.manifest"),
        (cut, "_mem_wal/*/manifest/staged/*"),
        (Path.unlink, "_lancelsm/config.json"),
    ],
)
def test_a_damaged_table_comes_first_and_hides_no_other(
    widget: Widget, damage: Callable[[Path], None], files: str
) -> None:
    calm = Path(widget.late.uri).with_name("calm")
    for file in calm.glob(files):
        damage(file)
    shown = widget.show()

    assert re.findall(r'data-label="table"><div>(\w+)<', shown) == ["calm", "late"]
    assert "<h1>calm</h1>" in shown
    for found in (shown, widget.show(table="calm")):
        assert '<li class="finding">' in found


@pytest.mark.rest
def test_a_widget_reads_tables_in_a_bucket_with_their_registry_in_dynamodb(
    cloud: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANCELSM_REPORT", ENDPOINT)
    table = cloud.table("shown")
    table.upsert(ORDERS[:3])
    shown = load_function("report").handler({"widgetContext": WIDGET}, Context())

    assert re.search(r'data-label="table"><div>shown<.*?rows in the base"><div>8<.*?rows to flush"><div>3<', shown)
    assert "<h1>shown</h1>" in shown


def test_a_table_of_others_is_refused(widget: Widget) -> None:
    with pytest.raises(Invalid, match="not in this deployment"):
        widget.show(table="s3://of-others/tables/secret")


def test_tables_are_read_at_the_same_time_and_those_of_a_late_start_are_named(
    widget: Widget, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, real, both = widget.module, widget.module._levels, threading.Barrier(2, timeout=60)

    def together(uri: str) -> Any:
        both.wait()
        return real(uri)

    monkeypatch.setattr(module, "_levels", together)
    assert "2 tables</p>" in widget.show()

    monkeypatch.setattr(module, "TABLES_AT_ONCE", 1)
    monkeypatch.setattr(module, "CLOCK", clock := FakeClock())

    def slow(uri: str) -> Any:
        clock.sleep(40)  # of 55 seconds
        return real(uri)

    monkeypatch.setattr(module, "_levels", slow)
    shown = widget.show()
    assert "1 table, and 1 more that are not shown: late</p>" in shown
    assert "<h1>calm</h1>" in shown

    monkeypatch.setattr(module, "MOST_TABLES", 0)
    monkeypatch.setattr(panels, "_MOST_LEFT", 1)
    assert "0 tables, and 2 more that are not shown: calm, ...</p>" in widget.show()


def test_a_deployment_without_tables_has_a_widget(widget: Widget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widget.module, "_registry", CountingRegistry)

    assert "0 tables" in widget.show()


def test_cloudwatch_gets_a_description(widget: Widget) -> None:
    assert "```yaml\ntable: orders\n" in widget.module.handler({"describe": True}, Context())
