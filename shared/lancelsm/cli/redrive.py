"""`redrive`: append quarantined rows to the log again."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from lancelsm.cli.session import Session, command

commands = typer.Typer()


@command(commands, "redrive", example="lancelsm redrive --stage prod --yes")
def redrive(
    session: Session,
    stage: Annotated[str | None, typer.Option("--stage", metavar="NAME", help="The stage of the deployment.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="URL", help="The dead-letter queue's URL.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Redrive; without it, only show what would be done.")] = False,
) -> None:
    """Append rows from the dead-letter queue to the log again, unless newer rows have their keys.

    A dead letter whose rows all have newer rows is dropped. A dead letter stays in the queue if its rows still don't
    fit, or if the log was collected so far that newer rows can't be ruled out. Without --yes nothing is changed.

    As JSON: {"dead_letters": [{"id", "table", "region", "rows", "verdict", "reason", "quarantine_reason"}], "dry_run"}.
    `reason` explains the verdict; `quarantine_reason` is why the rows were quarantined, if the dead letter says so. An
    error on the way has `dead_letters` too: those whose outcome is known.
    """
    from lancelsm.common.clock import SystemClock
    from lancelsm.errors import LsmError
    from lancelsm.objects.open import open_store
    from lancelsm.region.handle import open_configured
    from lancelsm.stack.delivery.queue import SqsQueue, queue_by_name
    from lancelsm.stack.delivery.redrive import Openers, Redriven
    from lancelsm.stack.delivery.redrive import redrive as redrive_queue

    if (stage is None) == (queue is None):
        raise typer.BadParameter("give either --stage or --queue", param_hint="--stage")
    clock = SystemClock()
    dead_letters = (
        SqsQueue(queue, clock=clock) if queue else queue_by_name(f"lancelsm-{stage}-dead-letters.fifo", clock=clock)
    )
    openers = Openers(
        table=lambda uri: open_configured(uri, storage_options=session.storage_options),
        inbox=lambda uri: open_store(uri, session.storage_options),
    )
    done: list[Redriven] = []
    failure: LsmError | None = None
    try:
        with session.working("Redriving" if yes else "Reading"):
            done.extend(redrive_queue(dead_letters, openers=openers, dry=not yes))
    except LsmError as error:
        failure = error
    found: list[dict[str, Any]] = [asdict(one) | {"verdict": one.verdict.value} for one in done]

    def text() -> Any:
        from rich.console import Group

        from lancelsm.cli.text import listing

        if not found:
            return "No dead letters"
        shown = listing(found, columns=("id", "table", "region", "rows", "verdict", "reason", "quarantine_reason"))
        return Group(shown) if yes else Group(shown, "Nothing was changed; --yes does this")

    if failure is not None and session.json:
        failure.where |= {"dead_letters": found}
    elif failure is None or found:
        session.show({"dead_letters": found, "dry_run": not yes}, text)
    if failure is not None:
        raise failure
