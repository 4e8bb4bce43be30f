"""What every command uses: shared options, opening tables, and printing results."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lancelsm.cli.help import Command
from lancelsm.cli.profile import Output, load_profile

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from lancelsm.read.explain import Explanation
    from lancelsm.region.handle import Ports, TableHandle
    from lancelsm.table import Table
    from lancelsm.wal.log_writer import LogWriter

_LINE_BREAK = re.compile(r"(?<!\n)\n(?!\n)")  # a single line break; typer wraps paragraphs of help itself
_MOST = (1 << 63) - 1
_MARKUP = re.compile(r"\[(?=[a-z#/@])")  # rich would take it for a tag and drop it
_WIDE = 1 << 15  # the width without a terminal, so that nothing wraps


OutputOption = Annotated[
    Output | None,
    typer.Option("--output", help="Text (rows are separated by tabs in a pipe), always a table, CSV, or one JSON "
                 "document (one per row for commands that print rows); also LANCELSM_OUTPUT.", show_default="text"),
]  # fmt: skip
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="Values of the configuration file; also LANCELSM_PROFILE."),
]
VerboseOption = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Log each request to the store and the registry on stderr."),
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option("--storage-option", metavar="KEY=VALUE", help="An object store option of Lance; repeatable."),
]


@dataclass(frozen=True, kw_only=True)
class Session:
    """One run of one command."""

    output: Output
    storage_options: Mapping[str, str] | None
    settings: Mapping[str, object] | None = None
    is_verbose: bool = False

    @cached_property
    def ports(self) -> Ports:
        """How tables are opened: with `--verbose`, their requests are logged."""
        if self.is_verbose:
            from lancelsm.cli.request_log import logged_ports

            return logged_ports(as_json=self.json)
        from lancelsm.region.handle import Ports

        return Ports()

    @property
    def json(self) -> bool:
        return self.output is Output.JSON

    def open(self, uri: str, *, at: str | None = None) -> Table:
        """Open a table, optionally at the state that a text names. Raises the same errors as `lancelsm.open`."""
        import lancelsm
        from lancelsm.history.at import at_of_text

        chosen = None if at is None else at_of_text(at)
        open_table = lancelsm.open.on(self.ports)
        return open_table(uri, at=chosen, settings=self.settings, storage_options=self.storage_options)

    def log(self, uri: str) -> LogWriter:
        """Open a table for writing only. Raises the same errors as `open_log`."""
        from lancelsm.wal.log_writer import open_log

        return open_log(uri, settings=self.settings, storage_options=self.storage_options, ports=self.ports)

    def handle(self, uri: str) -> TableHandle:
        """Open a table's handle, for commands that read or write no rows. Raises the same errors as `lancelsm.open`."""
        from lancelsm.region.handle import open_table

        return open_table(uri, settings=self.settings, storage_options=self.storage_options, ports=self.ports)

    def show(self, document: object, text: Callable[[], RenderableType | str]) -> None:
        """Print a result: the document as JSON or CSV, or else the result of `text`."""
        if self.json:
            print(json.dumps(document, ensure_ascii=False))
            return
        if self.output is Output.CSV:
            from lancelsm.cli.text import document_csv

            print(document_csv(document), end="")
            return
        shown = text()
        if isinstance(shown, str):
            print(shown)
        else:
            console().print(shown)

    def explain(self, explanation: Explanation) -> None:
        """Print how a read was done."""
        self.show(asdict(explanation), lambda: str(explanation))

    @contextmanager
    def working(self, activity: str, *, total: int | None = None) -> Iterator[Callable[[int], object]]:
        """Show on a terminal that a step is running, and for how long. Yield a function that counts rows as done.

        Args:
            total: the number of bytes to do; the function then counts bytes, and a bar shows the share.
        """
        if not sys.stderr.isatty() or self.is_verbose:  # lines of the log would break the picture
            yield lambda _done: None
            return
        from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        amount = (TextColumn("{task.fields[rows]}"),) if total is None else (BarColumn(), DownloadColumn())
        columns = (SpinnerColumn(), TextColumn(activity), *amount, TimeElapsedColumn())
        with Progress(*columns, console=console(sys.stderr), transient=True) as shown:
            task = shown.add_task("", total=total, rows="")
            count = 0

            def advance(done: int) -> None:
                nonlocal count
                count += done
                shown.update(task, completed=count, rows=f"{count:,} rows")

            yield advance


def console(stream: Any = None) -> Console:
    """Return a rich console: as wide as the terminal, or unlimited without one; no wrapping, colours or markup."""
    from rich.console import Console

    out = stream or sys.stdout
    return Console(file=out, width=None if out.isatty() else _WIDE, markup=False, highlight=False)


def pairs(texts: list[str] | None, *, option: str, form: str = "KEY=VALUE") -> dict[str, str]:
    """Parse `KEY=VALUE` arguments; the last one of a key wins. An argument without `=` is a usage error."""
    found = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{text!r} is not {form}", param_hint=option)
        found[name] = value
    return found


def names(text: str | None) -> list[str] | None:
    """Split comma-separated column names."""
    return None if text is None else [name.strip() for name in text.split(",")]


def remember(
    context: typer.Context,
    output: OutputOption = None,
    storage_option: StorageOptions = None,
    profile: ProfileOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Store the shared options, which may also stand before the command's name."""
    if output is not None:
        context.meta["output"] = output
    if profile is not None:
        context.meta["profile"] = profile
    if verbose:
        context.meta["verbose"] = True
    context.meta["storage_option"] = [*context.meta.get("storage_option", []), *(storage_option or [])]


def _session(options: Mapping[str, Any]) -> Session:
    """Combine the shared options with the environment and the profile."""
    profile = load_profile(options.get("profile"))
    stores = {**profile.storage_options, **pairs(options["storage_option"], option="--storage-option")}
    return Session(
        output=options.get("output") or profile.output,
        storage_options=stores or None,
        settings=profile.settings or None,
        is_verbose=options.get("verbose", False),
    )


def command(app: typer.Typer, name: str, *, example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command. Its docstring is the help; its first parameter is the session.

    The command also takes the shared options. A number of more than 64 bits is wrong usage.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            context: typer.Context = arguments.pop("context")
            remember(context, **{name: arguments.pop(name) for name in shared if name != "context"})
            session = _session(context.meta)
            for option, value in arguments.items():
                if isinstance(value, int) and not -_MOST - 1 <= value <= _MOST:
                    raise typer.BadParameter(f"{value} is not in the range of 64 bits", param_hint=option)
            function(session, **arguments)

        shared = inspect.signature(remember, eval_str=True).parameters
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        context, *options = (found.replace(kind=inspect.Parameter.KEYWORD_ONLY) for found in shared.values())
        own = [found.replace(kind=inspect.Parameter.KEYWORD_ONLY) for found in own]
        signature = inspect.Signature([context, *own, *options])
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {found.name: found.annotation for found in signature.parameters.values()}
        text = _LINE_BREAK.sub(" ", inspect.getdoc(function) or "")
        app.command(name, cls=Command, help=_MARKUP.sub(r"\\[", text), epilog=f"Example: {example}")(run)
        return function

    return register
