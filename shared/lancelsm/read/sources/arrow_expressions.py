"""Take an expression of pyarrow apart.

Pyarrow has no calls for that, but it serializes expressions as a record batch with one row: the metadata of the schema
has calls, names and ends of calls in order, and the columns have the literals. The metadata has some keys many times,
so it is read through Arrow's C interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class FieldNode:
    """A column; `nested`: a field inside of it."""

    name: str
    nested: bool = False


@dataclass(frozen=True, slots=True)
class LiteralNode:
    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class CallNode:
    """A call of a function of pyarrow."""

    function: str
    arguments: tuple[Node, ...]
    options: dict[str, Any] = field(default_factory=dict)


Node = FieldNode | LiteralNode | CallNode


def taken_apart(expression: Any) -> Node | None:
    """Return the tree of an expression; None if this release of pyarrow serializes it in an unknown form."""
    try:
        _, (serialized, *_) = expression.__reduce__()
        batch = pa.ipc.open_file(serialized).get_batch(0)
        steps = iter(_metadata(batch.schema))
        tree = _node(next(steps), steps, batch)
        return tree if next(steps, None) is None else None
    except (pa.ArrowException, AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError):
        return None


def _node(step: tuple[str, str], steps: Iterator[tuple[str, str]], batch: pa.RecordBatch) -> Node:
    kind, value = step
    if kind == "field_ref":
        return FieldNode(value)
    if kind == "nested_field_ref":
        names = [next(steps) for _ in range(int(value))]
        return FieldNode(names[0][1], nested=True)
    if kind == "literal":
        return LiteralNode(batch.column(int(value))[0])
    if kind != "call":
        raise ValueError(f"unknown part {kind!r}")
    arguments: list[Node] = []
    options: dict[str, Any] = {}
    for inner in steps:
        if inner == ("end", value):
            return CallNode(value, tuple(arguments), options)
        if inner[0] == "options":
            options = dict(batch.column(int(inner[1]))[0].items())
        else:
            arguments.append(_node(inner, steps, batch))
    raise ValueError("a call has no end")


class _Schema(ctypes.Structure):
    """The start of `struct ArrowSchema`."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the metadata of a schema in order: a count, then for each key and each value its length and its bytes."""
    capsule = schema.__arrow_c_schema__()  # owns the memory
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    at = _Schema.from_address(pointer(capsule, b"arrow_schema") or 0).metadata

    def number() -> int:
        nonlocal at
        found = ctypes.c_int32.from_address(at).value
        at += 4
        return found

    def text() -> str:
        nonlocal at
        length = number()
        found = ctypes.string_at(at, length)
        at += length
        return found.decode()

    return [(text(), text()) for _ in range(number())] if at else []
