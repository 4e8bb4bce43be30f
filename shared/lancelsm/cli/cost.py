"""`cost`: the cost of a deployment by AWS list prices."""

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


@command(commands, "cost", example="lancelsm cost --rows-per-second 1000 --row-bytes 1000 --path queue")
def cost(
    session: Session,
    *,
    rows_per_second: Annotated[
        float | None, typer.Option(help="Rows per second into one region; needed unless --at-rest is given.")
    ] = None,
    row_bytes: Annotated[int, typer.Option(help="Bytes per row.")] = 1000,
    batch: Annotated[int, typer.Option(help="Rows per request.")] = 1000,
    path: Annotated[PathChoice, typer.Option(help="Write directly, or through the queue.")] = PathChoice.DIRECT,
    stage: Annotated[
        str, typer.Option(help="The stage. Without --from-metrics, one other than prod counts as dev.")
    ] = "prod",
    table_metrics: Annotated[
        bool, typer.Option("--table-metrics", help="Count metrics of the table too: -c table_metrics=true.")
    ] = False,
    at_rest: Annotated[
        bool, typer.Option("--at-rest", help="Show only the cost of a deployment to which nothing is written.")
    ] = False,
    from_metrics: Annotated[
        bool, typer.Option("--from-metrics", help="Compare the estimate with what the stage has counted.")
    ] = False,
    days: Annotated[int, typer.Option(help="With --from-metrics: the last days to count.", min=1, max=455)] = 7,
) -> None:
    """Show the monthly cost of a deployment, item by item, by AWS list prices in us-east-1 without any free tier.

    As JSON: {"region", "prices_checked", "presets", "items": [{"part", "item", "quantity", "unit", "usd", "price",
    "price_usd", "price_checked"}], "usd_per_month", "usd_per_million_rows": {"acknowledged", "merged", "collected"},
    "usd_to_store": one month's rows}. The last two need --rows-per-second. `presets` is the stage whose resources are
    counted. Quantities and US dollars are per month. `acknowledged` is the cost of a million rows until they are
    durable and readable, `merged` until they are in the base, `collected` until their log entries and generations are
    deleted. `price_checked` is false for a price that was not compared on the day of `prices_checked`.

    With --from-metrics it reads metrics of the functions, of DynamoDB and of S3, and compares a month at that rate with
    the estimate for the same rows. As JSON: {"counted", "estimated": {"requests", "rows", "writes", "flushes",
    "generations", "merges", "record_reads", "record_writes", "object_writes", "object_reads"}, "counted_usd",
    "estimated_usd"}. The counted numbers of objects are null unless S3 counts requests: -c request_metrics=true.
    """
    from lancelsm.common.settings import Settings
    from lancelsm.stack.cost import at_rest as at_rest_cost
    from lancelsm.stack.cost import per_row, prices, total

    if from_metrics:
        _compare(session, stage, days=days, row_bytes=row_bytes)
        return
    presets = at_rest_cost.presets_of(stage)
    rest = at_rest_cost.bill_at_rest(at_rest_cost.AT_REST[presets])
    document: dict[str, Any] = {"region": prices.REGION, "prices_checked": prices.CHECKED, "presets": presets}
    if at_rest or rows_per_second is None:
        if not at_rest:
            raise typer.BadParameter("give this option or --at-rest", param_hint="--rows-per-second")
        items = rest
    else:
        work = per_row.Workload(
            rows_per_second=rows_per_second,
            row_bytes=row_bytes,
            batch=batch,
            path=path.value,
            table_metrics=table_metrics,
        )
        moved = per_row.monthly_bill(work, Settings())
        document["usd_per_million_rows"] = per_row.usd_per_million_rows(work, moved)
        document["usd_to_store"] = per_row.storage(work).usd
        items = [*moved, *rest]
    document |= {"items": [_line(item) for item in items], "usd_per_month": total(items)}
    session.show(document, lambda: _text(document))


def _compare(session: Session, stage: str, *, days: int, row_bytes: int) -> None:
    from dataclasses import asdict

    from lancelsm.client.large_payloads import outputs
    from lancelsm.common import aws
    from lancelsm.common.clock import SystemClock
    from lancelsm.common.settings import Settings
    from lancelsm.stack.cost.from_metrics import compare, read_counts

    seconds = days * 86_400.0
    found = outputs(f"lancelsm-{stage}-pipeline", service=aws.client)
    counts = read_counts(
        stage,
        found["RegistryName"].removeprefix("dynamodb:").rpartition("/")[2],
        found["Bucket"],
        seconds=seconds,
        now=SystemClock().now(),
        client=aws.client("cloudwatch"),
    )
    document = asdict(compare(counts, seconds=seconds, row_bytes=row_bytes, settings=Settings()))
    session.show(document, lambda: _compared(document))


def _compared(document: dict[str, Any]) -> Any:
    from rich.console import Group

    from lancelsm.cli.text import listing
    from lancelsm.stack.cost.from_metrics import SWITCH_ON

    shown = [
        {
            "a month": name.replace("_", " "),
            "counted": "not counted" if counted is None else f"{counted:,.0f}",
            "estimated": f"{estimated:,.0f}",
        }
        for (name, counted), estimated in zip(document["counted"].items(), document["estimated"].values(), strict=True)
    ]
    last = (
        f"${document['counted_usd']:.2f} for what was counted, ${document['estimated_usd']:.2f} as estimated, "
        "until rows are in the base"
    )
    lines = [last]
    if document["counted"]["object_writes"] is None:
        lines.append(
            f"S3 has counted no requests to this bucket. To count them, {SWITCH_ON}. docs/operations/cost.md: the price"
        )
    return Group(listing(shown, columns=("a month", "counted", "estimated")), "", *lines)


def _line(item: CostItem) -> dict[str, Any]:
    price = item.price
    return {
        "part": item.part,
        "item": item.item,
        "quantity": round(item.quantity, 3),
        "unit": price.unit,
        "usd": item.usd,
        "price": price.name,
        "price_usd": price.usd,
        "price_checked": price.compared,
    }


def _text(document: dict[str, Any]) -> Any:
    from rich.console import Group

    from lancelsm.cli.text import listing

    shown = [
        {
            **line,
            "quantity": f"{line['quantity']:,.0f}" if line["quantity"] >= 10 else f"{line['quantity']:.3g}",
            "usd": f"{line['usd']:.2f}" if line["usd"] >= 0.01 else f"{line['usd']:.5f}",
            "price": line["price"] + ("" if line["price_checked"] else " *"),
            "price_usd": f"{line['price_usd']:.4g}",
        }
        for line in document["items"]
    ]
    last = [f"${document['usd_per_month']:.2f} per month"]
    if rows := document.get("usd_per_million_rows"):
        last += [
            f"${rows['acknowledged']:.4f} per million rows to acknowledge, ${rows['merged']:.4f} to merge as well",
            f"${rows['collected']:.4f} per million rows to collect the rest too",
            f"${document['usd_to_store']:.2f} per month to store the rows of one month, if no row replaces another",
        ]
    last.append(f"At rest with the presets of {document['presets']}; --from-metrics reads those of a deployment")
    last.append(f"List prices of {document['region']}, {document['prices_checked']}; * not compared on that day")
    columns = ("part", "item", "quantity", "unit", "usd", "price_usd", "price")
    return Group(listing(shown, columns=columns), "", *last)
