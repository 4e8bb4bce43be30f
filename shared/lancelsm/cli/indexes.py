"""The commands `index create|drop|list`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lancelsm.cli.arguments import Uri
from lancelsm.cli.session import Session, command, pairs
from lancelsm.common.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lancelsm.read.index_status import IndexStatus

group = typer.Typer()


@command(group, "create", example="lancelsm index create docs vec --kind IVF_PQ -o metric=cosine -o num_sub_vectors=16")
def create(
    session: Session,
    uri: Uri,
    column: Annotated[str, typer.Argument(metavar="COLUMN", help="The column to index.", show_default=False)],
    kind: Annotated[str, typer.Option(metavar="KIND", help="IVF_PQ, IVF_SQ, IVF_FLAT, IVF_HNSW_SQ, ... for vectors; "
                                      "INVERTED for text; BTREE, BITMAP, ... for conditions.")],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The name of the index; by default COLUMN_idx.",
                                             show_default=False)] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an index of this name.")] = False,
    option: Annotated[list[str] | None, typer.Option("-o", "--option", metavar="KEY=VALUE", help="An option of Lance "
                                                     "for this kind; repeatable.")] = None,
) -> None:  # fmt: skip
    """Create an index on the base. For vectors, INVERTED and BTREE, generations get one too, now and at each flush.

    After a crash, the same command with --replace, or `optimize`, finishes it. As JSON: {"name", "columns", "kind",
    "metric", "rows", "rows_without", "generations", "generations_without", "maintained", "segments", "trained_rows",
    "stalled"}.
    """
    options = index_options(pairs(option, option="--option"))
    table = session.open(uri)
    with session.working(f"Indexing {column}"):
        made = table.create_index(column, kind=kind, name=name, replace=replace, **options)
    session.show(asdict(made), lambda: f"Created {made.name}: {made.kind} on {', '.join(made.columns)}, {_state(made)}")


@command(group, "drop", example="lancelsm index drop docs --name vec_idx")
def drop(
    session: Session,
    uri: Uri,
    name: Annotated[str, typer.Option(metavar="NAME", help="The name of the index.")],
) -> None:
    """Drop an index. As JSON: {"dropped": name}."""
    table = session.open(uri)
    with session.working(f"Dropping {name}"):
        table.drop_index(name)
    session.show({"dropped": name}, lambda: f"Dropped {name}")


@command(group, "list", example="lancelsm index list docs")
def list_(session: Session, uri: Uri) -> None:
    """Show every index, and how many rows a search reads without it.

    As JSON: {"indexes": [like `index create`]}. `rows_without` counts rows of the base and of pending generations;
    `maintained` says whether Lance's own readers may rely on the index. `optimize` trains an index for vectors again
    once the base has twice `trained_rows`. `stalled`: Lance refuses some rows, so searches read these without it.
    """
    from lancelsm.cli.text import listing

    table = session.open(uri)
    with session.working("Reading"):
        found = [asdict(one) | {"columns": list(one.columns)} for one in table.list_indices()]

    def text() -> Any:
        shown = [{**one, "columns": ", ".join(one["columns"])} for one in found]
        columns = (
            "name",
            "columns",
            "kind",
            "metric",
            "rows",
            "rows_without",
            "generations",
            "maintained",
            "segments",
            "trained_rows",
        )
        return listing(shown, columns=columns)

    session.show({"indexes": found}, text if found else lambda: "No indexes")


def index_options(texts: Mapping[str, str]) -> dict[str, Any]:
    """Decode the values of options: numbers, true, false and null as JSON, all other text as it is."""
    return {name: _decoded(value) for name, value in texts.items()}


def _decoded(value: str) -> Any:
    try:
        return parse_json(value)
    except ValueError:
        return value


def _state(index: IndexStatus) -> str:
    from lancelsm.common.error_text import counted

    return f"{counted(index.rows, 'row')} of the base, {counted(index.rows_without, 'row')} without it"
