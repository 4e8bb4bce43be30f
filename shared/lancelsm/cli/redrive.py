"""`redrive`: what was set aside, back into the log."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from lancelsm.cli.session import Session, command

commands = typer.Typer()


@command(commands, "redrive", example="lancelsm redrive --stage prod --yes")
def redrive(
    session: Session,
    stage: Annotated[
        str | None, typer.Option("--stage", metavar="NAME", help="Of the deployment whose dead letters are meant.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="URL", help="The dead-letter queue itself.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; else only say what would be done.")] = False,
) -> None:
    """Append rows again that were set aside because they did not fit, where nothing newer has their keys.

    A letter whose rows all have newer ones is dropped; one whose rows still don't fit, or of which the log can't tell
    any more what is newer, is left. Without --yes nothing is changed.

    As JSON: {"letters": [{"id", "table", "region", "rows", "verdict", "reason", "set_aside"}], "dry"}: the reason is of
    the verdict, `set_aside` says why the rows are here at all, if the letter does. An error on the way has the
    `dead_letters` of which it is known what became of them.
    """
    from lancelsm.common.clock import SystemClock
    from lancelsm.errors import LsmError
    from lancelsm.objects.open import open_store
    from lancelsm.region.handle import open_configured
    from lancelsm.stack.delivery.queue import SqsQueue, named
    from lancelsm.stack.delivery.redrive import Places, Redriven
    from lancelsm.stack.delivery.redrive import redrive as redrive_letters

    if (stage is None) == (queue is None):
        raise typer.BadParameter("give one of --stage and --queue", param_hint="--stage")
    clock = SystemClock()
    dead_letters = SqsQueue(queue, clock=clock) if queue else named(f"lancelsm-{stage}-dead-letters.fifo", clock=clock)
    places = Places(
        table=lambda uri: open_configured(uri, storage_options=session.storage_options),
        inbox=lambda uri: open_store(uri, session.storage_options),
    )
    done: list[Redriven] = []
    failure: LsmError | None = None
    try:
        done.extend(redrive_letters(dead_letters, places=places, dry=not yes))
    except LsmError as error:
        failure = error
    found: list[dict[str, Any]] = [asdict(one) | {"verdict": one.verdict.value} for one in done]

    def text() -> Any:
        from rich.console import Group

        from lancelsm.cli.text import listing

        if not found:
            return "There are no dead letters"
        shown = listing(found, columns=("id", "table", "region", "rows", "verdict", "reason", "set_aside"))
        return Group(shown) if yes else Group(shown, "Nothing was changed: this is what --yes would do")

    if failure is not None and session.json:
        failure.where |= {"letters": found}
    elif failure is None or found:
        session.show({"letters": found, "dry": not yes}, text)
    if failure is not None:
        raise failure
