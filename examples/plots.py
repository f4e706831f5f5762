"""What the examples' plots share: the colours of the two sides, bars, and a plain look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from common import FASTOPS, PYTORCH, Row
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

COLORS = {FASTOPS: "#1f5fa8", PYTORCH: "#e8702a"}
# PyTorch's thin dashes on top of fastops's broad line: both are seen where they coincide.
LINES: dict[str, dict[str, Any]] = {
    FASTOPS: {"color": COLORS[FASTOPS], "linewidth": 3.0, "alpha": 0.6},
    PYTORCH: {"color": COLORS[PYTORCH], "linewidth": 1.3, "linestyle": (0, (4, 1.5))},
}


def new_figure(title: str, width: float, height: float) -> Figure:
    """A figure that needs no display."""
    matplotlib.use("Agg")
    figure = plt.figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    figure.suptitle(title, fontsize=14, fontweight="bold")
    return figure


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=130)
    plt.close(figure)


def tidy(axes: Axes, legend: bool = True) -> None:
    """A light grid, no box, and the legend where it hides least."""
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(frameon=False)


def bars(axes: Axes, row: Row, title: str, unit: str) -> None:
    """A bar for each side, with the quartiles where there are several samples."""
    sides: Sequence[str] = (FASTOPS, PYTORCH)
    medians = [row.median(side) for side in sides]
    drawn = axes.bar(sides, medians, color=[COLORS[side] for side in sides], width=0.6, alpha=0.85)
    if len(row.samples[FASTOPS]) > 1:
        spread = [[abs(row.quartiles(side)[end] - row.median(side)) for side in sides] for end in (0, 1)]
        axes.errorbar(sides, medians, spread, fmt="none", ecolor="#333333", capsize=4)
    texts = [row.show(median) for median in medians]
    axes.bar_label(drawn, texts, label_type="center", color="white", fontweight="bold")
    axes.set(title=title, ylabel=unit)
    tidy(axes, legend=False)
    axes.grid(visible=False, axis="x")


@contextmanager
def curves_beside_times(title: str, times: Row, times_title: str, path: Path) -> Iterator[Axes]:
    """A figure with axes for curves, which are given, and bars of the seconds that something takes."""
    figure = new_figure(title, 12, 4.5)
    curves, time = figure.subplots(1, 2, width_ratios=(2, 1))
    yield curves
    tidy(curves)
    bars(time, times, times_title, "seconds (median, quartiles)")
    save(figure, path)
