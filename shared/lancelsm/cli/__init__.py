"""The command line: `lancelsm COMMAND ...`.

A command prints its result on stdout: as text, or with `--output json` as one JSON document or one JSON object per row,
or with `--output csv` as CSV: rows, the first list of the document, or the document as one row.
Logs, warnings and progress go to stderr. Exit codes:

    0    success                   5    Ambiguous: it may or may not have happened
    1    Invalid, or a bug         6    Unavailable: a store did not answer, or stdout is full
    2    wrong usage               130  interrupted, or a confirmation was declined
    3    Contended, Fenced         141  stdout was closed
    4    Corrupt: an object is missing or damaged

An error is one line on stderr. With `--output json` it is the document {"error": {"kind", "message", "remedy", ...}} on
stdout instead, so a script reads one stream and uses the exit code to recognise an error. If rows were printed before,
the document is the last line. A traceback is printed only if LANCELSM_TRACEBACK is set.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    Args:
        arguments: of the command. None: those of the process, whose streams and signals then belong to the command.
    """
    try:
        # All other imports are below: an interrupt during an import must be quiet too.
        from lancelsm.cli import process

        if arguments is not None:
            return process.run(list(arguments))
        process.prepare()
        code = process.run(sys.argv[1:])
        process.finish()
        return code
    except KeyboardInterrupt:
        return 130
