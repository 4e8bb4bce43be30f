"""The commands `flush`, `compact`, `merge`, `optimize`, `run` and `demo`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lancelsm.cli.arguments import Uri
from lancelsm.cli.inspection import resolve_regions
from lancelsm.cli.regions import region_document, show_regions
from lancelsm.cli.session import Session, command, console

if TYPE_CHECKING:
    from lancelsm.compaction.background import Ran
    from lancelsm.errors import LsmError
    from lancelsm.region.handle import TableHandle

commands = typer.Typer()


class Engine(StrEnum):
    AUTO = "auto"
    SPARK = "spark"
    INPROCESS = "inprocess"


@command(commands, "flush", example="lancelsm flush orders")
def flush(session: Session, uri: Uri) -> None:
    """Flush the log of every region into generations.

    As JSON: {"generations": [{"region", "generation", "rows", "path"}]}.
    """
    from lancelsm.cli.text import listing
    from lancelsm.compaction.maintenance import flush_table
    from lancelsm.stack import documents

    handle = session.handle(uri)
    with session.working("Flushing"):
        document = documents.flushed(flush_table(handle))
    written, columns = document["generations"], ("region", "generation", "rows", "path")
    session.show(document, lambda: listing(written, columns=columns) if written else "The logs were empty")


@command(commands, "compact", example="lancelsm compact orders")
def compact(session: Session, uri: Uri) -> None:
    """Replace the generations of each region that has more than max_generations by fewer ones, to keep reads fast.

    As JSON: {"generations": [{"region", "first_generation", "generation", "parts", "rows", "path"}]}.
    """
    from lancelsm.cli.text import listing
    from lancelsm.compaction.compact import compact_table
    from lancelsm.stack import documents

    handle = session.handle(uri)
    with session.working("Compacting"):
        document = documents.compacted(compact_table(handle))
    made, columns = document["generations"], ("region", "first_generation", "generation", "parts", "rows", "path")
    nothing = f"No region has more than {handle.settings.max_generations:,} generations to merge"
    session.show(document, lambda: listing(made, columns=columns) if made else nothing)


@command(commands, "merge", example="lancelsm merge orders --engine spark")
def merge(
    session: Session,
    uri: Uri,
    engine: Annotated[Engine, typer.Option(help="Where the merge runs; auto decides by size.")] = Engine.AUTO,
) -> None:
    """Merge all generations of all regions into the base, in one commit.

    As JSON: {"merged": [{"region", "generation"}], "rows_upserted", "rows_deleted", "base_version"}. `merged` has the
    newest generation that this run merged of each region; it is empty if there was nothing to merge.
    """
    from lancelsm.common.error_text import counted
    from lancelsm.compaction.maintenance import merge_table
    from lancelsm.stack import documents

    handle = session.handle(uri)
    with session.working("Merging"):
        merged = merge_table(handle, engine=engine.value)

    def text() -> str:
        if not merged.generations:
            return f"Nothing to merge: base version {merged.base_version} has all flushed rows"
        return (
            f"Merged {counted(merged.generations, 'generation')} of {counted(len(merged.merged_now), 'region')} into "
            f"base version {merged.base_version}: {counted(merged.rows_upserted, 'row')} upserted, "
            f"{merged.rows_deleted:,} deleted"
        )

    session.show(documents.merged(merged), text)


@command(commands, "optimize", example="lancelsm optimize orders")
def optimize(session: Session, uri: Uri) -> None:
    """Compact the fragments of the base if this is due, hide rows that have expired, and update the indexes.

    No file is deleted. As JSON: {"fragments_removed", "fragments_added", "indexes_extended", "base_version", "left",
    "rows_expired"}. `left` is true if more fragments are to be compacted.
    """
    from lancelsm.cli.text import facts
    from lancelsm.compaction.maintenance import optimize_table
    from lancelsm.stack import documents

    handle = session.handle(uri)
    with session.working("Optimizing"):
        done = documents.optimized(optimize_table(handle))
    session.show(done, lambda: facts(done))


@command(commands, "run", example="lancelsm run orders users --forever --serve 9090")
def run(
    session: Session,
    uris: Annotated[list[str], typer.Argument(metavar="URI", help="The tables: paths, or URLs of object stores.")],
    forever: Annotated[
        bool, typer.Option("--forever", help="Do what is due by each table's settings, and collect, until stopped.")
    ] = False,
    engine: Annotated[Engine, typer.Option(help="Where merges run; auto decides by size.")] = Engine.AUTO,
    serve: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="With --forever: answer /healthz and /metrics (Prometheus); host 127.0.0.1 unless it is given.",
        ),
    ] = None,
) -> None:
    """Flush and merge everything that is pending, and optimize; with --forever repeatedly do what is due, and collect.

    Several may run at once, on any machines; one of them collects. One that is killed leaves nothing to clean up. As
    JSON: like `region list`, with "generations" (flushed), "merged_generations", "merges", "compactions" (of the base)
    and "compacted_generations" (replaced by larger ones); for several tables {"tables": [...]}.

    --forever prints a line for each step, as JSON {"time", "table", "step", "seconds", ...}. SIGTERM and an interrupt
    let each table end its step, which may be a long merge; a second one ends the process at once. An error that needs a
    person ends the work on its table, and the process once no table is left. Without --forever, too, a table that fails
    leaves the others to be run.
    """
    if serve is not None and not forever:
        raise typer.BadParameter("needs --forever", param_hint="--serve")
    handles, failed = _opened(session, uris)
    if forever:
        _serve(session, handles, failed, engine=engine, address=serve)
    else:
        failed |= _run_once(session, handles, engine=engine, several=len(uris) > 1)
    if failed:
        from lancelsm.cli.text import printable

        first, *others = failed.values()
        for error in others:
            print(printable(f"{error.kind}: {error}"), file=sys.stderr)
        raise first


def _opened(session: Session, uris: Sequence[str]) -> tuple[list[TableHandle], dict[str, LsmError]]:
    """Open tables. Return those that open, and the errors of those that need a person."""
    from lancelsm.errors import Ambiguous, Contended, LsmError, Unavailable

    handles: dict[str, TableHandle] = {}
    failed: dict[str, LsmError] = {}
    for uri in uris:
        try:
            handle = session.handle(uri)
        except (Ambiguous, Contended, Unavailable):
            raise
        except LsmError as error:
            failed[uri] = error
            continue
        if handle.context.uri in handles:
            raise typer.BadParameter(f"{handle.context.uri} is named twice", param_hint="URI")
        handles[handle.context.uri] = handle
    if not handles:
        raise next(iter(failed.values()))
    return list(handles.values()), failed


def _run_once(
    session: Session, handles: Sequence[TableHandle], *, engine: Engine, several: bool
) -> dict[str, LsmError]:
    """Run each table and show what was done. Return the errors of the tables that failed."""
    from lancelsm.compaction.background import run as run_background
    from lancelsm.errors import LsmError

    ran: list[tuple[TableHandle, Ran]] = []
    failed: dict[str, LsmError] = {}
    for handle in handles:
        with session.working(f"Running {handle.context.uri}"):
            try:
                ran.append((handle, run_background(handle, engine=engine.value)))
            except LsmError as error:
                failed[handle.context.uri] = error
    _show_ran(session, ran, several=several)
    return failed


def _show_ran(session: Session, ran: Sequence[tuple[TableHandle, Ran]], *, several: bool) -> None:
    from lancelsm.common.error_text import counted

    documents = []
    for handle, done in ran:
        named = f"{handle.context.uri}: " if several else ""
        title = (
            f"{named}Flushed {counted(done.generations, 'generation')}, compacted {done.compacted_generations:,}, "
            f"merged {done.merged_generations:,} in {counted(done.merges, 'merge')}; compacted the base "
            f"{counted(done.compactions, 'time')}"
        )
        owned = [(one, one.head()) for one in resolve_regions(handle, None)]
        if not several or not session.json:
            show_regions(session, handle, owned, title=title, **asdict(done))
        else:
            documents.append({"table": handle.context.uri, **region_document(handle, owned), **asdict(done)})
    if documents:
        session.show({"tables": documents}, str)


def _serve(
    session: Session,
    handles: Sequence[TableHandle],
    failed: Mapping[str, LsmError],
    *,
    engine: Engine,
    address: str | None,
) -> None:
    """Serve tables. `failed` has the errors of tables that did not open: they are reported, and are not healthy."""
    import json
    import signal
    import threading
    from contextlib import ExitStack

    from lancelsm.cli.service import TableService, serve, stopped_by_signals
    from lancelsm.cli.service_event import Event, error_event
    from lancelsm.cli.service_metrics import Metrics, endpoints, parse_address
    from lancelsm.cli.service_spans import span_recorder
    from lancelsm.cli.streams import OutputClosed, OutputFailed
    from lancelsm.common.clock import SystemClock

    printing, record, stop = threading.Lock(), span_recorder(), threading.Event()
    unprinted: list[Exception] = []  # why stdout can't be written

    def report(event: Event) -> None:
        if record is not None:
            record(event)
        line = json.dumps(event.document(), ensure_ascii=False, default=str) if session.json else event.line()
        with printing:
            if not unprinted:
                try:
                    print(line, flush=True)
                except (OutputClosed, OutputFailed) as error:  # nobody could see what the service does from now on
                    unprinted.append(error)
                    stop.set()

    for uri, error in failed.items():
        report(error_event(uri, error, time=SystemClock().now()))
    broken = [
        {"table": uri, "ok": False, "last_round": None, "error": f"{error.kind}: {error.redacted}"}
        for uri, error in failed.items()
    ]
    metrics = None if address is None else Metrics()
    services = [
        TableService(handle, stop=stop, report=report, metrics=metrics, engine=engine.value) for handle in handles
    ]
    with ExitStack() as stack:
        if address is not None and metrics is not None:
            port = stack.enter_context(
                endpoints(parse_address(address), metrics, lambda: [*(one.health() for one in services), *broken])
            )
            print(f"Serving /healthz and /metrics on port {port}", file=sys.stderr, flush=True)
        received = stack.enter_context(stopped_by_signals(stop))
        serve(services, stop)
    for reason in unprinted:
        raise reason
    if signal.SIGINT in received:
        raise KeyboardInterrupt


@command(commands, "demo", example="lancelsm demo --dir /tmp/flights")
def demo(
    session: Session,
    directory: Annotated[
        str | None, typer.Option("--dir", metavar="D", help="The directory of the table; by default a new one.")
    ] = None,
    stage: Annotated[
        str | None, typer.Option("--stage", metavar="NAME", help="Use the functions of this deployment instead.")
    ] = None,
) -> None:
    """Run a year of real flights through the whole pipeline and check that nothing is lost.

    As JSON: {"table", "scheduled", "cancelled", "flown", "events", "rows_per_second", "entries", "generations",
    "merges"}; with --stage also "requests", "messages" and "usd", the cost on AWS.
    """
    from lancelsm.demo import deployed, embedded, year

    if directory is not None and stage is not None:
        raise typer.BadParameter("the table of a deployment is in its bucket", param_hint="--dir")
    progress = console(sys.stderr if session.json else sys.stdout)
    shown: year.Shown
    if stage is not None:
        shown = deployed.run_demo(stage=stage, console=progress)
    else:
        shown = embedded.run_demo(directory=None if directory is None else Path(directory), console=progress)
    if session.json:
        session.show(asdict(shown), str)
