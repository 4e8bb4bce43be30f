"""The command line: `lancelsm COMMAND ...`.

A command prints its result on stdout: as text, or with `--output json` as one JSON document or one JSON object per row.
Logs, warnings and progress go to stderr. Exit codes:

    0    success                   4    Corrupt: an object is missing or damaged
    1    Invalid, or a bug         5    Ambiguous: it may or may not have happened
    2    wrong usage               6    Unavailable: a store did not answer
    3    Contended, Fenced         130  interrupted, or a confirmation was declined

An error is one line on stderr. With `--output json` it is the document {"error": {"kind", "message", "remedy", ...}} on
stdout instead, so a script reads one stream and uses the exit code to recognise an error. If rows were printed before,
the document is the last line. A traceback is printed only if LANCELSM_TRACEBACK is set.
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
    """Run one command and return the exit code. By default the arguments are those of the process."""
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
        except Exception as error:  # noqa: BLE001 - every error gets an exit code here
            return _report_error(error, as_json=_wants_json(given))


def _report_error(error: Exception, *, as_json: bool) -> int:
    """Print an error and return the exit code."""
    if os.environ.get("LANCELSM_TRACEBACK"):
        traceback.print_exception(error)
    if isinstance(error, LsmError):
        code, document, text = error.exit_code, error.document(), f"{error.kind}: {error}"
    elif (usage := _usage(error)) is not None:
        code, document, text = _USAGE, _document("Usage", usage, "See lancelsm --help"), f"{_help(error)}{usage}"
    else:
        message = f"{type(error).__name__}: {error}"
        remedy = "This is a bug: set LANCELSM_TRACEBACK=1 to see the traceback, and report it"
        code, document, text = 1, _document("Internal", message, remedy), f"{message}. {remedy}"
    if as_json:
        print(json.dumps(document, ensure_ascii=False, default=str), flush=True)
    else:
        print(text, file=sys.stderr)
    return code


def _document(kind: str, message: str, remedy: str) -> dict[str, object]:
    return {"error": {"kind": kind, "message": message, "remedy": remedy}}


def _usage(error: Exception) -> str | None:
    """Return the message of a usage error; None for other errors."""
    if getattr(error, "exit_code", None) == _USAGE and hasattr(error, "format_message"):
        return str(error.format_message())
    return None


def _help(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.get_usage()}\nTry '{context.command_path} --help'.\n" if context else ""


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return whether `--output json` is among the arguments, even if other arguments are wrong."""
    output = ""
    for name, value in zip_longest(arguments, arguments[1:], fillvalue=""):
        if name == "--":
            break
        if name == "--output":
            output = value
        elif name.startswith("--output="):
            output = name.removeprefix("--output=")
    return output == "json"


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each warning as one line, without its source location."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"Warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield
