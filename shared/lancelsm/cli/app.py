"""All commands and their groups. Nothing here loads Arrow or Lance: help is there at once."""

from __future__ import annotations

from typing import Annotated

import typer

from lancelsm.cli import (
    changes,
    compaction,
    cost,
    doctor,
    gc,
    inspection,
    redrive,
    regions,
    rows,
    scrub,
    snapshots,
    tables,
)
from lancelsm.cli.session import OutputOption, StorageOptions, remember

app = typer.Typer(
    help="A log-structured merge tree in front of Lance tables: durable upserts in, consistent reads out.",
    epilog="Exit codes: 0 done, 1 invalid, 2 usage, 3 contended or fenced, 4 corrupt, 5 ambiguous, 6 unavailable, "
    "130 interrupted. LANCELSM_TRACEBACK=1 shows where an error came from.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:
    from importlib import metadata

    if asked:
        print(f"lancelsm {metadata.version('lancelsm')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    output: OutputOption = None,
    storage_option: StorageOptions = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    remember(context, output, storage_option)


for module in (
    tables,
    rows,
    changes,
    compaction,
    inspection,
    regions,
    snapshots,
    gc,
    scrub,
    redrive,
    cost,
    doctor,
):
    app.add_typer(module.commands)
for name, group, does in (
    ("inspect", inspection.group, "See what lies in storage, decoded."),
    ("region", regions.group, "See who holds each region; take, end or bring in regions by hand."),
    ("registry", regions.registry, "Repair the registry."),
    ("config", tables.config, "Change a table's settings."),
    ("snapshot", snapshots.group, "Keep a table as it was under a name; read, refresh, clone and drop it."),
    ("cursor", changes.group, "Named positions in the change stream; they keep what they have not passed."),
):
    group.callback()(remember)
    app.add_typer(group, name=name, help=does, no_args_is_help=True)
