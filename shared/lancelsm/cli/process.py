"""Run one command in a process: streams, interrupts, errors and the exit code."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from types import FrameType
from typing import Any

from lancelsm.cli.hidden_modules import hide_slow_modules
from lancelsm.cli.streams import OutputClosed, OutputFailed, Stderr, Stdout, open_null
from lancelsm.cli.text import printable
from lancelsm.common.panics import panics_as_errors
from lancelsm.errors import LsmError, Unavailable

_CLOSED = 141  # the exit code that a shell reports for a program ended by SIGPIPE
_INTERRUPTED = 130
_USAGE = 2


def prepare() -> None:
    """Take over the streams of this process and SIGINT.

    The first SIGINT unwinds the command, the second one ends the process. A stream that was closed gets its descriptor
    back; otherwise a file of a table could get it and receive output. Writing to such a stdout fails like writing to a
    closed pipe, and reading from such a stdin fails.
    """
    signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _unraisable
    hide_slow_modules()
    # Loaded modules are not garbage. Looking for garbage would take a tenth of the time of a short command.
    gc.set_threshold(50_000)
    if sys.stdin is None:
        open_null(0)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    if sys.stdout is None:
        reader, writer = os.pipe()
        os.dup2(writer, 1)
        for descriptor in {reader, writer} - {1}:
            os.close(descriptor)
    if sys.stderr is None:
        open_null(2)
    sys.stdout = _text(Stdout(1, "w", closefd=False))
    sys.stderr = _text(Stderr(2, "w", closefd=False))


def finish() -> None:
    """Let an interrupt from now on end the process at once, since there is nothing left to unwind."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(arguments: list[str]) -> int:
    """Run one command, print its error if it fails, and return the exit code."""
    with _plain_warnings():
        try:
            return _execute(arguments)
        except KeyboardInterrupt:
            return _INTERRUPTED
        except OutputClosed:
            return _CLOSED
        except OutputFailed as error:
            print(f"{error.kind}: {error}", file=sys.stderr)
            return error.exit_code


def _execute(arguments: list[str]) -> int:
    import typer

    try:
        from lancelsm.cli.app import app

        for number, argument in enumerate(arguments, start=1):
            if not argument.isascii() and any("\ud800" <= character <= "\udfff" for character in argument):
                raise typer.BadParameter(f"argument {number} is not UTF-8: {argument!a}")
        with panics_as_errors():
            code = int(app(arguments, prog_name="lancelsm", standalone_mode=False) or 0)
        sys.stdout.flush()
        return code
    except typer.Abort:
        return _INTERRUPTED
    except (OutputClosed, OutputFailed):
        raise
    except MemoryError as error:
        full = Unavailable(f"not enough memory: {error}", remedy="Free memory, or do less at once")
        return _report_error(full, as_json=_wants_json(arguments))
    except Exception as error:  # noqa: BLE001 - every error gets an exit code here
        return _report_error(error, as_json=_wants_json(arguments))


def _report_error(error: Exception, *, as_json: bool) -> int:
    """Print an error and return the exit code."""
    if os.environ.get("LANCELSM_TRACEBACK"):
        traceback.print_exception(error)
    if isinstance(error, LsmError):
        code, document, text = error.exit_code, error.document(), printable(f"{error.kind}: {error}")
    elif (usage := _usage(error)) is not None:
        # Without any argument the help was printed, and there is no message.
        text = f"{_help(error)}{usage}" if usage else ""
        code, document = _USAGE, _document("Usage", usage, "See lancelsm --help")
    else:
        message = f"{type(error).__name__}: {error}"
        remedy = "This is a bug: set LANCELSM_TRACEBACK=1 to see the traceback, and report it"
        code, document, text = 1, _document("Internal", message, remedy), printable(f"{message}. {remedy}")
    if as_json:
        print(json.dumps(document, ensure_ascii=False, default=str), flush=True)
    elif text:
        print(text, file=sys.stderr)
    return code


def _document(kind: str, message: str, remedy: str) -> dict[str, object]:
    return {"error": {"kind": kind, "message": message, "remedy": remedy}}


def _usage(error: Exception) -> str | None:
    """Return the message of a usage error; None for other errors."""
    if getattr(error, "exit_code", None) == _USAGE and hasattr(error, "format_message"):
        return str(error.format_message()).replace(": Value error, ", ": ", 1)
    return None


def _help(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.get_usage()}\nTry '{context.command_path} --help'.\n" if context else ""


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return whether JSON is the output, even if arguments are wrong: by `--output`, LANCELSM_OUTPUT or the profile."""
    output = profile = ""
    for name, value in zip_longest(arguments, arguments[1:], fillvalue=""):
        if name == "--":
            break
        if name == "--output":
            output = value
        elif name.startswith("--output="):
            output = name.removeprefix("--output=")
        elif name == "--profile":
            profile = value
        elif name.startswith("--profile="):
            profile = name.removeprefix("--profile=")
    if output := output or os.environ.get("LANCELSM_OUTPUT", ""):
        return output == "json"
    from lancelsm.cli.profile import Output, load_profile

    try:
        return load_profile(profile or None).output is Output.JSON
    except Exception:  # noqa: BLE001 - this is the error that is reported, as text
        return False


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each warning as one line, without its source location."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(printable(f"Warning: {message}"), file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def _text(raw: io.FileIO) -> io.TextIOWrapper:
    binary, terminal = io.BufferedWriter(raw), raw.isatty() or raw.fileno() == 2
    return io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace", line_buffering=terminal)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt


def _unraisable(found: Any) -> None:
    """End the process for an interrupt in code that can't raise, such as a finalizer; report other errors as usual."""
    if found.exc_type is KeyboardInterrupt:
        os._exit(_INTERRUPTED)
    sys.__unraisablehook__(found)
