"""`cost`: what a deployment costs, by AWS's list."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lancelsm.cli.session import Session, command

if TYPE_CHECKING:
    from lancelsm.stack.cost import CostItem

commands = typer.Typer()


class PathChoice(StrEnum):
    DIRECT = "direct"
    QUEUE = "queue"


class StageChoice(StrEnum):
    DEV = "dev"
    PROD = "prod"


@command(commands, "cost", example="lancelsm cost --rows-per-second 1000 --row-bytes 1000 --path queue")
def cost(
    session: Session,
    rows_per_second: Annotated[
        float | None, typer.Option(help="Rows of a steady stream into one region; give it, or --at-rest.")
    ] = None,
    row_bytes: Annotated[int, typer.Option(help="Bytes of a row.")] = 1000,
    batch: Annotated[int, typer.Option(help="Rows of one request.")] = 1000,
    path: Annotated[PathChoice, typer.Option(help="Straight to the writer, or by the queue.")] = PathChoice.DIRECT,
    stage: Annotated[StageChoice, typer.Option(help="What the stack at rest holds.")] = StageChoice.PROD,
    at_rest: Annotated[
        bool, typer.Option("--at-rest", help="Only what it costs when nothing is written, instead.")
    ] = False,
) -> None:
    """Show what a deployment costs a month, item by item: by AWS's list in us-east-1, nothing that is free taken off.

    As JSON: {"region", "prices_of", "items": [{"part", "what", "quantity", "unit", "usd", "price", "price_usd"}],
    "usd_a_month", "usd_a_million_rows": {"acknowledged", "folded", "collected"}, "usd_to_store": one month's rows}; the
    last two only with --rows-per-second. Quantities and US dollars are of a month. `acknowledged` is what a million
    rows cost until they are durable and readable, `folded` until they are in the base, `collected` until log and
    generations of them are deleted.
    """
    from lancelsm.common.settings import Settings
    from lancelsm.stack.cost import at_rest as resting
    from lancelsm.stack.cost import per_row, prices, total

    rest = resting.resting(resting.AT_REST[stage.value])
    document: dict[str, Any] = {"region": prices.REGION, "prices_of": prices.CHECKED}
    if at_rest or rows_per_second is None:
        if not at_rest:
            raise typer.BadParameter("give it, or --at-rest", param_hint="--rows-per-second")
        items = rest
    else:
        work = per_row.Workload(rows_per_second=rows_per_second, row_bytes=row_bytes, batch=batch, path=path.value)
        moved = per_row.running(work, Settings())
        document["usd_a_million_rows"] = per_row.a_million_rows(work, moved)
        document["usd_to_store"] = per_row.stored(work).usd
        items = [*moved, *rest]
    document |= {"items": [_line(item) for item in items], "usd_a_month": total(items)}
    session.show(document, lambda: _text(document))


def _line(item: CostItem) -> dict[str, Any]:
    price = item.price
    known = {"price": price.name, "price_usd": price.usd, "price_compared": price.compared}
    return {
        "part": item.part,
        "what": item.what,
        "quantity": round(item.quantity, 3),
        "unit": price.unit,
        "usd": item.usd,
        **known,
    }


def _text(document: dict[str, Any]) -> Any:
    from rich.console import Group

    from lancelsm.cli.text import listing

    shown = [
        {
            **line,
            "quantity": f"{line['quantity']:,.0f}" if line["quantity"] >= 10 else f"{line['quantity']:.3g}",
            "usd": f"{line['usd']:.2f}" if line["usd"] >= 0.01 else f"{line['usd']:.5f}",
            "price": line["price"] + ("" if line["price_compared"] else " *"),
            "price_usd": f"{line['price_usd']:.4g}",
        }
        for line in document["items"]
    ]
    last = [f"${document['usd_a_month']:.2f} a month"]
    if rows := document.get("usd_a_million_rows"):
        last += [
            f"${rows['acknowledged']:.4f} a million rows to acknowledge them, ${rows['folded']:.4f} to fold them too",
            f"${rows['collected']:.4f} to collect what that leaves too",
            f"${document['usd_to_store']:.2f} a month to store what one month writes, if no row replaces another",
        ]
    last.append(f"List prices of {document['region']}, {document['prices_of']}; * not compared on that day")
    columns = ("part", "what", "quantity", "unit", "usd", "price_usd", "price")
    return Group(listing(shown, columns=columns), "", *last)
