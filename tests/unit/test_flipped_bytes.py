"""One flipped byte anywhere in a file of Lance: a read returns rows or raises `Corrupt`, and scrub returns a report.

Lance keeps no checksums, so the rows may be wrong (docs/concepts/sums.md, "What scrub and readers can't tell"). Some
damaged deletion files make Lance end the whole process. So the reads run in another process, which is restarted then.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lancelsm
from lancelsm.dataset.deletions import arrow_problem
from lancelsm.dataset.native import read_errors
from lancelsm.errors import Corrupt, Invalid, LsmError, Unavailable
from lancelsm.read.result import Rows, with_first_batch
from tests.unit.flipped_bytes_worker import ANSWER, KINDS, REPORT, Outcome

MAY_END_PROCESS = ("deletion", "scan"), ("deletion", "get")  # these reads may make Lance end the process


def create_table(location: Path) -> None:
    table = lancelsm.create(
        location, [{"id": key, "v": f"v{key}", "n": key / 2} for key in range(20)], primary_key="id"
    )
    for first in (0, 5):
        table.upsert([{"id": key, "v": "new", "n": 0.0} for key in range(first, first + 10)])
        table.flush()
        if first == 0:
            table.merge(engine="inprocess")


def outcomes(location: Path) -> Iterator[Outcome]:
    intact = {path: path.read_bytes() for pattern in KINDS.values() for path in location.glob(pattern)}
    done = 0
    while True:
        code = f"from tests.unit.flipped_bytes_worker import work; work({str(location)!r}, {done})"
        ended = subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
        )
        lines = [json.loads(line) for line in ended.stdout.splitlines()]
        has_ended = len(lines) % 2 == 1
        if has_ended:
            lines.append(["", ended.stderr])
        for (kind, offset, call), (outcome, words) in zip(lines[::2], lines[1::2], strict=True):
            done += 1
            yield Outcome(kind=kind, offset=offset, call=call, outcome=outcome, words=words)
        if not has_ended:
            assert ended.returncode == 0, ended.stderr
            return
        for path, body in intact.items():
            path.write_bytes(body)


@pytest.mark.rest
def test_a_flipped_byte_gives_rows_or_corrupt_and_scrub_always_reports(tmp_path: Path) -> None:
    create_table(tmp_path / "table")

    found = list(outcomes(tmp_path / "table"))

    assert {outcome.kind for outcome in found} == set(KINDS)
    assert {outcome.kind for outcome in found if outcome.outcome == Corrupt.kind} == set(KINDS)
    for outcome in found:
        if outcome.call == "scrub":
            assert outcome.outcome in REPORT, outcome
        elif outcome.outcome or (outcome.kind, outcome.call) not in MAY_END_PROCESS:
            assert outcome.outcome in (ANSWER, Corrupt.kind), outcome
        # A damaged manifest may be reported as a wrong configuration instead
        if outcome.outcome == Corrupt.kind and outcome.kind != "manifest":
            # Files of the base have sums, so the error names the file
            names = {"base": "object data/", "deletion": "object _deletions/"}.get(outcome.kind, "object ")
            assert names in outcome.words, outcome
            assert "lancelsm scrub" in outcome.words, outcome
        if outcome.call == "scrub" and outcome.kind == "generation":
            assert outcome.outcome == REPORT[False], outcome


def test_a_deletion_file_that_would_end_the_process_is_detected_before_lance_reads_it(tmp_path: Path) -> None:
    create_table(tmp_path / "table")
    (path,) = (tmp_path / "table").glob(KINDS["deletion"])
    intact = path.read_bytes()
    assert arrow_problem(intact, rows=20, hidden=10) == ""

    problems = set()
    for offset in range(len(intact)):
        flipped = bytearray(intact)
        flipped[offset] ^= 0xFF
        problems.add(arrow_problem(bytes(flipped), rows=20, hidden=10))

    assert "it declares more memory than its rows need" in problems


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
def test_a_failed_read_is_corrupt_unless_the_store_reports_another_cause(
    native: Exception, kind: type[LsmError], condition: str | None
) -> None:
    columns = pa.schema({"id": pa.int64()})

    with (
        pytest.raises(kind) as caught,
        read_errors("it can't be read", condition=condition, columns=columns, table="t"),
    ):
        raise native

    assert caught.value.__cause__ is native


@pytest.mark.one_case
@pytest.mark.parametrize("condition", ["nope = 1", "id = = 1", "arrow_cast(id, 'Nope') = 1", "id"])
def test_a_condition_that_cannot_be_planned_is_invalid(tmp_path: Path, condition: str) -> None:
    create_table(tmp_path / "table")

    with pytest.raises(Invalid, match="the condition"):
        lancelsm.open(tmp_path / "table").scan(where=condition)


@pytest.mark.parametrize("read", [Rows.to_arrow, list, lambda rows: list(rows.to_batches())])
def test_an_error_after_the_first_rows_keeps_its_kind(read: object) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        raise Corrupt("a file is gone", object="x")

    rows = Rows(with_first_batch(pa.RecordBatchReader.from_batches(pa.schema({"id": pa.int64()}), batches())))

    with pytest.raises(Corrupt, match="a file is gone"):
        read(rows)  # type: ignore[operator]
