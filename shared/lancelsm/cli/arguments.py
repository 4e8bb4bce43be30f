"""Arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Uri = Annotated[str, typer.Argument(metavar="URI", help="The table: a path, or a URL of an object store.")]
Region = Annotated[
    str | None, typer.Option("--region", metavar="ID", help="Only this region: its id or the start of it; default all.")
]
Explain = Annotated[
    bool,
    typer.Option("--explain", help="Do the read, and print how it was done instead of its rows."),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="NAME|VERSION|TIME",
        help="Read a snapshot, a version of the base, or its version at a time with a zone; default the current state.",
    ),
]
Name = Annotated[str, typer.Option("--name", metavar="NAME", help="Up to 100 letters, digits, - and _.")]
