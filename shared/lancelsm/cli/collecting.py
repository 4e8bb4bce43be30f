"""The command that deletes what nothing needs any more: `gc`."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated

import typer

from lancelsm.cli.arguments import Uri
from lancelsm.cli.session import Session, command

commands = typer.Typer()

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@command(commands, "gc", example="lancelsm gc orders --yes --interval 0s")
def gc(
    session: Session,
    uri: Uri,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without it, only say what would be deleted.")] = False,
    interval: Annotated[
        str | None,
        typer.Option(
            help="Between commit and deletion, for readers that began before; 0s deletes at once.",
            metavar="DURATION",
            show_default="the table's setting",
        ),
    ] = None,
) -> None:
    """Delete generations, log, manifests, orphans and versions of the base that nothing needs any more.

    Without --yes nothing is written. With it a round is committed, and deleted by the first call after the interval. As
    JSON: {"round": [its lists], "phase": "idle" | "marked" | "committed" | "swept", "candidates": [{"path", "kind",
    "bytes", "why"}], "kept": [{"path", "kind", "why"}], "deleted"}.
    """
    from lancelsm import documents
    from lancelsm.cli.session import console
    from lancelsm.cli.text import counted, listing
    from lancelsm.gc.collect import collect

    seconds = None if interval is None else _seconds(interval)
    opened = session.opened(uri)
    with session.working("Collecting"):
        done = collect(opened, yes=yes, interval_seconds=seconds)
    if not session.json:
        for found, columns in (
            (done.candidates, ("kind", "path", "bytes", "why")),
            (done.kept, ("kept", "path", "why")),
        ):
            if found:
                rows = [{**asdict(one), "kept": one.kind} for one in found]
                console().print(listing(rows, columns=columns))

    def text() -> str:
        found = counted(len(done.candidates), "candidate")
        if not yes:
            return f"{found}; nothing was deleted: use --yes"
        if done.phase == "committed":
            return f"{found} committed for deletion after the interval, {done.deleted:,} deleted"
        return f"{counted(done.deleted, 'object')} deleted"

    session.show(documents.collected(done), text)


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is no duration like 0s, 90s, 15m or 1h", param_hint="--interval")
    return float(match[1]) * _SECONDS[match[2]]
