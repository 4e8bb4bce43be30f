"""The commands `init`, `list`, `status`, `describe`, `history` and `config get|set|ttl`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lancelsm.cli.arguments import Uri
from lancelsm.cli.hidden_modules import load_arrow_without_numpy
from lancelsm.cli.indexes import index_options
from lancelsm.cli.session import Session, command, names, pairs

if TYPE_CHECKING:
    import pyarrow as pa

    from lancelsm.region.handle import TableHandle

commands = typer.Typer()
config = typer.Typer()


@command(commands, "init", example="lancelsm init orders --schema orders.parquet --primary-key id --load")
def init(  # noqa: PLR0917 - one for each option
    session: Session,
    uri: Uri,
    schema: Annotated[str, typer.Option(metavar="FILE", help="A Parquet, CSV, JSON lines or Arrow file with the "
                                        "columns; types of CSV and JSON are inferred from all rows.")],
    primary_key: Annotated[str, typer.Option(metavar="A[,B]", help="The key columns, in order.")],
    regions: Annotated[str | None, typer.Option(metavar="SPEC", help='How keys map to regions: "bucket(a, 4)", '
                                                '"identity(a)", "truncate(a, 10)", "day(t)", ...; default '
                                                "one region.")] = None,
    registry: Annotated[str | None, typer.Option(metavar="KIND", help="sqlite (default for paths), object (default "
                                                 "for URLs) or dynamodb:NAME, a DynamoDB table.")] = None,
    owner: Annotated[str, typer.Option(metavar="NAME", help="The owner name that ordinary writers "
                                       "share.")] = "default",
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the table; "
                                                       "repeatable.")] = None,
    index: Annotated[list[str] | None, typer.Option(metavar="COLUMN:KIND[:KEY=VALUE,...]", help="An index to create, "
                                                    "such as vec:IVF_PQ:num_sub_vectors=16; repeatable.")] = None,
    ttl: Annotated[str | None, typer.Option(metavar="TTL", help='How long a row lives, counted from a column: '
                                            '"7d on created_at".')] = None,
    sequence_by: Annotated[str | None, typer.Option(metavar="A[,B]", help="The columns that order change events; the "
                                                    "table takes only these then.")] = None,
    load: Annotated[bool, typer.Option("--load", help="Also load the rows of the file into the base.")] = False,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Succeed if a table with the same columns, key and "
                                           "region spec exists; it gets no rows.")] = False,
) -> None:  # fmt: skip
    """Create a table.

    After a crash, the same command finishes the table. As JSON: {"table", "regions": n, "rows": n}.
    """
    chosen = pairs(settings, option="--set")
    wanted = [_index(text) for text in index or []]
    if len(indexes := dict(wanted)) != len(wanted):
        raise typer.BadParameter("two indexes are on one column", param_hint="--index")
    from lancelsm.admin.create import create_table
    from lancelsm.common.error_text import counted
    from lancelsm.record.files import read_file
    from lancelsm.record.normalize import inferred
    from lancelsm.region.catalog import regions as list_regions

    rows = inferred(read_file(schema, schema=None))
    _check_typed(rows, file=schema)
    with session.working(f"Creating {uri}"):
        handle = create_table(
            uri,
            rows if load else rows.schema,
            primary_key=names(primary_key) or [],
            regions=regions,
            registry=registry,
            owner=owner,
            settings=chosen,
            indexes=indexes,
            ttl=ttl,
            sequence_by=names(sequence_by),
            exist_ok=exist_ok,
            storage_options=session.storage_options,
            ports=session.ports,
        )
        location, number = handle.context.uri, len(list_regions(handle.context))
        loaded = handle.read_base().rows if load else 0
    session.show(
        {"table": location, "regions": number, "rows": loaded},
        lambda: f"Created {location}: {counted(number, 'region')}, {counted(loaded, 'row')}",
    )


@command(commands, "list", example="lancelsm list lake")
def list_tables(
    session: Session,
    root: Annotated[str, typer.Argument(metavar="ROOT", help="A directory, or a URL such as s3://bucket/lake.")],
) -> None:
    """List the tables in NAME.lance right below a directory or URL, by name.

    As JSON: [name, ...].
    """
    from lancelsm.namespace import connect

    with session.working("Listing"):
        found = list(connect(root, storage_options=session.storage_options))
    session.show(found, lambda: "\n".join(found) or f"no table in {root}; only those in NAME.lance are listed")


def _index(text: str) -> tuple[str, dict[str, Any]]:
    """Decode COLUMN:KIND[:KEY=VALUE,...]."""
    column, _, rest = text.partition(":")
    kind, _, options = rest.partition(":")
    if not column or not kind:
        raise typer.BadParameter(f"{text!r} is not COLUMN:KIND or COLUMN:KIND:KEY=VALUE,...", param_hint="--index")
    return column, {"kind": kind, **index_options(pairs(options.split(",") if options else [], option="--index"))}


@command(commands, "status", example="lancelsm status orders --output json | jq '.regions[].wal_rows'")
def status(
    session: Session,
    uri: Uri,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show levels, lag and work until interrupted, read every 2 seconds.")
    ] = False,
) -> None:
    """Show the head of every region, and how far the base lags behind.

    As JSON: {"table", "base_version", "regions": [{"region", "values", "epoch", "owner", "status", "next_position",
    "generations", "merged_generation", "newest_generation", "wal_rows", "wal_bytes"}], "indexes": [like `index list`],
    "ttl", "problems": [{"kind", "message", "remedy", "region"}]}. `generations` counts generations that are not in the
    base yet, and a compacted one once; `wal_rows` counts rows that are not in a generation yet. `ttl` says how long
    rows live; null if they don't expire. `problems` says what other tools did to the table.

    With --watch, as JSON a line for each reading: {"table", "base_version", "regions", "wal_rows", "wal_bytes",
    "generations", "entries_per_second", "work"}.
    """
    if watch:
        _watch(session, session.handle(uri))
        return
    load_arrow_without_numpy()
    from lancelsm.cli.text import listing, printable
    from lancelsm.common.error_text import counted
    from lancelsm.read.status import full_status

    with session.working("Reading"):
        status = full_status(session.handle(uri))
    found = asdict(status)
    regions = found["regions"]
    waiting = sum(region["wal_rows"] for region in regions), sum(region["generations"] for region in regions)
    title = f"{found['table']}: base version {found['base_version']}, {counted(len(regions), 'region')}"
    expiry = [] if status.ttl is None else [f"Rows expire: {status.ttl}"]
    lag = f"{counted(waiting[0], 'row')} to flush, {counted(waiting[1], 'generation')} to merge"
    columns = tuple(regions[0]) if regions else ("region",)
    behind = [
        f"Index {one['name']}: {counted(one['rows_without'], 'row')} searched without it"
        + (", since Lance refuses some of them" if one["stalled"] else "")
        for one in found["indexes"]
        if one["rows_without"]
    ]
    problems = [printable(f"Problem: {problem}") for problem in status.problems]

    def text() -> Any:
        from rich.console import Group

        return Group(title, lag, *expiry, *behind, *problems, listing(regions, columns=columns))

    session.show(found, text)


def _watch(session: Session, handle: TableHandle) -> None:
    import sys

    from rich.live import Live

    from lancelsm.cli.session import console
    from lancelsm.cli.watch import Seen, picture, readings

    before: Seen | None = None
    if session.json or not sys.stdout.isatty():
        for seen in readings(handle):
            session.show(seen.document(before), partial(picture, seen, before))
            sys.stdout.flush()
            before = seen
        return
    with Live(console=console(), auto_refresh=False) as live:
        for seen in readings(handle):
            live.update(picture(seen, before), refresh=True)
            before = seen


@command(commands, "describe", example="lancelsm describe orders")
def describe(session: Session, uri: Uri) -> None:
    """Show the columns, key, region spec, registry, owner and settings of a table.

    As JSON: {"table", "id", "format", "registry", "owner", "primary_key", "regions", "sequence_by", "ttl",
    "base_version", "base_rows", "settings", "schema": {"version", "columns": [{"name", "type", "nullable",
    "field_id"}]}}.
    """
    from rich.console import Group

    from lancelsm.cli.text import facts, listing

    document = described(session.handle(uri))

    def text() -> Group:
        shown = {**document, **{name: ", ".join(document[name]) for name in ("primary_key", "sequence_by")}}
        shown["schema_version"] = shown.pop("schema")["version"]
        columns = ("name", "type", "nullable", "field_id")
        return Group(facts(shown), listing(document["schema"]["columns"], columns=columns))

    session.show(document, text)


@command(commands, "history", example="lancelsm history orders --limit 5")
def history(
    session: Session,
    uri: Uri,
    limit: Annotated[int, typer.Option(min=1, help="Show the newest N versions.")] = 20,
) -> None:
    """Show the versions of the base and what each of them merged, oldest first.

    As JSON: {"table", "versions": [{"version", "time", "operation", "rows", "merged": [{"region", "generation"}]}]}.
    `merged` has the newest generation of each region that the version added; it is null if the previous version is
    gone. `operation` is Lance's name of the commit.
    """
    from lancelsm.cli.text import listing
    from lancelsm.dataset.versions import base_versions
    from lancelsm.stack import documents

    location = session.handle(uri).context.uri
    with session.working("Reading"):
        read = base_versions(uri=location, newest=limit, storage_options=session.storage_options)
    versions = [
        {
            "version": found.version,
            "time": found.time.isoformat(),
            "operation": found.operation,
            "rows": found.rows,
            "merged": None if found.merged is None else documents.generations(found.merged),
        }
        for found in read
    ]
    columns = ("version", "time", "operation", "rows", "merged")
    session.show({"table": location, "versions": versions}, lambda: listing(map(_short, versions), columns=columns))


@command(config, "get", example="lancelsm config get orders flush_rows")
def config_get(
    session: Session,
    uri: Uri,
    wanted: Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Only these settings.")] = None,
) -> None:
    """Show the settings in use for a table, and where each value comes from.

    The source is `environment`, `profile`, `table` or `default`; the first one that has a value wins. As JSON:
    {"table", "settings": [{"name", "value", "source"}]}.
    """
    from lancelsm.cli.text import listing
    from lancelsm.common.error_text import did_you_mean
    from lancelsm.common.settings import setting_sources
    from lancelsm.errors import Invalid

    handle = session.handle(uri)
    values, sources = asdict(handle.settings), setting_sources(table=handle.config.settings)
    for name in wanted or []:
        if name not in values:
            remedy = did_you_mean(name, sorted(values), what="Settings are")
            raise Invalid(f"unknown setting {name!r}", remedy=remedy, field=name)
    sources |= dict.fromkeys(session.settings or {}, "profile")
    found = [{"name": one, "value": values[one], "source": sources[one]} for one in wanted or values]
    document = {"table": handle.context.uri, "settings": found}
    session.show(document, lambda: listing(found, columns=("name", "value", "source")))


@command(config, "set", example="lancelsm config set orders flush_rows=50000")
def config_set(
    session: Session,
    uri: Uri,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE", help="Settings and their new values.")],
) -> None:
    """Change settings of a table. Settings that are not named keep their values.

    The new values apply to every process that opens the table from now on, unless its environment or arguments override
    them. As JSON: {"table", "settings": {...}}.
    """
    chosen = pairs(settings, option="KEY=VALUE")
    from lancelsm.cli.text import facts
    from lancelsm.common.settings import parse_settings
    from lancelsm.region.config import change_settings

    texts = {name: str(value) for name, value in parse_settings(chosen).items()}
    context = session.handle(uri).context
    kept = dict(change_settings(context.objects, texts, uri=context.uri, budget=context.budget()).settings)
    session.show({"table": context.uri, "settings": kept}, lambda: facts(kept))


@command(config, "ttl", example='lancelsm config ttl orders "7d on created_at"')
def config_ttl(
    session: Session,
    uri: Uri,
    ttl: Annotated[str, typer.Argument(metavar="TTL", help='A duration and a column of times, as in "7d on '
                                       'created_at"; or never.')],
) -> None:  # fmt: skip
    """Set how long the rows of a table live, counted from the time in a column.

    An expired row counts as deleted in every read. As JSON: {"table", "ttl"}.
    """
    from lancelsm.admin.set_ttl import set_ttl
    from lancelsm.common.duration import NEVER

    handle = session.handle(uri)
    with session.working("Changing"):
        found = set_ttl(handle, None if ttl.strip() == NEVER else ttl)
    text = None if found is None else found.text
    session.show(
        {"table": handle.context.uri, "ttl": text},
        lambda: f"Rows of {handle.context.uri} " + ("never expire" if text is None else f"expire: {text}"),
    )


def described(handle: TableHandle) -> dict[str, Any]:
    """Return the document of `describe`."""
    from lancelsm.record.schema import field_id
    from lancelsm.region.config import FORMAT

    known, base = handle.config, handle.read_base()
    return {
        "table": handle.context.uri,
        "id": known.table,
        "format": FORMAT,
        "registry": known.registry,
        "owner": known.owner,
        "primary_key": list(known.schema.primary_key),
        "regions": None if known.regions is None else known.regions.describe(),
        "sequence_by": list(known.sequence_by),
        "ttl": None if base.ttl is None else base.ttl.text,
        "base_version": base.version,
        "base_rows": base.rows,
        "settings": dict(known.settings),
        "schema": {
            "version": known.schema_version,
            "columns": [
                {"name": f.name, "type": str(f.type), "nullable": f.nullable, "field_id": field_id(f)}
                for f in known.schema.columns
            ],
        },
    }


def _short(version: dict[str, Any]) -> dict[str, Any]:
    merged = version["merged"]
    shown = None if merged is None else ", ".join(f"{one['region'][:8]} to {one['generation']}" for one in merged)
    return {**version, "merged": shown}


def _check_typed(rows: pa.Table, *, file: str) -> None:
    import pyarrow as pa

    from lancelsm.errors import Invalid

    for field in rows.schema:
        if pa.types.is_null(field.type):
            raise Invalid(
                f"column {field.name!r} has no value, so its type is not known",
                remedy="Give a schema as a Parquet or Arrow file",
                file=file,
                field=field.name,
            )
