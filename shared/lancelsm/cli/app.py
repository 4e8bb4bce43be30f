"""All commands and command groups. This module loads neither Arrow nor Lance, so help is printed fast."""

from __future__ import annotations

from typing import Annotated

import typer

from lancelsm.cli import (
    change_events,
    changes,
    compaction,
    cost,
    doctor,
    gc,
    indexes,
    inspection,
    redrive,
    regions,
    rows,
    schema_commands,
    scrub,
    search,
    snapshots,
    sql,
    table_report,
    tables,
)
from lancelsm.cli.help import AllCommands, Group
from lancelsm.cli.session import OutputOption, ProfileOption, StorageOptions, VerboseOption, remember

PANELS = {
    "Tables": "init list status describe history drop config schema reshard region index",
    "Rows": "write update delete get scan search sql apply tail cursor",
    "Snapshots and copies": "snapshot copy backup restore restore-point",
    "Maintenance": "run flush compact merge optimize gc",
    "Checks and repairs": "doctor scrub report inspect registry",
    "Deployments and demo": "cost redrive demo",
}
"""The parts of the help, and of the page of all commands. Each command is in one."""

_PANEL = {name: panel for panel, names in PANELS.items() for name in names.split()}

app = typer.Typer(
    cls=AllCommands,
    help="A log-structured merge tree in front of Lance tables: durable upserts in, consistent reads out.",
    epilog="Exit codes: 0 success, 1 invalid, 2 usage, 3 contended or fenced, 4 corrupt, 5 ambiguous, 6 unavailable, "
    "130 interrupted, 141 stdout closed. LANCELSM_TRACEBACK=1 prints the traceback of an error.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(requested: bool) -> None:
    from importlib import metadata

    if requested:
        print(f"lancelsm {metadata.version('lancelsm')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    output: OutputOption = None,
    storage_option: StorageOptions = None,
    profile: ProfileOption = None,
    verbose: VerboseOption = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    remember(context, output, storage_option, profile, verbose)


for module in (
    tables,
    rows,
    change_events,
    changes,
    compaction,
    inspection,
    regions,
    snapshots,
    gc,
    scrub,
    search,
    sql,
    redrive,
    table_report,
    cost,
    doctor,
):
    for found in module.commands.registered_commands:
        found.rich_help_panel = _PANEL[found.name or ""]
    app.add_typer(module.commands)
for name, group, summary in (
    ("inspect", inspection.group, "Show decoded objects of the storage."),
    ("index", indexes.group, "Create, list and drop indexes of a table."),
    ("schema", schema_commands.group, "Show and change the columns of a table."),
    ("region", regions.group, "List, claim, seal and adopt regions."),
    ("registry", regions.registry, "Repair the registry."),
    ("config", tables.config, "Show and change a table's settings."),
    ("snapshot", snapshots.group, "Create, list, refresh, clone and drop snapshots of a table."),
    ("cursor", changes.group, "List, set and drop cursors: named positions in the change stream."),
):
    group.callback()(remember)
    app.add_typer(group, cls=Group, name=name, help=summary, no_args_is_help=True, rich_help_panel=_PANEL[name])
