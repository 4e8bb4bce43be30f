"""What every command has: the shared options, and one way to show a result."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from lancelsm.region.handle import TableHandle
    from lancelsm.table import Table

_BROKEN_PIPE = 141  # what a shell reports of a program that SIGPIPE ends
_PARAGRAPH = re.compile(r"(?<!\n)\n(?!\n)")  # within one, help wraps by itself
_MARKUP = re.compile(r"\[(?=[a-z#/@])")  # rich would take it for a tag, and leave it out
_WIDE = 1 << 15  # where there is no terminal, nothing wraps


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[
    Output | None,
    typer.Option("--output", help="For people, or one JSON document (one a row where rows are asked for).",
                 show_default="text"),
]  # fmt: skip
StorageOptions = Annotated[
    list[str] | None,
    typer.Option("--storage-option", metavar="KEY=VALUE", help="For the object store, as Lance takes it; repeatable."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One run of one command."""

    json: bool
    storage_options: Mapping[str, str] | None

    def open(self, uri: str, *, at: str | None = None) -> Table:
        """Open a table, perhaps at a snapshot; raises as `lancelsm.open`."""
        import lancelsm

        return lancelsm.open(uri, at=at, storage_options=self.storage_options)

    def handle(self, uri: str) -> TableHandle:
        """A table's configuration and storage, for what is not about rows; raises as `lancelsm.open`."""
        from lancelsm.region.handle import open_table

        return open_table(uri, storage_options=self.storage_options)

    def show(self, document: object, text: Callable[[], RenderableType | str]) -> None:
        """Print a result: the document as JSON, or what `text` makes of it for people."""
        if self.json:
            print(json.dumps(document, ensure_ascii=False))
            return
        shown = text()
        if isinstance(shown, str):
            print(shown)
        else:
            console().print(shown)

    @contextmanager
    def working(self, on: str) -> Iterator[None]:
        """Show on a terminal that something takes its time."""
        if not sys.stderr.isatty():
            yield
            return
        with console(sys.stderr).status(on):
            yield


def console(stream: Any = None) -> Console:
    """A stream for rich's tables: as wide as its terminal, or as the table, without wrapping, colours or markup."""
    from rich.console import Console

    out = stream or sys.stdout
    return Console(file=out, width=None if out.isatty() else _WIDE, markup=False, highlight=False)


def pairs(texts: list[str] | None, *, option: str) -> dict[str, str]:
    """`KEY=VALUE` arguments as a mapping; wrong usage if one has no `=`."""
    found = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=option)
        found[name] = value
    return found


def names(text: str | None) -> list[str] | None:
    """Comma-separated column names."""
    return None if text is None else [name.strip() for name in text.split(",")]


def remember(context: typer.Context, output: OutputOption = None, storage_option: StorageOptions = None) -> None:
    """Take the shared options before the command's name too."""
    if output is not None:
        context.meta["output"] = output
    context.meta["storage_option"] = [*context.meta.get("storage_option", []), *(storage_option or [])]


def command(app: typer.Typer, name: str, *, example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command: its docstring is the help, its first parameter the session.

    The command also takes the shared options, and ends quietly when nobody reads its output any more.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            context: typer.Context = arguments.pop("context")
            remember(context, arguments.pop("output"), arguments.pop("storage_option"))
            session = Session(
                json=context.meta.get("output") is Output.JSON,
                storage_options=pairs(context.meta["storage_option"], option="--storage-option") or None,
            )
            try:
                function(session, **arguments)
                sys.stdout.flush()
            except BrokenPipeError as error:
                # The interpreter flushes stdout once more when it ends.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(_BROKEN_PIPE) from error

        shared = inspect.signature(remember, eval_str=True).parameters
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        context, *options = (found.replace(kind=inspect.Parameter.KEYWORD_ONLY) for found in shared.values())
        own = [found.replace(kind=inspect.Parameter.KEYWORD_ONLY) for found in own]
        signature = inspect.Signature([context, *own, *options])
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {found.name: found.annotation for found in signature.parameters.values()}
        text = _PARAGRAPH.sub(" ", inspect.getdoc(function) or "")
        app.command(name, help=_MARKUP.sub(r"\\[", text), epilog=f"Example: {example}")(run)
        return function

    return register
