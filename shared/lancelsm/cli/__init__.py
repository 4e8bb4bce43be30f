"""The command line: `lancelsm COMMAND ...`.

A command prints its result on stdout, as text for people or, with `--output json`, as one JSON document or one JSON
object a row. Logs, warnings and progress go to stderr. It ends with

    0    done                      4    Corrupt: an object is missing or wrong
    1    Invalid, or a bug         5    Ambiguous: it may or may not have happened
    2    wrong usage               6    Unavailable: a store did not answer
    3    Contended, Fenced         130  interrupted, or a question was answered with no

An error is one line on stderr. With `--output json` it is the document {"error": {"kind", "message", "remedy", ...}} on
stdout instead, so that a script has one place to read and the exit code to tell what it is; after rows it is the last
line. A traceback is shown only if LANCELSM_TRACEBACK is set.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

from typer import Abort

from lancelsm.errors import LsmError

_INTERRUPTED = 130
_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Takes the process's arguments by default."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8")
    with _plain_warnings():
        try:
            from lancelsm.cli.app import app

            return int(app(given, prog_name="lancelsm", standalone_mode=False) or 0)
        except (KeyboardInterrupt, Abort):
            return _INTERRUPTED
        except Exception as error:  # noqa: BLE001 - the edge: whatever went wrong gets its exit code
            return _failed(error, as_json=_asks_for_json(given))


def _failed(error: Exception, *, as_json: bool) -> int:
    """Tell of an error; returns the exit code."""
    if os.environ.get("LANCELSM_TRACEBACK"):
        traceback.print_exception(error)
    if isinstance(error, LsmError):
        code, document, text = error.exit_code, error.document(), f"{error.kind}: {error}"
    elif (usage := _usage(error)) is not None:
        code, document, text = _USAGE, _document("Usage", usage, "See lancelsm --help"), f"{_help(error)}{usage}"
    else:
        what = f"{type(error).__name__}: {error}"
        remedy = "This is a bug: set LANCELSM_TRACEBACK=1 to see where, and report it"
        code, document, text = 1, _document("Internal", what, remedy), f"{what}. {remedy}"
    if as_json:
        print(json.dumps(document, ensure_ascii=False, default=str), flush=True)
    else:
        print(text, file=sys.stderr)
    return code


def _document(kind: str, message: str, remedy: str) -> dict[str, object]:
    return {"error": {"kind": kind, "message": message, "remedy": remedy}}


def _usage(error: Exception) -> str | None:
    """What is wrong with the arguments, if that is what the error says."""
    if getattr(error, "exit_code", None) == _USAGE and hasattr(error, "format_message"):
        return str(error.format_message())
    return None


def _help(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.get_usage()}\nTry '{context.command_path} --help'.\n" if context else ""


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether the arguments ask for JSON, even if they are wrong otherwise."""
    asked = ""
    for name, value in zip_longest(arguments, arguments[1:], fillvalue=""):
        if name == "--":
            break
        if name == "--output":
            asked = value
        elif name.startswith("--output="):
            asked = name.removeprefix("--output=")
    return asked == "json"


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings as one line each, without the place in our source."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"Warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield
