"""What differs from Typer in the help of commands, and in the error for a command that does not exist."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

OTHER_NAMES = {
    **dict.fromkeys(("add", "append", "insert", "put", "upsert"), "write"),
    **dict.fromkeys(("changes", "follow"), "tail"),
    **dict.fromkeys(("clean", "cleanup", "collect", "vacuum"), "gc"),
    **dict.fromkeys(("log", "versions"), "history"),
    **dict.fromkeys(("info", "show"), "describe"),
    "adopt": "region adopt",
    "apply-changes": "apply",
    "checkout": "scan --at",
    "clone": "snapshot clone",
    "count": "scan --count",
    "create": "init",
    "explain": "scan --explain",
    "head": "scan --limit 5",
    "query": "sql",
    "serve": "run --forever --serve 9090",
}
"""Commands of other tools, and calls of the library, with the command that does the same."""


class Command(TyperCommand):
    """A command whose flags have no type in the help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments and options, also `--help`."""
        return _without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands whose flags have no type in the help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, also `--help` and those of completion."""
        return _without_types_of_flags(super().get_params(ctx))


class AllCommands(Group):
    """The commands of lancelsm. It answers a command of another tool with ours."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments begin with."""
        if args and args[0] not in self.commands and (ours := OTHER_NAMES.get(args[0].replace("_", "-"))):
            ctx.fail(f"No such command {args[0]!r}. Use {ours!r}.")
        return super().resolve_command(ctx, args)


def _without_types_of_flags(params: list[Any]) -> list[Any]:
    for one in params:
        if getattr(one, "is_flag", False) and one.metavar is None:
            one.metavar = ""  # a type would look as if the flag took a value
    return params
