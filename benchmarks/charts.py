"""Draw a run: the ratio to the peers of each path, and how CPU time grows."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, NullLocator
from PIL import Image

from benchmarks.figures import Curve, Figure
from benchmarks.report import shown_ratio
from benchmarks.runs import Run

# Okabe and Ito: distinguishable with every kind of colour blindness.
_BETTER, _WORSE, _LIMIT, _INK = "#0072B2", "#D55E00", "#999999", "#333333"
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKS = ("o", "s", "^", "D", "v", "P")
_RATIOS = {
    "writes.png": ("append_latency", "puts", "bulk", "merge", "spark", "regions"),
    "reads.png": ("reads", "search", "requests"),
}


def draw(run: Run, directory: Path) -> list[Path]:
    """Write a chart of the ratios of writes, one of reads, and one of growth: each if the run has something to draw."""
    made = []
    for chart, names in _RATIOS.items():
        drawn = {name: [one for one in run.figures.get(name, []) if one.drawn and one.ratio] for name in names}
        if drawn := {name: figures for name, figures in drawn.items() if figures}:
            made.append(directory / chart)
            _ratios(drawn, made[-1])
    if curves := [one for listed in run.curves.values() for one in listed]:
        made.append(directory / "growth.png")
        _growth(curves, made[-1])
    return made


def _ratios(drawn: dict[str, list[Figure]], path: Path) -> None:
    lines: list[Figure | str] = []
    for name, figures in drawn.items():
        lines += [name, *figures]
    figure, axes = plt.subplots(figsize=(9, 0.6 + 0.2 * len(lines)))
    named = ""
    for at, one in enumerate(lines):
        if isinstance(one, str):
            axes.text(-0.01, at, one, transform=axes.get_yaxis_transform(), ha="right", va="center", weight="bold")
            continue
        ratio = one.ratio or 1.0
        color = _LIMIT if one.limit else _BETTER if ratio >= 1 else _WORSE
        axes.barh(at, ratio - 1, left=1, height=0.7, color=color)
        text = f" {shown_ratio(ratio)} {one.peer_name}"
        axes.text(max(ratio, 1), at, text, ha="left", va="center", fontsize=7, color=_INK)
        label, named = ("" if one.what == named else one.what), one.what
        axes.text(-0.01, at, label, transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=8)
    axes.set_xscale("log")
    least, most = (pick([one.ratio or 1 for one in lines if not isinstance(one, str)]) for pick in (min, max))
    axes.set_xlim(min(0.5, least / 1.2), max(most, 2) * 8)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.axvline(1, color=_INK, linewidth=0.8)
    axes.set_yticks([])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(
        "The peer's cost divided by ours. Blue: ours costs less. Red: ours costs more.\n"
        "Grey: a limit, which does a part of our work only",
        fontsize=9,
        loc="left",
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(labelsize=7)
    _save(figure, path)


def _growth(curves: Sequence[Curve], path: Path) -> None:
    overs = list(dict.fromkeys(one.over for one in curves))
    figure, panels = plt.subplots(1, len(overs), figsize=(3.3 * len(overs), 3.6), squeeze=False, sharey=True)
    for axes, over in zip(panels[0], overs, strict=True):
        shown = [one for one in curves if one.over == over]
        ends = _apart([one.seconds[-1] for one in shown])
        for one, end, color, mark in zip(shown, ends, _COLORS, _MARKS, strict=False):
            axes.plot(one.sizes, one.seconds, color=color, marker=mark, markersize=4, linewidth=1.3)
            text = f" {one.what} {one.slope:.2f}"
            axes.text(one.sizes[-1] * 1.1, end, text, color=color, fontsize=8, va="center")
        axes.set(xscale="log", yscale="log")
        axes.set_xlim(shown[0].sizes[0] / 1.3, shown[0].sizes[-1] * (shown[0].sizes[-1] / shown[0].sizes[0]) ** 0.55)
        axes.set_xticks(shown[0].sizes, [f"{size:,}" for size in shown[0].sizes], fontsize=7)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_title(over, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("CPU, s", fontsize=8)
    figure.suptitle("CPU time over size; the number is the slope: 1 is linear", fontsize=9, x=0.02, ha="left")
    figure.tight_layout()
    _save(figure, path)


def _apart(values: Sequence[float], factor: float = 1.35) -> list[float]:
    """Return where to write the labels of these values, so that none covers another."""
    placed: dict[int, float] = {}
    last = 0.0
    for number, value in sorted(enumerate(values), key=lambda pair: pair[1]):
        last = placed[number] = max(value, last * factor)
    return [placed[number] for number in range(len(values))]


def _save(figure: Any, path: Path) -> None:
    """Write few colours: the file is a quarter of the size."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100, bbox_inches="tight")
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(32).save(path, optimize=True)
