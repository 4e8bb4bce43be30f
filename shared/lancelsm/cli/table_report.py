"""The command `report`: what is known about a table, as one HTML file that needs nothing else."""

from __future__ import annotations

from typing import Annotated

import typer

from lancelsm.cli.arguments import Uri
from lancelsm.cli.session import Session, command

commands = typer.Typer()


@command(commands, "report", example="lancelsm report orders --to orders.html")
def report(
    session: Session,
    uri: Uri,
    to: Annotated[str, typer.Option("--to", metavar="FILE", help="The file to write; replaced if it exists.")] = (
        "report.html"
    ),
) -> None:
    """Write a report about a table: one HTML file with levels, lag, growth, merges, collections, costs and problems.

    The command lists every object of the table, and reads no rows. As JSON: {"file", "table", "problems"}.
    """
    from pathlib import Path

    from lancelsm.cli.table_report_facts import gather
    from lancelsm.cli.table_report_page import page
    from lancelsm.cli.text import counted
    from lancelsm.errors import Invalid

    handle = session.handle(uri)
    with session.working("Reading"):
        facts = gather(handle)
    try:
        Path(to).write_text(page(facts), encoding="utf-8")
    except OSError as error:
        raise Invalid(f"{to} can't be written: {error.strerror}", remedy="Give another file", file=to) from error
    problems = len(facts.status.problems)
    session.show(
        {"file": to, "table": handle.context.uri, "problems": problems},
        lambda: f"Wrote {to}: {counted(problems, 'problem')}",
    )
