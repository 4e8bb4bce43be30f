"""Write rows to files, the inverse of `files`: Parquet, CSV, newline-delimited JSON or Arrow IPC, chosen by suffix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from lancelsm.errors import Invalid
from lancelsm.record.json_lines import json_lines

Batches = Iterable[pa.RecordBatch]


def write_file(path: str, schema: pa.Schema, batches: Batches) -> int:
    """Write batches to a local file; replace an existing file. Return the number of rows.

    Args:
        path: its suffix selects the format: .parquet .csv .ndjson .jsonl .json .arrow .arrows .ipc .feather

    Raises:
        Invalid: the suffix is unknown, the file can't be written, or CSV would get nested columns.

    A crash leaves the old file, if there was one, and perhaps a `.partial` file next to it.
    """
    writers: dict[str, Callable[[Path, pa.Schema, Batches], None]] = {
        ".parquet": _write_parquet,
        ".csv": _write_csv,
        ".ndjson": _write_ndjson,
        ".jsonl": _write_ndjson,
        ".json": _write_ndjson,
        ".arrow": _write_arrow,
        ".arrows": _write_arrow_stream,
        ".ipc": _write_arrow,
        ".feather": _write_arrow,
    }
    file = Path(path)
    write = writers.get(file.suffix.lower())
    if write is None:
        raise Invalid(
            f"the suffix of {path} is not a known format", remedy=f"Use one of {' '.join(writers)}", file=path
        )
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            yield batch

    with _replacing(file) as partial:
        write(partial, schema, counted())
    return rows


@contextmanager
def _replacing(file: Path) -> Iterator[Path]:
    partial = file.with_name(f"{file.name}.partial")
    try:
        yield partial
        partial.replace(file)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise Invalid(f"{file} can't be written: {reason}", file=str(file)) from error
    finally:
        partial.unlink(missing_ok=True)


def _write_parquet(file: Path, schema: pa.Schema, batches: Batches) -> None:
    from pyarrow import parquet  # noqa: PLC0415 - not for writers of other formats

    with parquet.ParquetWriter(file, schema) as writer:
        _write_all(writer, batches)


def _write_arrow(file: Path, schema: pa.Schema, batches: Batches) -> None:
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        _write_all(writer, batches)


def _write_arrow_stream(file: Path, schema: pa.Schema, batches: Batches) -> None:
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        _write_all(writer, batches)


def _write_csv(file: Path, schema: pa.Schema, batches: Batches) -> None:
    """Write CSV as `files` reads it: null is an empty field, empty text is a quoted empty field."""
    from pyarrow import csv  # noqa: PLC0415 - not for writers of other formats

    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if nested:
        raise Invalid(
            f"column {nested[0]!r} of type {schema.field(nested[0]).type} can't be written to CSV",
            remedy="Write Parquet, JSON lines or Arrow, or leave the column out",
            field=nested[0],
        )
    with csv.CSVWriter(file, schema) as writer:
        _write_all(writer, batches)


def _write_ndjson(file: Path, _: pa.Schema, batches: Batches) -> None:
    with file.open("w", encoding="utf-8", newline="\n") as sink:
        for batch in batches:
            sink.writelines(f"{line}\n" for line in json_lines(batch))


def _write_all(writer: Any, batches: Batches) -> None:
    for batch in batches:
        writer.write_batch(batch)
