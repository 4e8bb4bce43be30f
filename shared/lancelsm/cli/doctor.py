"""`doctor`: check a table or a deployment and report what is wrong."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lancelsm.cli.session import Session, command

if TYPE_CHECKING:
    from lancelsm.stack.doctor import Check

commands = typer.Typer()
_FEW = 3


@command(commands, "doctor", example="lancelsm doctor --aws --smoke --stage prod")
def doctor(
    session: Session,
    uri: Annotated[str | None, typer.Argument(metavar="URI", help="The table to check.")] = None,
    aws: Annotated[bool, typer.Option("--aws", help="Check a deployment on AWS.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Also send a row through the deployment.")] = False,
    stage: Annotated[str, typer.Option(help="The stage of the deployment.")] = "dev",
) -> None:
    """Check a table, or with --aws a deployment. Report what is wrong and what to do; nothing is repaired.

    Of a deployment it checks credentials, regions, the clock, stacks, the bucket and its conditional writes, the
    registry, queues, functions and their settings, state machines and the Spark application. It uses your credentials
    and leaves one small object below work/doctor/, which expires. Of a table it checks the configuration, the newest
    version of the base, heads and backlog, cursors that nobody moves, and what other tools did to the table: LanceDB,
    or Lance itself. Only `lancelsm scrub` reads the objects that these name.

    With --smoke a row goes through the deployment: it is sent to the queue, read, flushed, merged and read again, in a
    table of its own below `lancelsm-smoke`, which your credentials create and drop.

    As JSON: {"ok", "checks": [{"name", "ok", "found", "remedy"}]}. Exit code 4 if another tool changed the table or it
    is damaged, 1 if something else is wrong.
    """
    from lancelsm.errors import Corrupt
    from lancelsm.stack.doctor import all_ok

    if uri is None and not aws:
        raise typer.BadParameter("give a table or --aws", param_hint="URI")
    if smoke and not aws:
        raise typer.BadParameter("a row goes through a deployment: give --aws too", param_hint="--smoke")
    foreign = False
    with session.working("Checking"):
        found = _deployment(stage) if aws else []
        if smoke:
            from lancelsm.demo.smoke import smoke_checks

            found += smoke_checks(stage)
        if uri is not None:
            from lancelsm.stack.doctor.table_checks import OTHER_TOOLS, table_checks

            found += table_checks(uri, storage_options=session.storage_options)
            foreign = any(
                not check.ok and (check.name == OTHER_TOOLS or check.found.startswith(Corrupt.kind)) for check in found
            )
    ok = all_ok(found)
    session.show({"ok": ok, "checks": [asdict(check) for check in found]}, lambda: _text(found, uri))
    if not ok:
        raise typer.Exit(Corrupt.exit_code if foreign else 1)


def _deployment(stage: str) -> list[Check]:
    from lancelsm.common import aws
    from lancelsm.common.clock import SystemClock, SystemIds
    from lancelsm.stack.doctor.checks import checks
    from lancelsm.stack.doctor.facts import fetch

    return checks(fetch(stage, service=aws.client, clock=SystemClock(), ids=SystemIds()))


def _text(found: list[Check], uri: str | None) -> Any:
    from rich.console import Group

    from lancelsm.cli.text import listing

    shown = [{"": "ok" if check.ok else "WRONG", "check": check.name, "found": check.found} for check in found]
    wrong: dict[str, list[str]] = {}  # by remedy, which a missing stack gives to many checks
    for check in found:
        if not check.ok:
            wrong.setdefault(check.remedy, []).append(check.name)
    remedies = [f"{_few(names)}: {remedy}" for remedy, names in wrong.items()]
    right = "All checks passed"
    last = remedies or [right if uri is None else f"{right}; to check all objects: lancelsm scrub {uri}"]
    return Group(listing(shown, columns=("", "check", "found")), "", *last)


def _few(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= _FEW else f"{names[0]} and {len(names) - 1} others"
