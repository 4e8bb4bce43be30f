"""Write rows to files, the inverse of `files`: Parquet, CSV, newline-delimited JSON or Arrow IPC, chosen by suffix."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.full_disk import no_room, says_full
from lancelsm.errors import Invalid
from lancelsm.record.admission import with_children
from lancelsm.record.casts import as_schema, storage_type
from lancelsm.record.iso import short_years
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
        if says_full(reason):
            raise no_room(f"{file} can't be written: {reason}", file=str(file)) from error
        is_of_system = getattr(error, "errno", None) is not None  # not of the format
        remedy = "" if is_of_system else "Write JSON lines or Arrow, or leave the column out"
        raise Invalid(f"{file} can't be written: {reason}", remedy=remedy, file=str(file)) from error
    finally:
        with suppress(OSError):  # there is none, or the path itself was refused
            partial.unlink()


def _write_parquet(file: Path, schema: pa.Schema, batches: Batches) -> None:
    from pyarrow import parquet  # noqa: PLC0415 - not for writers of other formats

    schema = _without_inner_dictionaries(schema)
    with parquet.ParquetWriter(file, schema) as writer:
        _write_all(writer, (as_schema(batch, schema) for batch in batches))


def _write_arrow(file: Path, schema: pa.Schema, batches: Batches) -> None:
    schema = _without_inner_dictionaries(schema)
    grow = {at: _Dictionary(field.type) for at, field in enumerate(schema) if pa.types.is_dictionary(field.type)}
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema, options=options) as writer:
        for batch in batches:
            columns = as_schema(batch, schema).columns
            for at, dictionary in grow.items():
                columns[at] = dictionary.grown(columns[at])
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


class _Dictionary:
    """The dictionary of a column in an Arrow file, which can only grow from batch to batch."""

    def __init__(self, kind: pa.DictionaryType) -> None:
        self._values = pa.array([], kind.value_type)

    def grown(self, column: pa.DictionaryArray) -> pa.DictionaryArray:
        """Return the column with this dictionary, after the values that it lacked were added."""
        is_known = pc.is_in(column.dictionary, value_set=self._values)
        self._values = pa.concat_arrays([self._values, pc.unique(column.dictionary.filter(pc.invert(is_known)))])
        places = pc.index_in(column.dictionary, value_set=self._values)
        indices = places.take(column.indices).cast(column.type.index_type)
        return pa.DictionaryArray.from_arrays(indices, self._values)


def _without_inner_dictionaries(schema: pa.Schema) -> pa.Schema:
    """Return the schema without dictionaries inside other types: neither kind of file can have them in every case."""
    return pa.schema([field.with_type(_without_dictionaries(field.type)) for field in schema], schema.metadata)


def _without_dictionaries(kind: pa.DataType) -> pa.DataType:
    """Return a nested type without the dictionaries inside it, another type unchanged."""
    return with_children(kind, lambda field: field.with_type(_without_dictionaries(storage_type(field.type))))


def _write_arrow_stream(file: Path, schema: pa.Schema, batches: Batches) -> None:
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        _write_all(writer, batches)


def _write_csv(file: Path, schema: pa.Schema, batches: Batches) -> None:
    """Write CSV as `files` reads it: null is an empty field, empty text is a quoted empty field."""
    from pyarrow import csv  # noqa: PLC0415 - not for writers of other formats

    _check_flat(schema)
    with csv.CSVWriter(file, schema) as writer:
        _write_all(writer, _with_short_years(batches))


def csv_parts(schema: pa.Schema, batches: Batches, *, header: bool = True) -> Iterator[str]:
    """Yield the text of a CSV file as `write_file` writes it: the header, then a part for each batch.

    Raises:
        Invalid: CSV would get nested columns.
    """
    from pyarrow import csv  # noqa: PLC0415 - not for writers of other formats

    _check_flat(schema)
    for number, batch in enumerate(chain([pa.RecordBatch.from_pylist([], schema)], _with_short_years(batches))):
        sink = io.BytesIO()
        try:
            csv.write_csv(batch, sink, csv.WriteOptions(include_header=header and number == 0))
        except pa.ArrowException as error:  # such as bytes that are not UTF-8
            remedy = "Write JSON lines, Parquet or Arrow, or leave the column out"
            raise Invalid(f"the rows can't be written as CSV: {error}", remedy=remedy) from error
        yield sink.getvalue().decode("utf-8")


def _check_flat(schema: pa.Schema) -> None:
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if nested:
        raise Invalid(
            f"column {nested[0]!r} of type {schema.field(nested[0]).type} can't be written to CSV",
            remedy="Write Parquet, JSON lines or Arrow, or leave the column out",
            field=nested[0],
        )


def _with_short_years(batches: Batches) -> Batches:
    rows = 0
    for batch in batches:
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if pa.types.is_timestamp(field.type) or pa.types.is_date(field.type):
                row = pc.index(short_years(column), False).as_py()
                if row >= 0:
                    raise Invalid(
                        f"column {field.name!r}, row {rows + row}: the year can't be written to CSV",
                        remedy="Write Parquet, JSON lines or Arrow, or leave the column out",
                        field=field.name,
                        row=rows + row,
                    )
        rows += batch.num_rows
        yield batch


def _write_ndjson(file: Path, _: pa.Schema, batches: Batches) -> None:
    with file.open("w", encoding="utf-8", newline="\n") as sink:
        for batch in batches:
            sink.writelines(f"{line}\n" for line in json_lines(batch))


def _write_all(writer: Any, batches: Batches) -> None:
    for batch in batches:
        writer.write_batch(batch)
