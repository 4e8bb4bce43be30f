"""How CPU time grows with rows, regions, generations and columns: the slope of each curve, where 1 is linear.

The slope is the exponent of a fit in logarithms. Each point is the least of several rounds.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import lancelsm
from benchmarks import tables
from benchmarks.contenders import NEVER
from benchmarks.figures import Act, Curve, cpu_seconds

_READS = 3
_SMALL = 0.1  # below, a run only shows that everything works
_KEYS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """A table with a base and generations, and a last generation that is measured."""

    base: int
    count: int
    generations: int = 0
    regions: str | None = None
    columns: int = len(tables.SCHEMA)


def run(scale: float) -> Iterator[Curve]:
    def scaled(count: int) -> int:
        return max(500, int(count * scale))

    base, count = scaled(200_000), scaled(20_000)
    shapes: dict[str, tuple[Sequence[int], Callable[[int], _Shape]]] = {
        "rows": (
            [scaled(50_000) * 2**number for number in range(5 if scale >= _SMALL else 3)],
            lambda rows: _Shape(base=rows, count=rows // 10),
        ),
        "regions": (
            (1, 4, 16, 64) if scale >= _SMALL else (1, 2, 4),
            lambda regions: _Shape(base=base, count=count, regions=f"bucket(id, {regions})"),
        ),
        "generations": (
            (1, 2, 4, 8, 16) if scale >= _SMALL else (1, 2, 4),
            lambda generations: _Shape(base=base, count=count // 4, generations=generations - 1),
        ),
        "columns": (
            (6, 12, 24, 48, 96) if scale >= _SMALL else (6, 12, 24),
            lambda columns: _Shape(base=base // 8, count=count // 8, columns=columns),
        ),
    }
    for over, (sizes, shape) in shapes.items():
        points: dict[str, list[float]] = defaultdict(list)
        for size in sizes:
            for what, took in _least(shape(size), rounds=2 if scale >= _SMALL else 1).items():
                points[what].append(took)
        for what, seconds in points.items():
            yield Curve(what=what, over=over, sizes=tuple(sizes), seconds=tuple(seconds))


def _least(shape: _Shape, *, rounds: int) -> dict[str, float]:
    measured = [_measured(shape) for _ in range(rounds)]
    return {what: min(one[what] for one in measured) for what in measured[0]}


def _measured(shape: _Shape) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        uri = Path(directory) / "table"
        table = lancelsm.create(
            uri, _wide(tables.base_rows(shape.base), shape), primary_key="id", regions=shape.regions, settings=NEVER
        )
        for number in range(shape.generations):
            table.upsert(_wide(tables.changes(shape.base, shape.count, seed=number), shape))
            table.flush()
        rows = _wide(tables.changes(shape.base, shape.count, seed=99), shape)
        keys = pa.array(np.random.default_rng(5).choice(shape.base, _KEYS, replace=False) * 2)

        def once(act: Act) -> float:
            return cpu_seconds(act, rounds=1)

        return {
            "put": once(lambda: table.upsert(rows)),
            "flush": once(table.flush),
            "scan": cpu_seconds(lambda: lancelsm.open(uri).scan().to_arrow(), rounds=_READS),
            "get": cpu_seconds(lambda: lancelsm.open(uri).get(keys), rounds=_READS),
            "merge": once(lambda: table.merge(engine="inprocess")),
        }


def _wide(rows: pa.Table, shape: _Shape) -> pa.Table:
    """Add columns of random numbers."""
    generator = np.random.default_rng(len(rows))
    for number in range(rows.num_columns, shape.columns):
        rows = rows.append_column(f"number_{number}", pa.array(generator.random(len(rows))))
    return rows
