"""Hooks of the documentation site: links to files of the repository, and the page of all commands.

A page may link to a file that is not below docs/, such as an example. The site carries a copy of it below `files/`, and
shows a notebook as a page. A link to a directory becomes plain text, since a site has no listings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebook_pages import notebook_page

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)\s#]*|[^)\s#:]+)(#[^)\s]*)?\)")
_COMMANDS = "<!-- all commands -->"
_COMMON = ("output", "storage_option", "profile", "verbose")  # options of most commands: shown once
_MARKUP = {ord(sign): f"&#{ord(sign)};" for sign in "|[]_*"}  # a pipe would end the cell of a table
_TYPE = re.compile(r" <(list\[)?str\]?>$")  # what the help adds to an argument


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that pages link to."""
    for page in files.documentation_pages():
        for _, target, _ in _LINK.findall(page.content_string):
            path = _outside(page, target)
            if path is not None and path.is_file() and files.get_file_from_path(_name(path)) is None:
                files.append(File.generated(config, _name(path), content=_copy(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Point links that leave docs/ to their copies, and fill in the commands."""

    def link(found: re.Match[str]) -> str:
        path = _outside(page.file, found[2])
        if path is None:
            return found[0]
        depth = len(Path(page.file.src_uri).parents) - 1
        return f"[{found[1]}]({'../' * depth}{_name(path)})" if path.is_file() else found[1]

    if _COMMANDS in markdown:
        markdown = markdown.replace(_COMMANDS, "\n".join(_commands()))
    return _LINK.sub(link, markdown)


def _outside(page: File, target: str) -> Path | None:
    """Return the path that a link names if it exists outside of docs/."""
    path = (ROOT / "docs" / page.src_uri).parent.joinpath(target).resolve()
    inside = path.is_relative_to(ROOT / "docs") and not (path.is_dir() and target.endswith("/"))
    return path if path.is_relative_to(ROOT) and not inside and path.exists() else None


def _name(path: Path) -> str:
    """Return the name of the copy: a browser shows it instead of downloading it, and mkdocs takes it for no page."""
    if path.suffix == ".ipynb":
        return f"notebooks/{path.stem}.md"
    relative = path.relative_to(ROOT).as_posix().lstrip(".")
    return f"files/{relative}.txt" if path.suffix != ".svg" else f"files/{relative}"


def _copy(path: Path) -> bytes:
    return notebook_page(path.read_text()).encode() if path.suffix == ".ipynb" else path.read_bytes()


def _commands() -> Iterator[str]:
    from typer.main import get_command  # noqa: PLC0415 - only one page needs the command line

    from lancelsm.cli.app import PANELS, app  # noqa: PLC0415

    root = get_command(app)
    first: Any = next(iter(root.commands.values()))  # type: ignore[attr-defined]
    context = first.context_class(first)
    yield from ("## Options of most commands", "")
    yield from _table([one for one in first.params if one.name in _COMMON], context)
    for panel, names in PANELS.items():
        yield from ("", f"## {panel}")
        for name in names.split():
            yield from _command(f"lancelsm {name}", root.commands[name])  # type: ignore[attr-defined]


def _command(name: str, command: Any) -> Iterator[str]:
    if command.hidden:
        return
    yield from ("", f"{'#' * (name.count(' ') + 2)} `{name}`", "")
    yield (command.help or "").split("\f")[0].strip()
    if not hasattr(command, "commands"):
        context = command.context_class(command)
        yield from ("", "```text", " ".join([name, *command.collect_usage_pieces(context)]), "```", "")
        yield from _table([one for one in command.params if one.name not in _COMMON], context)
        also = [f"`{one.opts[0]}`" for one in command.params if one.name in _COMMON]
        yield from ("", f"Options of most commands: {', '.join(also)}." if also else "")
        if command.epilog:
            yield from ("", "```sh", command.epilog.removeprefix("Example: "), "```")
    for child, found in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {child}", found)


def _table(params: list[Any], context: Any) -> Iterator[str]:
    """Yield a table of arguments and options as the help shows them: name, values, meaning, default."""
    rows = [record for one in params if (record := one.get_help_record(context)) is not None]
    if rows:
        yield from ("| argument or option | meaning |", "|---|---|")
    for names, meaning in rows:
        code = escape(_TYPE.sub("", " ".join(names.split()))).translate(_MARKUP)
        yield f"| <code>{code}</code> | {' '.join(meaning.split()).replace('|', '&#124;')} |"
