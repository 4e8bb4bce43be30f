"""One byte flipped, anywhere in a file that Lance keeps: an answer or Corrupt, and from scrub a report.

Lance keeps no sums, so an answer may be a wrong one ("What scrub and readers can't tell" in docs/design.md). It ends
the whole process over some deletion files, so all is done in another one, which is begun again behind that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.dataset.deletions import arrow_problem
from lancelsm.dataset.native import read_errors
from lancelsm.errors import Corrupt, Invalid, LsmError, Unavailable
from lancelsm.read.result import Rows, begun
from lancelsm.scrub.table import scrub_place

KINDS = {
    "generation": "_mem_wal/*/*_gen_2/data/*.lance",
    "base": "data/*.lance",
    "manifest": "_versions/*.manifest",
    "deletion": "_deletions/*.arrow",
}
ENDS = ("deletion", "scan"), ("deletion", "get")  # where Lance ends the process
ANSWER = "answer"
REPORT = "report of problems", "report of none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """What came of one flip: the name of an error, or that there was none; empty where the process ended."""

    kind: str
    offset: int
    call: str
    outcome: str = ""
    words: str = ""


def make(place: Path) -> None:
    table = lancelsm.create(place, [{"id": key, "v": f"v{key}", "n": key / 2} for key in range(20)], primary_key="id")
    for first in (0, 5):
        table.upsert([{"id": key, "v": "new", "n": 0.0} for key in range(first, first + 10)])
        table.flush()
        if first == 0:
            table.merge(engine="inprocess")


def offsets(size: int) -> list[int]:
    """Twenty spread over the whole file, and twenty over its end, where Lance says where everything is."""
    end = max(0, size - 1200)
    return sorted({*range(0, size, -(-size // 20)), *range(end, size, -(-(size - end) // 20))})


def tell(kind: str, offset: int, call: str, place: str) -> Raised:
    try:
        if call == "scrub":
            return Raised(kind=kind, offset=offset, call=call, outcome=REPORT[scrub_place(place).ok])
        if call == "scan":
            lancelsm.open(place).scan(where="n >= 0").to_arrow()
        else:
            lancelsm.open(place).get(list(range(25)))
    except LsmError as error:
        return Raised(kind=kind, offset=offset, call=call, outcome=error.kind, words=str(error))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
        return Raised(kind=kind, offset=offset, call=call, outcome=repr(error))
    return Raised(kind=kind, offset=offset, call=call, outcome=ANSWER)


def work(place: str, done: int) -> None:
    """Flip byte after byte, all but the first `done`; prints each call, and then what came of it."""
    number = 0
    for kind, pattern in KINDS.items():
        path = min(Path(place).glob(pattern))  # of the manifests the newest
        whole = path.read_bytes()
        for offset in offsets(len(whole)):
            flipped = bytearray(whole)
            flipped[offset] ^= 0xFF
            for call in ("scrub", "scan", "get"):
                number += 1
                if number <= done:
                    continue
                print(json.dumps([kind, offset, call]), flush=True)
                path.write_bytes(flipped)
                raised = tell(kind, offset, call, place)
                path.write_bytes(whole)
                print(json.dumps([raised.outcome, raised.words]), flush=True)


def raised_by_others(place: Path) -> Iterator[Raised]:
    whole = {path: path.read_bytes() for pattern in KINDS.values() for path in place.glob(pattern)}
    done = 0
    while True:
        code = f"from tests.unit.test_flipped_bytes import work; work({str(place)!r}, {done})"
        ended = subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
        )
        lines = [json.loads(line) for line in ended.stdout.splitlines()]
        has_ended = len(lines) % 2 == 1
        if has_ended:
            lines.append(["", ended.stderr])
        for (kind, offset, call), (outcome, words) in zip(lines[::2], lines[1::2], strict=True):
            done += 1
            yield Raised(kind=kind, offset=offset, call=call, outcome=outcome, words=words)
        if not has_ended:
            assert ended.returncode == 0, ended.stderr
            return
        for path, body in whole.items():
            path.write_bytes(body)


def test_a_flipped_byte_is_told_as_corrupt_if_it_is_told_and_scrub_always_reports(tmp_path: Path) -> None:
    make(tmp_path / "table")

    found = list(raised_by_others(tmp_path / "table"))

    assert {raised.kind for raised in found} == set(KINDS)
    assert {raised.kind for raised in found if raised.outcome == Corrupt.kind} == set(KINDS)
    for raised in found:
        if raised.call == "scrub":
            assert raised.outcome in REPORT, raised
        elif raised.outcome or (raised.kind, raised.call) not in ENDS:
            assert raised.outcome in (ANSWER, Corrupt.kind), raised
        if (
            raised.outcome == Corrupt.kind and raised.kind != "manifest"
        ):  # by that one the configuration may be to blame
            assert "object " in raised.words, raised
            assert "lancelsm scrub" in raised.words, raised
        if raised.call == "scrub" and raised.kind == "generation":
            assert raised.outcome == REPORT[False], raised


def test_a_deletion_file_over_which_lance_would_end_the_process_is_told_before(tmp_path: Path) -> None:
    make(tmp_path / "table")
    (path,) = (tmp_path / "table").glob(KINDS["deletion"])
    whole = path.read_bytes()
    assert arrow_problem(whole, rows=20, hidden=10) == ""

    raised = set()
    for offset in range(len(whole)):
        flipped = bytearray(whole)
        flipped[offset] ^= 0xFF
        raised.add(arrow_problem(bytes(flipped), rows=20, hidden=10))

    assert "it asks for more memory than its rows need" in raised


@pytest.mark.parametrize(
    ("native", "kind"),
    [
        (pa.ArrowInvalid("External error: Invalid user input: Invalid direct ColumnEncoding"), Corrupt),
        (pa.ArrowInvalid("External error: Encountered internal error. Please file a bug report"), Corrupt),
        (pa.ArrowInvalid("Invalid read of range 0..403 for fragment 0 with 401 addressable rows"), Corrupt),
        (RuntimeError("LanceError(Arrow): Invalid argument error"), Corrupt),
        (OSError("LanceError(IO): failed to fill whole buffer"), Corrupt),
        (KeyError("values"), Corrupt),
        (OSError("LanceError(IO): Generic S3 error: HTTP error: error sending"), Unavailable),
        (pa.ArrowInvalid("External error: Generic S3 error: operation timed out"), Unavailable),
        (TimeoutError("timed out"), Unavailable),
        (OSError("Generic S3 error: Client error with status 403 Forbidden"), Invalid),
    ],
)  # fmt: skip
@pytest.mark.parametrize("condition", [None, "id > 1"])
def test_what_reading_fails_over_is_damage_unless_the_store_says_so(
    native: Exception, kind: type[LsmError], condition: str | None
) -> None:
    columns = pa.schema({"id": pa.int64()})

    with (
        pytest.raises(kind) as caught,
        read_errors("it can't be read", condition=condition, columns=columns, table="t"),
    ):
        raise native

    assert caught.value.__cause__ is native


@pytest.mark.parametrize("condition", ["nope = 1", "id = = 1", "arrow_cast(id, 'Nope') = 1", "id"])
def test_a_condition_that_can_not_be_planned_is_invalid(tmp_path: Path, condition: str) -> None:
    make(tmp_path / "table")

    with pytest.raises(Invalid, match="the condition"):
        lancelsm.open(tmp_path / "table").scan(where=condition)


@pytest.mark.parametrize("read", [Rows.to_arrow, list, lambda rows: list(rows.to_batches())])
def test_an_error_behind_the_first_rows_keeps_its_kind(read: object) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        raise Corrupt("a file is gone", object="x")

    rows = Rows(begun(pa.RecordBatchReader.from_batches(pa.schema({"id": pa.int64()}), batches())))

    with pytest.raises(Corrupt, match="a file is gone"):
        read(rows)  # type: ignore[operator]
