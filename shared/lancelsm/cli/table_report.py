"""The command `report`: what is known about a table, as one HTML file that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lancelsm.cli.arguments import Uri
from lancelsm.cli.session import Session, command

if TYPE_CHECKING:
    from lancelsm.stack.table_report.report_facts import ReportFacts

commands = typer.Typer()


@command(commands, "report", example="lancelsm report orders --to orders.html")
def report(
    session: Session,
    uri: Uri,
    to: Annotated[
        str, typer.Option("--to", metavar="FILE", help="The file to write, replaced if it exists; - prints it.")
    ] = ("report.html"),
) -> None:
    """Write a report about a table: one HTML file with levels, lag, growth, merges, collections, costs and problems.

    The command lists every object of the table, and reads objects for up to ten seconds to check them. Damage is no
    error of this command: the report names it. As JSON: {"file", "table", "problems"}.
    """
    from pathlib import Path

    from lancelsm.common.error_text import counted
    from lancelsm.errors import Invalid
    from lancelsm.stack.table_report.page import page

    with session.working("Reading"):
        facts = _facts(session, uri)
    if to == "-":
        print(page(facts), end="")
        return
    try:
        Path(to).write_text(page(facts), encoding="utf-8")
    except OSError as error:
        raise Invalid(f"{to} can't be written: {error.strerror}", remedy="Give another file", file=to) from error
    problems = len(facts.findings)
    session.show(
        {"file": to, "table": facts.table, "problems": problems},
        lambda: f"Wrote {to}: {counted(problems, 'problem')}",
    )


def _facts(session: Session, uri: str) -> ReportFacts:
    from lancelsm.errors import Corrupt
    from lancelsm.region.handle import canonical, open_configured
    from lancelsm.stack.table_report.report_facts import gather, unreadable

    try:  # without a look at the base, which may be damaged
        handle = open_configured(
            uri, settings=session.settings, storage_options=session.storage_options, ports=session.ports
        )
    except Corrupt as error:
        return unreadable(canonical(uri), error, time=session.ports.clock.now())
    return gather(handle)
