"""Write the results of a run as tables: one for each benchmark, with a column for each peer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.figures import Curve, Figure
from benchmarks.runs import Run


def line(result: Figure | Curve) -> str:
    """Return a result as one line of the progress of a run."""
    if isinstance(result, Curve):
        points = ", ".join(f"{size:,}: {_time(took)}" for size, took in zip(result.sizes, result.seconds, strict=True))
        return f"  {result.what + ' over ' + result.over:<58}slope {result.slope:5.2f}   {points}"
    ratio = "" if result.ratio is None else f" {result.ratio:7.2f}x"
    peer = "" if result.peer is None else f"{result.peer:10.4g}{ratio} {result.peer_name}"
    held = "" if result.held is None else f"held table {result.held:.4g} {result.unit}"
    rest = "; ".join(part for part in (peer, held, result.how) if part)
    return f"  {result.what:<58}{result.ours:10.4g} {result.unit:<9}{rest}"


def pages(run: Run) -> str:
    """Return all tables of a run as Markdown."""
    parts = [heading(run)]
    for name in {**run.figures, **run.curves}:
        parts += [f"## {name}", *tables(run, name)]
    parts += [f"**{name}**: {failure}" for name, failure in run.failures.items()]
    return "\n\n".join(parts) + "\n"


def heading(run: Run) -> str:
    packages = ", ".join(f"{name} {release}" for name, release in run.packages.items())
    return f"Measured {run.date} at commit `{run.commit}`, scale {run.scale:g}: {run.machine}; {packages}."


def tables(run: Run, name: str) -> Iterator[str]:
    """Yield the tables of one benchmark."""
    if figures := run.figures.get(name):
        yield _figures(figures)
    if curves := run.curves.get(name):
        yield _curves(curves)


def _figures(figures: Sequence[Figure]) -> str:
    peers = list(dict.fromkeys(one.peer_name for one in figures if one.peer_name))
    rows: dict[str, dict[str, Figure]] = {}
    for one in figures:
        rows.setdefault(one.what, {})[one.peer_name] = one
    held = ["ours, held table"] if any(one.held is not None for one in figures) else []
    lines = [["what", "ours", *held, *peers]]
    for what, cells in rows.items():
        first = next(iter(cells.values()))
        ours = [_number(first.ours, first.unit)]
        if held:
            ours.append("" if first.held is None else _number(first.held, first.unit))
        lines.append([what, *ours, *(_cell(cells.get(peer)) for peer in peers)])
    return _markdown(lines)


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    if figure.peer is None:
        return "failed" if "failed" in figure.how else ""
    ratio = "" if figure.ratio is None else f" ({shown_ratio(figure.ratio)})"
    return _number(figure.peer, figure.unit) + ratio


def shown_ratio(value: float) -> str:
    return f"{value:.0f}x" if value >= 10 else f"{value:.2g}x"


def _curves(curves: Sequence[Curve]) -> str:
    lines = [["what", "over", "from", "to", "slope"]]
    for one in curves:
        ends = (f"{one.sizes[end]:,}: {_time(one.seconds[end])}" for end in (0, -1))
        lines.append([one.what, one.over, *ends, f"{one.slope:.2f}"])
    return _markdown(lines)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    ruled = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in ruled)


def _number(value: float, unit: str) -> str:
    if unit == "s":
        return _time(value)
    if unit == "ms":
        return _time(value / 1000)
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1 or unit == "us":
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 1000 else f"{seconds * factor:.0f} {unit}"
    raise AssertionError
