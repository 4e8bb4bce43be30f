"""Check a caller's condition and prepare it for Lance.

Lance's own parser decides what a condition means. Lance pastes the text behind `SELECT .. WHERE` and ignores what
follows a complete condition, such as `LIMIT 1`. So Lance gets each condition in parentheses, where such text is an
error. A small tokenizer comes first. It refuses text that would leave the parentheses, text on which Lance's parser
panics, and Lance's own row numbers. It casts a literal to the type of the column that the literal is compared with,
where Lance does not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import lance
import pyarrow as pa

from lancelsm.common.panics import is_panic
from lancelsm.dataset.condition_tokens import Kind, Token, read_tokens, refused
from lancelsm.dataset.literals import literals
from lancelsm.dataset.native import invalid_condition, read_errors, text_of
from lancelsm.errors import Invalid
from lancelsm.record.batches import without_slices
from lancelsm.record.casts import as_schema
from lancelsm.record.ttl import Expiry
from lancelsm.record.values import json_column

# Names that Lance gives to its row numbers and versions, and to no column. They differ between levels of a table.
_OF_LANCE: Final = frozenset(
    {"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"}
)
_SCORES: Final = ("_distance", "_score")
_COMPARISONS: Final = frozenset({"=", "==", "<>", "!=", "<", "<=", ">", ">="})
_STARTS: Final = frozenset({"(", "and", "or", "not"})  # an operand may begin after these
_PREDICATES: Final = frozenset({"in", "between", "like", "ilike", "is", "not"})
_ENDS: Final = frozenset({")", "and", "or"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition that Lance can plan.

    Args:
        text: the caller's; empty if the caller gave none, and only rows that have expired are left out.
        sql: what Lance gets.
        expiry: which rows have expired: they never match. `sql` says so too.
    """

    text: str
    sql: str
    expiry: Expiry | None = None

    @property
    def is_of_caller(self) -> bool:
        """Whether more than expired rows is left out."""
        return bool(self.text)

    def matching(self, rows: pa.Table, *, table: str) -> pa.Table:
        """Return the rows for which the condition is true, in the same order.

        Raises:
            Invalid: the condition fails on a row.
        """
        if self.expiry is not None:
            rows = self.expiry.live(rows)
        if rows.num_rows == 0 or not self.is_of_caller:
            return rows
        plain = pa.schema([pa.field(field.name, field.type) for field in rows.schema])
        with read_errors(f"the condition {self.text!r} can't be applied", condition=self.text, table=table):
            written = pa.Table.from_batches(map(without_slices, as_schema(rows, plain).to_batches()), schema=plain)
            # Each handle has its own store in memory, which is freed with the handle.
            dataset = lance.write_dataset(written, "memory://rows", max_rows_per_file=rows.num_rows)
            offsets = dataset.scanner(columns=[], filter=self.sql, with_row_id=True).to_table().column("_rowid")
        return rows.take(offsets)


def unexpired(where: Condition | None, expiry: Expiry | None, columns: pa.Schema) -> Condition | None:
    """Return the condition under which a row matches and has not expired; None if every row does.

    Args:
        where: over these columns; None for every row.
        expiry: which rows have expired; None if none have.
    """
    if expiry is None:
        return where
    (newest,) = literals(expiry.newest_value(columns))
    live = f"(`{expiry.column}` IS NULL OR `{expiry.column}` > {newest})"
    if where is None:
        return Condition(text="", sql=live, expiry=expiry)
    return Condition(text=where.text, sql=f"({where.sql} AND {live})", expiry=expiry)


def read_condition(text: str, *, columns: pa.Schema, table: str) -> Condition:
    """Check a condition, and prepare it for Lance.

    Args:
        text: SQL in Lance's dialect: text in single quotes, and backticks around a column name that is not a plain
            word. If a literal is compared with a column of dates, times, timestamps, durations, decimals, floats or
            64 bit integers, it may be written as in JSON rows, and gets the type of the column.
        columns: the columns that the condition may use.
        table: its URI, for errors.

    Raises:
        Invalid: the text is not a condition over these columns, or has more text after one. The error names the
            position, counted from 1.
    """
    tokens = _checked_tokens(text, columns, table)
    condition = Condition(text=text, sql=_wrapped(_with_casts(tokens, columns, table)))
    problem = _problem(condition.sql, columns)
    if problem:
        raise _unplanned(text, tokens, problem, columns, table)
    return condition


def checked_sql(text: str, *, field: pa.Field, columns: pa.Schema, table: str) -> str:
    """Return what Lance gets for an expression over these columns: the same checks and casts as for a condition.

    Args:
        field: the column that the expression sets. A literal alone gets its type, as if it was compared with it.

    Raises:
        Invalid: the text is refused before Lance reads it.
    """
    tokens = _checked_tokens(text, columns, table)
    solid = [token for token in tokens if token.kind is not Kind.SPACE]
    literal = _literal(solid, 0)
    if literal is not None and literal[1] == len(solid):
        value = "".join(token.text for token in solid)
        sql = _cast(value, field, text, solid[0].start, table)
        if pa.types.is_floating(field.type) and not value.startswith("'") and _overflows(value, field.type):
            raise _no_value(value, field, text, solid[0].start, table)
        if sql is not None:
            return f"({sql})"
    return _wrapped(_with_casts(tokens, columns, table))


def _checked_tokens(text: str, columns: pa.Schema, table: str) -> list[Token]:
    tokens = list(read_tokens(text, table))
    _check_parentheses(tokens, table)
    _check_names(tokens, columns, table)
    return tokens


def _check_parentheses(tokens: Sequence[Token], table: str) -> None:
    text = "".join(token.text for token in tokens)
    open_ones: list[Token] = []
    for token in tokens:
        if token.word == "(":
            open_ones.append(token)
        elif token.word == ")":
            if not open_ones:
                raise refused("the parenthesis ) closes none", text, token.start, table)
            open_ones.pop()
    if open_ones:
        raise refused("the parenthesis ( is not closed", text, open_ones[-1].start, table)


def _check_names(tokens: Sequence[Token], columns: pa.Schema, table: str) -> None:
    text = "".join(token.text for token in tokens)
    solid = [token for token in tokens if token.kind is not Kind.SPACE]
    names = {name.lower() for name in columns.names}
    for at, token in enumerate(solid):
        if token.kind is Kind.QUOTED:
            name = token.text[1:-1]
            # Standard SQL reads a column here. Lance reads text, so the condition would silently be wrong.
            if name.lower() in names or _is_compared_as_column(solid, at, columns):
                raise Invalid(
                    f'"{name}" at position {token.start + 1} is text in a condition, not a column',
                    remedy=f"Write `{name}` for the column, '{name}' for the text",
                    table=table,
                    field=name,
                )
        name = token.text.strip("`") if token.kind in (Kind.WORD, Kind.NAME) else ""
        if name.lower() in _OF_LANCE:
            raise refused(f"{name} belongs to Lance and is not a column of the table", text, token.start, table)


def _is_compared_as_column(solid: Sequence[Token], at: int, columns: pa.Schema) -> bool:
    """Return whether text in double quotes is where a column is expected: on the left, and not compared with one."""
    if at and solid[at - 1].word not in _STARTS:
        return False
    if _word(solid, at + 1) in _COMPARISONS:
        return _column(solid, at + 2, columns) is None
    return _word(solid, at + 1) in _PREDICATES


def _with_casts(tokens: Sequence[Token], columns: pa.Schema, table: str) -> list[Token]:
    """Return the tokens, with a cast around each literal that Lance does not read as a value of its column."""
    text = "".join(token.text for token in tokens)
    solid = [token for token in tokens if token.kind is not Kind.SPACE]
    casts: dict[int, str] = {}  # by where the literal begins; its sign, if any, is replaced with it
    dropped: set[int] = set()

    def cast(literal: tuple[int, int], field: pa.Field) -> None:
        parts = solid[literal[0] : literal[1]]
        sql = _cast("".join(part.text for part in parts), field, text, parts[0].start, table)
        if sql is not None:
            casts[parts[0].start] = sql
            dropped.update(part.start for part in parts[1:])

    for at in range(len(solid)):
        if at and solid[at - 1].word not in _STARTS:
            continue
        column = _column(solid, at, columns)
        if column is not None:
            end, field = column
            for compared in _compared(solid, end):
                cast(compared, field)
            continue
        literal = _literal(solid, at)
        if literal is not None and _word(solid, literal[1]) in _COMPARISONS:
            column = _column(solid, literal[1] + 1, columns)
            if column is not None and _word(solid, column[0]) in _ENDS | {""}:
                cast(literal, column[1])
    return [
        Token(token.kind, casts.get(token.start, token.text), token.start)
        for token in tokens
        if token.start not in dropped
    ]


def _word(solid: Sequence[Token], at: int) -> str:
    """Return the word or symbol at this token; empty past the end."""
    return solid[at].word if at < len(solid) else ""


def _column(solid: Sequence[Token], at: int, columns: pa.Schema) -> tuple[int, pa.Field] | None:
    """Return the column or field of a struct that the tokens from here on name, and the index after them."""
    fields: list[pa.Field] = list(columns)
    field: pa.Field | None = None
    while at < len(solid) and solid[at].kind in (Kind.WORD, Kind.NAME):
        name = solid[at].text.strip("`")
        same = [one for one in fields if one.name == name] or [
            one for one in fields if one.name.lower() == name.lower()
        ]
        if len(same) != 1:
            return None
        field, at = same[0], at + 1
        if _word(solid, at) != ".":
            return None if _word(solid, at) in ("(", "[") else (at, field)
        fields, at = list(field.type) if pa.types.is_struct(field.type) else [], at + 1
    return None


def _literal(solid: Sequence[Token], at: int) -> tuple[int, int] | None:
    """Return the literal that begins at this token, as a range of tokens: text, or a number with or without a sign."""
    start = at
    if _word(solid, at) in ("-", "+") and at + 1 < len(solid) and solid[at + 1].kind is Kind.NUMBER:
        at += 1
    elif at >= len(solid) or solid[at].kind not in (Kind.TEXT, Kind.NUMBER):
        return None
    return start, at + 1


def _compared(solid: Sequence[Token], at: int) -> Iterator[tuple[int, int]]:
    """Yield the literals with which the column before this token is compared."""
    if _word(solid, at) in _COMPARISONS:
        literal = _literal(solid, at + 1)
        if literal is not None and _word(solid, literal[1]) in _ENDS | {""}:
            yield literal
        return
    if _word(solid, at) == "not":
        at += 1
    if _word(solid, at) == "between":
        first = _literal(solid, at + 1)
        if first is not None and _word(solid, first[1]) == "and":
            yield first
            last = _literal(solid, first[1] + 1)
            if last is not None and _word(solid, last[1]) in _ENDS | {""}:
                yield last
    elif _word(solid, at) == "in" and _word(solid, at + 1) == "(":
        at += 2
        while (item := _literal(solid, at)) is not None and _word(solid, item[1]) in (",", ")"):
            yield item
            at = item[1] + 1


def _cast(literal: str, field: pa.Field, text: str, start: int, table: str) -> str | None:
    """Return SQL that gives a literal the type of a column; None if Lance itself reads the literal so."""
    kind = field.type
    is_text = literal.startswith("'")
    if pa.types.is_integer(kind):
        return literals(pa.array([int(literal)], pa.int64()))[0] if not is_text and literal == str(-(1 << 63)) else None
    if not (
        (pa.types.is_floating(kind) and (is_text or kind.bit_width < 64))
        or pa.types.is_decimal(kind)
        or pa.types.is_duration(kind)
        or (pa.types.is_temporal(kind) and is_text)
    ):
        return None
    try:
        if pa.types.is_duration(kind):
            value = pa.array([int(literal.strip("'"))], pa.int64()).cast(kind)
        elif pa.types.is_floating(kind) and not is_text:
            value = pa.array([float(literal)], pa.float64()).cast(kind)
        else:
            given = literal[1:-1].replace("''", "'") if is_text else Decimal(literal)
            value = json_column([given], pa.field(field.name, kind))
    except (Invalid, ValueError, ArithmeticError, pa.ArrowInvalid) as error:
        raise _no_value(literal, field, text, start, table) from error
    return literals(value)[0]


def _overflows(number: str, kind: pa.DataType) -> bool:
    return math.isinf(pa.array([float(number)], pa.float64()).cast(kind)[0].as_py())


def _no_value(literal: str, field: pa.Field, text: str, start: int, table: str) -> Invalid:
    return Invalid(
        f"the condition {text!r} can't be applied: position {start + 1}: {literal:.80} is not a value of column "
        f"{field.name!r} of type {field.type}",
        remedy="Write the value as rows in JSON have it, without more digits than the column has",
        redacted="a value in a condition is not one of its column's type",
        table=table,
        field=field.name,
    )


def _wrapped(tokens: Sequence[Token]) -> str:
    # Comments are left out, so it does not matter where Lance thinks that a comment ends.
    return f"({''.join(' ' if one.kind is Kind.SPACE else one.text for one in tokens)})"


def _problem(sql: str, columns: pa.Schema) -> str:
    """Return why Lance can't plan a condition over these columns; empty if it can."""
    plain = pa.schema([pa.field(column.name, column.type) for column in columns])
    try:
        # Each handle has its own store in memory, which is freed with the handle.
        lance.write_dataset(plain.empty_table(), "memory://plan").scanner(filter=sql).explain_plan()
    except BaseException as cause:
        if not isinstance(cause, (OSError, ValueError, RuntimeError)) and not is_panic(cause):
            raise
        return described_problem(cause)
    return ""


def described_problem(cause: BaseException) -> str:
    """Return why Lance can't plan a condition or an expression, for people.

    Lance's text repeats the whole statement, and lists its own row numbers and scores among the columns.
    """
    problem = re.sub(r"^.*SELECT .* FROM t(?: WHERE .*)? \((sql parser error: .*)\)$", r"\1", text_of(cause))
    if "AggregateFunction" in problem:
        return "an aggregate has no value for a single row"
    return re.sub(rf", (?:{'|'.join((*_OF_LANCE, *_SCORES))})\b", "", problem)


def _unplanned(text: str, tokens: Sequence[Token], problem: str, columns: pa.Schema, table: str) -> Invalid:
    """Build the error for a condition that Lance can't plan. It names where text after a complete condition begins."""
    solid = [token for token in tokens if token.kind is not Kind.SPACE]
    found = re.search(r"found: ([^\s)]+)", problem)
    for at, token in enumerate(solid):
        complete = [one for one in tokens if one.start < token.start]
        if at and found and token.text == found[1] and not _problem(_wrapped(complete), columns):
            why = f"{text[token.start :]!r} follows a complete condition"
            remedy = "Give one condition and nothing else; the number of rows is the option limit of a scan"
            return refused(why, text, token.start, table, remedy=remedy)
    return invalid_condition(text, problem, table=table)
