"""The command `gc`: delete objects that are no longer needed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from lancelsm.cli.arguments import Uri
from lancelsm.cli.session import Session, command

commands = typer.Typer()


@command(commands, "gc", example="lancelsm gc orders --yes")
def gc(
    session: Session,
    uri: Uri,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it, only show what would be deleted.")] = False,
    interval: Annotated[
        str | None,
        typer.Option(
            help="Time between commit and deletion, for reads that began before the commit; 0s deletes at once.",
            metavar="DURATION",
            show_default="the table's setting",
        ),
    ] = None,
) -> None:
    """Delete generations, log entries, manifests, orphans and versions of the base that are no longer needed.

    Without --yes nothing is written. With --yes a round is committed; the first call after the interval deletes its
    objects. What a snapshot kept is deleted when the snapshot has been expired for `skew_allowance_seconds` (5 minutes
    by default), because clocks differ. What a dropped snapshot kept does not have to wait.

    As JSON: {"round": [keys of its lists], "phase": "idle" | "marked" | "committed" | "swept", "candidates": [{"path",
    "kind", "bytes", "why"}], "kept": [{"path", "kind", "why"}], "deleted"}.
    """
    from lancelsm.cli.session import console
    from lancelsm.cli.text import listing
    from lancelsm.common.duration import seconds_of
    from lancelsm.common.error_text import counted
    from lancelsm.gc.collect import collect
    from lancelsm.stack import documents

    seconds = None if interval is None else seconds_of(interval, field="interval")
    handle = session.handle(uri)
    with session.working("Collecting"):
        done = collect(handle, yes=yes, interval_seconds=seconds)
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
            waits = ": a round waits for the end of its interval" if done.phase == "committed" else ": use --yes"
            return f"{found}; nothing was deleted{waits if done.candidates else ''}"
        if done.phase == "committed":
            # Expired snapshots and cursors are not part of the round: they are removed already.
            rounds = [one for one in done.candidates if one.kind not in ("snapshot", "cursor")]
            found = counted(len(rounds), "candidate")
            return f"{found} committed for deletion after the interval, {done.deleted:,} deleted"
        return f"{counted(done.deleted, 'object')} deleted"

    session.show(documents.collected(done), text)
