"""Read rows from files: Parquet, CSV, newline-delimited JSON or Arrow IPC, chosen by suffix.

The values of CSV and JSON files are parsed to the type of the table's column. `record.normalize` checks whether all
columns are present and fit.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lancelsm.common.json_text import finite, parse_json
from lancelsm.errors import Invalid
from lancelsm.record.admission import MOST_LEVELS
from lancelsm.record.casts import attempt, whole
from lancelsm.record.shapes import SAME_COLUMNS
from lancelsm.record.values import json_column

_ONE_PER_LINE: Final = "Give one object in each line; jq -c '.[]' writes an array like this"
_ARROW_FILE_MAGIC: Final = b"ARROW1"
_ARROW_STREAM_END: Final = b"\xff\xff\xff\xff\0\0\0\0"


def read_file(path: str, *, schema: pa.Schema | None) -> pa.Table:
    """Read the rows of a file.

    Args:
        path: a local file; its suffix selects the format: .parquet .csv .ndjson .jsonl .json .arrow .arrows .ipc
            .feather
        schema: types of the columns in CSV and JSON, by name. Other columns have inferred types; without a schema, all
            have.

    Raises:
        Invalid: the file does not exist, is empty or truncated, has another format, has text that is not UTF-8, or has
            a value that can't be parsed. The error names the file, and column and row if the format gives them.
    """
    readers: dict[str, Callable[[Path, pa.Schema | None], pa.Table]] = {
        ".parquet": _read_parquet,
        ".csv": _read_csv,
        ".ndjson": _read_ndjson,
        ".jsonl": _read_ndjson,
        ".json": _read_ndjson,
        ".arrow": _read_arrow,
        ".arrows": _read_arrow,
        ".ipc": _read_arrow,
        ".feather": _read_arrow,
    }
    file = Path(path)
    read = readers.get(file.suffix.lower())
    if read is None:
        known = " ".join(readers)
        raise Invalid(f"the suffix of {path} is not a known format", remedy=f"Use one of {known}", file=path)
    try:
        if file.stat().st_size == 0 and read is not _read_ndjson:  # an empty JSON lines file has no rows
            raise Invalid("the file is empty", remedy="Check how the file was written", file=path)
        return read(file, schema)
    except FileNotFoundError as error:
        raise Invalid(f"there is no file {path}", remedy="Check the path", file=path) from error
    except (OSError, pa.ArrowException, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise Invalid(
            f"{path} can't be read as {file.suffix[1:]}: {reason}",
            remedy="Check that the file has the format of its suffix",
            file=path,
        ) from error
    except Invalid as error:
        error.where["file"] = path
        raise


def read_ndjson(lines: Iterable[bytes], *, schema: pa.Schema | None) -> pa.Table:
    """Read one JSON object per line (see `json_rows`); skip blank lines. Raise `Invalid` with the line number."""
    rows = []
    exact = schema is not None and has_decimal(schema)
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(BOM_UTF8) if number == 1 else line
        if not text.strip():
            continue
        try:
            row = parse_json(text, parse_float=Decimal if exact else finite)
        except ValueError as error:
            raise Invalid(f"line {number} is not JSON in UTF-8: {error}", remedy=_ONE_PER_LINE, line=number) from error
        if not isinstance(row, dict):
            raise Invalid(f"line {number} is not a JSON object", remedy=_ONE_PER_LINE, line=number)
        rows.append(row)
    return json_rows(rows, schema=schema)


def json_keys(values: Sequence[Any], *, schema: pa.Schema) -> pa.Table:
    """Convert keys, as `json.loads` returns them, to a table.

    Args:
        values: objects of the key columns, or plain values if the key is one column.
        schema: the key columns.

    Raises:
        Invalid: a key has another form, or a value does not fit its column.
    """
    rows = []
    for value in values:
        if not isinstance(value, Mapping) and len(schema) != 1:
            raise Invalid(f"the key has the columns {', '.join(schema.names)}", remedy="Give keys as JSON objects")
        rows.append(dict(value) if isinstance(value, Mapping) else {schema.names[0]: value})
    return json_rows(rows, schema=schema)


def json_rows(rows: list[dict[str, Any]], *, schema: pa.Schema | None) -> pa.Table:
    """Convert rows, as `json.loads` returns them, to a table.

    Args:
        rows: with a schema, all rows must have the same columns; without a schema, a missing value is null.
        schema: types of columns by name; values are parsed with `values.json_column`. Types of other columns are
            inferred.

    Raises:
        Invalid: rows have different columns, or a value does not fit. The error names column and row.
    """
    if not rows:
        return pa.table({}) if schema is None else schema.empty_table()
    names = list({name: None for row in rows for name in row})
    arrays = []
    for name in names:
        if schema is None:
            arrays.append(_inferred([row.get(name) for row in rows], name))
            continue
        values = [row[name] for row in rows if name in row]
        if len(values) < len(rows):
            number = next(number for number, row in enumerate(rows) if name not in row)
            raise Invalid(f"column {name!r} is missing in row {number}", remedy=SAME_COLUMNS, field=name, row=number)
        index = schema.get_field_index(name)
        arrays.append(
            json_column(values, schema.field(index).with_nullable(True)) if index >= 0 else _inferred(values, name)
        )
    return pa.table(arrays, names=names)


def _inferred(values: list[Any], name: str) -> pa.Array:
    return attempt(values, pa.array, pa.field(name, pa.null()))


def has_decimal(fields: Iterable[pa.Field]) -> bool:
    """Return whether a number may need more digits than a double has."""
    return any(pa.types.is_decimal(kind) for field in fields for kind in _leaves(field.type))


def _leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    if pa.types.is_nested(kind):
        for i in range(kind.num_fields):
            yield from _leaves(kind.field(i).type)
    else:
        yield kind


def _read_ndjson(file: Path, schema: pa.Schema | None) -> pa.Table:
    with file.open("rb") as lines:
        return read_ndjson(lines, schema=schema)


def _read_parquet(file: Path, _: pa.Schema | None) -> pa.Table:
    from pyarrow import parquet  # noqa: PLC0415 - not for writers of other formats

    with parquet.ParquetFile(file, schema_depth_limit=3 * MOST_LEVELS) as reader:  # a list has two levels in Parquet
        return reader.read()


def _read_arrow(file: Path, _: pa.Schema | None) -> pa.Table:
    with pa.OSFile(str(file)) as source:
        if source.read(len(_ARROW_FILE_MAGIC)) == _ARROW_FILE_MAGIC:
            return pa.ipc.open_file(source).read_all()
        source.seek(max(0, source.size() - len(_ARROW_STREAM_END)))
        if source.read() != _ARROW_STREAM_END:
            raise Invalid(
                "the Arrow stream has no end: it is truncated, or not an Arrow stream", remedy="Write the file again"
            )
        source.seek(0)
        return pa.ipc.open_stream(source).read_all()


def _read_csv(file: Path, schema: pa.Schema | None) -> pa.Table:
    """An empty field is null, a quoted empty field is empty text; no other text is null."""
    wanted = {} if schema is None else {field.name: field.with_type(_plain(field.type)) for field in schema}
    table = _parse_csv(file, {name: _csv_type(field.type) for name, field in wanted.items()})
    arrays = []
    for parsed_field, parsed in zip(table.schema, table.columns, strict=True):
        field = wanted.get(parsed_field.name, parsed_field)
        if field is parsed_field and pa.types.is_binary(field.type):
            raise Invalid(f"column {field.name!r} is not UTF-8", remedy="Write the file in UTF-8", field=field.name)
        values = whole(parsed)
        if pa.types.is_decimal(field.type):
            values = pc.utf8_trim_whitespace(values)  # as Arrow does for other numbers
        if pa.types.is_decimal(field.type) and _has_many_digits(values, field.type):
            array = json_column(values.to_pylist(), field.with_nullable(True))
        else:
            array = attempt(values, partial(pc.cast, target_type=field.type), field)
        if pa.types.is_floating(field.type) and pc.any(pc.is_inf(array)).as_py():
            _check_infinity(file, field, array)
        arrays.append(array)
    return pa.table(arrays, names=table.schema.names)


def _parse_csv(file: Path, types: dict[str, pa.DataType], only: list[str] | None = None) -> pa.Table:
    from pyarrow import csv  # noqa: PLC0415 - not for writers of other formats

    return csv.read_csv(
        file,
        # With one thread, errors have row numbers; with one block, a row may have any size.
        read_options=csv.ReadOptions(use_threads=False, block_size=min(max(file.stat().st_size, 1 << 20), 1 << 30)),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=types,
            include_columns=only,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """Return the type for Arrow's CSV reader: text for types that it can't parse but Arrow can cast from text."""
    kind = _plain(kind)
    return pa.string() if pa.types.is_float16(kind) or pa.types.is_decimal(kind) else kind


def _has_many_digits(texts: pa.Array, kind: pa.DataType) -> bool:
    """Return whether Arrow may make another number of a text, or crash: see `values._fits_decimal`."""
    digits = max(0, kind.scale) + 5
    return bool(pc.any(pc.match_substring_regex(texts, f"[eE]|[.][0-9]{{{digits}}}")).as_py())


def _check_infinity(file: Path, field: pa.Field, numbers: pa.Array) -> None:
    """Refuse an infinity that is not written as one: Arrow parses numbers out of range to infinity."""
    texts = _parse_csv(file, {field.name: pa.string()}, [field.name]).column(0)
    for row in pc.indices_nonzero(pc.is_inf(numbers).fill_null(False)).to_pylist():
        text = texts[row].as_py()
        if not text.strip(" +-").lower().startswith("inf"):
            raise Invalid(
                f"column {field.name!r}, row {row}: {text} is out of the range of {field.type}",
                remedy="Correct the value",
                redacted=f"column {field.name!r}, row {row}: the number is out of the range of {field.type}",
                field=field.name,
                row=row,
            )


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
