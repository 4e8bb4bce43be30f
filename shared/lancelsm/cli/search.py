"""The command `search`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lancelsm.cli.arguments import At, Explain, Uri
from lancelsm.cli.session import Session, command, names
from lancelsm.common.json_text import parse_json

commands = typer.Typer()


@command(
    commands, "search", example="lancelsm search docs --text 'merge tree' --vector query.json --k 5 --columns id,title"
)
def search(  # noqa: PLR0917 - one for each option
    session: Session,
    uri: Uri,
    vector: Annotated[str | None, typer.Option(metavar="FILE|JSON", help="A JSON list of numbers, or a file with one; "
                                               "- is stdin.")] = None,
    text: Annotated[str | None, typer.Option(metavar="WORDS", help="Words, of which a row has at least one.")] = None,
    column: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column with the vectors, if several "
                                               "have.")] = None,
    text_columns: Annotated[str | None, typer.Option(metavar="A[,B]", help="The columns with the text; by default all "
                                                     "with a text index.")] = None,
    k: Annotated[int, typer.Option("--k", min=1, metavar="N", help="The number of rows.")] = 10,
    where: Annotated[str | None, typer.Option(metavar="SQL", help="Only rows that match; text in 'quotes', special "
                                              "column names in `backticks`.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="A[,B]", help="Columns, in this order; by default all and the "
                                                "scores.")] = None,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help="l2, cosine, dot or hamming; by default that of "
                                               "the index.")] = None,
    nprobes: Annotated[int | None, typer.Option(min=1, metavar="N", help="Partitions of the index to search.")] = None,
    refine_factor: Annotated[int | None, typer.Option(min=1, metavar="N", help="Compare N times k rows "
                                                      "exactly.")] = None,
    at: At = None,
    explain: Explain = False,
) -> None:  # fmt: skip
    """Find the best rows by vector, by text, or by both, as of now or as of a snapshot. Best row first.

    As JSON: like `scan`, with "_distance" for a vector, "_score" for text, and "_relevance_score" too for both. With
    --explain as `scan`.
    """
    from lancelsm.cli.output import show_rows

    table = session.open(uri, at=at)
    options: dict[str, Any] = {
        "vector": None if vector is None else _numbers(vector),
        "text": text,
        "column": column,
        "text_columns": names(text_columns),
        "k": k,
        "where": where,
        "columns": names(columns),
        "metric": metric,
        "nprobes": nprobes,
        "refine_factor": refine_factor,
    }
    if explain:
        session.explain(table.explain(**options))
        return
    with session.working("Searching"):
        rows = table.search(**options)
    show_rows(session, rows, capped=False)


def _numbers(given: str) -> Any:
    """Read a JSON list from the argument itself, a file, or stdin."""
    try:
        text = given if given.lstrip().startswith("[") else _read(given)
        found = parse_json(text)
    except (OSError, ValueError) as error:
        found = error
    if not isinstance(found, list):
        why = f" ({found})" if isinstance(found, ValueError) else ""
        raise typer.BadParameter(
            f"{given!r} is neither a list of numbers in JSON, such as [0.1, 0.2], nor a file with one{why}",
            param_hint="--vector",
        )
    return found


def _read(file: str) -> str:
    return typer.get_text_stream("stdin").read() if file == "-" else Path(file).read_text(encoding="utf-8")
