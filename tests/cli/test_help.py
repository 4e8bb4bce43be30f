"""What the help shows, and how a command that does not exist is answered."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from typer.main import get_command

from lancelsm.cli.app import app
from lancelsm.cli.help import OTHER_NAMES
from tests.cli.console import Run


def commands(group, name="lancelsm"):
    for child, found in group.commands.items():
        yield f"{name} {child}", found
        if hasattr(found, "commands"):
            yield from commands(found, f"{name} {child}")


def test_no_flag_looks_as_if_it_took_a_value() -> None:
    root = get_command(app)
    all_commands = dict([("lancelsm", root), *commands(root)])
    assert len(all_commands) > 50
    for name, command in all_commands.items():
        context = typer.Context(command)
        shown = {one.opts[0]: one.display_type_rich(ctx=context) for one in command.get_params(context)}
        assert shown["--help"] == "", name
        assert "<bool>" not in shown.values(), name


def test_a_usage_line_marks_what_repeats_once() -> None:
    for name, command in commands(get_command(app)):
        usage = " ".join(command.collect_usage_pieces(typer.Context(command)))
        assert not [twice for twice in ("...}", "...]", "[[") if twice in usage], name


@pytest.mark.parametrize("name", sorted(OTHER_NAMES))
def test_a_command_of_another_tool_is_answered_with_ours(name: str, run: Run) -> None:
    done = run(name, "orders")

    assert done.code == 2
    assert f"No such command {name!r}. Use {OTHER_NAMES[name]!r}." in done.err
    words = [word for word in OTHER_NAMES[name].split() if not word.startswith("-") and not word.isdigit()]
    assert f"lancelsm {' '.join(words)}" in dict(commands(get_command(app)))
    assert f"lancelsm {name}" not in dict(commands(get_command(app)))


def test_the_command_line_is_a_module_too() -> None:
    done = subprocess.run([sys.executable, "-m", "lancelsm", "--version"], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("lancelsm ")
