"""Flip one byte after another in the files of a table, read the table, and print each outcome.

tests/unit/test_flipped_bytes.py runs this in a process of its own, since Lance may end the process.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import lancelsm
from lancelsm.errors import LsmError
from lancelsm.scrubbing.table import scrub_location

KINDS = {
    "generation": "_mem_wal/*/*_gen_2/data/*.lance",
    "base": "data/*.lance",
    "manifest": "_versions/*.manifest",
    "deletion": "_deletions/*.arrow",
}
ANSWER = "answer"
REPORT = "problems reported", "no problems reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one call with one flipped byte. `outcome` is empty if Lance ended the process."""

    kind: str
    offset: int
    call: str
    outcome: str = ""
    words: str = ""


def offsets(size: int) -> list[int]:
    """Twenty offsets spread over the file, and twenty over its end, where Lance keeps the metadata."""
    end = max(0, size - 1200)
    return sorted({*range(0, size, -(-size // 20)), *range(end, size, -(-(size - end) // 20))})


def call_and_report(kind: str, offset: int, call: str, location: str) -> Outcome:
    try:
        if call == "scrub":
            return Outcome(kind=kind, offset=offset, call=call, outcome=REPORT[scrub_location(location).ok])
        if call == "scan":
            lancelsm.open(location).scan(where="n >= 0").to_arrow()
        else:
            lancelsm.open(location).get(list(range(25)))
    except LsmError as error:
        return Outcome(kind=kind, offset=offset, call=call, outcome=error.kind, words=str(error))
    except BaseException as error:  # noqa: BLE001 - the test reports every other error
        return Outcome(kind=kind, offset=offset, call=call, outcome=repr(error))
    return Outcome(kind=kind, offset=offset, call=call, outcome=ANSWER)


def work(location: str, done: int) -> None:
    """Flip byte after byte, but skip the first `done` calls; print each call before it, and its outcome after it."""
    number = 0
    for kind, pattern in KINDS.items():
        path = min(Path(location).glob(pattern))  # the newest, if there are several manifests
        intact = path.read_bytes()
        for offset in offsets(len(intact)):
            flipped = bytearray(intact)
            flipped[offset] ^= 0xFF
            for call in ("scrub", "scan", "get"):
                number += 1
                if number <= done:
                    continue
                print(json.dumps([kind, offset, call]), flush=True)
                path.write_bytes(flipped)
                outcome = call_and_report(kind, offset, call, location)
                path.write_bytes(intact)
                print(json.dumps([outcome.outcome, outcome.words]), flush=True)
