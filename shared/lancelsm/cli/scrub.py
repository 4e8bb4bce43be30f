"""The command `scrub`: read everything and name what is damaged."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lancelsm.cli.arguments import Region, Uri
from lancelsm.cli.session import Session, command
from lancelsm.errors import Corrupt

if TYPE_CHECKING:
    from lancelsm.scrubbing.report import Report

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
            help="Read at most N objects, besides registry records and the manifests that they name.",
        ),
    ] = None,
) -> None:
    """Read every object of a table, compare it with the records that name it, and report what is damaged. Nothing is
    repaired.

    Files of the base that another tool added have no checksum until the next merge or gc has summed them: a value in
    them that changed into another valid value is not found.

    As JSON: {"ok", "checked", "complete", "unsummed", "problems": [{"path", "kind", "problem"}]}. `checked` is the
    number of objects and records that were read, `unsummed` the number of files without a checksum. `complete` is false
    if --limit left something unread; `ok` covers only what was read. Exit code 4 if something is damaged, otherwise 0.
    """
    import lancelsm
    from lancelsm.stack import documents

    with session.working("Reading"):
        report = lancelsm.scrub.on(session.ports)(
            uri, region=region, at=at, limit=limit, storage_options=session.storage_options
        )
    session.show(documents.scrubbed(report), lambda: _text(report))
    if not report.ok:
        raise typer.Exit(Corrupt.exit_code)


def _text(report: Report) -> Any:
    from rich.console import Group

    from lancelsm.cli.text import listing
    from lancelsm.common.error_text import counted

    summary = f"{report.checked:,} objects and records checked, {counted(len(report.problems), 'problem')}"
    if report.orphans:
        summary += f"; {counted(report.orphans, 'orphan')}, which a collection removes"
    if report.unsummed:
        summary += f"; {counted(report.unsummed, 'file')} of the base without a checksum yet: run gc"
    if not report.complete:
        summary += "; not everything was read: raise --limit"
    if report.ok:
        return summary
    return Group(listing([asdict(one) for one in report.problems], columns=("kind", "path", "problem")), "", summary)
