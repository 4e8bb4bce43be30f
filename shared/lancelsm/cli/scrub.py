"""The command that reads everything and names what is wrong: `scrub`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lancelsm.cli.arguments import Region, Uri
from lancelsm.cli.session import Session, command
from lancelsm.errors import Corrupt

if TYPE_CHECKING:
    from lancelsm.scrub.report import Report

commands = typer.Typer()


@command(commands, "scrub", example="lancelsm scrub orders --limit 1000")
def scrub(
    session: Session,
    uri: Uri,
    region: Region = None,
    at: Annotated[str | None, typer.Option("--at", metavar="SNAPSHOT", help="Only what this snapshot needs.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            help="Read so many objects at most, beside the registry's records and the manifests that they name.",
        ),
    ] = None,
) -> None:
    """Read every object of a table, hold each against what names it, and say what is wrong. It repairs nothing.

    Data of the base has no sum to hold it against: a value there that changed into another one is not found.

    As JSON: {"ok", "checked", "complete", "problems": [{"path", "kind", "problem"}]}. `checked` counts what was read,
    objects and records; `ok` speaks of that alone: where --limit left something unread, `complete` is false, and `ok`
    is no word on the rest. Exit code 4 if something is wrong, 0 else.
    """
    from lancelsm.scrub.table import scrub_place
    from lancelsm.stack import documents

    with session.working("Reading"):
        report = scrub_place(uri, region=region, at=at, limit=limit, storage_options=session.storage_options)
    session.show(documents.scrubbed(report), lambda: _text(report))
    if not report.ok:
        raise typer.Exit(Corrupt.exit_code)


def _text(report: Report) -> Any:
    from rich.console import Group

    from lancelsm.cli.text import counted, listing

    said = f"{report.checked:,} objects and records checked, {counted(len(report.problems), 'problem')}"
    if report.orphans:
        said += f"; {counted(report.orphans, 'orphan')} that a collection removes"
    if not report.complete:
        said += "; not everything was read: raise --limit"
    if report.ok:
        return said
    return Group(listing([asdict(one) for one in report.problems], columns=("kind", "path", "problem")), "", said)
