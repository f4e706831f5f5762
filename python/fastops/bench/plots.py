"""How many times faster fastops is, as bars: one picture for each suite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from .peers import PEERS
from .results import Row
from .tables import Case, by_case
from .workloads import MODES

COLORS = dict(zip(PEERS, ("#e8702a", "#1f5fa8", "#4a9a5a", "#8a63a8"), strict=True))
BAR = 0.8 / len(PEERS)  # inches
TICKS = (0.125, 0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def draw(folder: Path, rows: Iterable[Row]) -> list[Path]:
    """Draws SUITE.png for each suite; gives the files."""
    suites: dict[str, list[Case]] = {}
    for case in by_case(rows):
        suites.setdefault(case.fastops.suite, []).append(case)
    return [_draw_suite(folder / f"{suite}.png", suite, cases) for suite, cases in suites.items()]


def _draw_suite(path: Path, suite: str, cases: Sequence[Case]) -> Path:
    """A column for each mode; a row of panels for each size where the suite has many names, else for everything."""
    matplotlib.use("Agg")
    peers = [peer for peer in PEERS if any(_speedup(case, peer) for case in cases)]
    panels: dict[str, list[Case]] = {}
    for case in cases:
        title = f"{case.fastops.size} x {case.fastops.dtype}" if suite == "elementwise" else ""
        panels.setdefault(title, []).append(case)
    longest = [max(sum(case.fastops.mode == mode for case in panel) for mode in MODES) for panel in panels.values()]
    heights = [0.9 + length * (len(peers) * BAR + 0.12) for length in longest]
    figure, grid = plt.subplots(
        len(panels),
        len(MODES),
        figsize=(13, 0.9 + sum(heights)),
        height_ratios=heights,
        squeeze=False,
        sharex=True,
        layout="constrained",
    )
    machines = {str(case.fastops.machine) for case in cases}
    figure.suptitle(f"{suite}: times faster with fastops\n", fontweight="bold")
    figure.supxlabel("\n".join(sorted(machines)), fontsize=8)
    for (title, panel), row in zip(panels.items(), grid, strict=True):
        for mode, axes in zip(MODES, row, strict=True):
            _draw_bars(axes, [case for case in panel if case.fastops.mode == mode], peers, bool(title))
            axes.set_title(f"{title}, {mode}" if title else mode, fontsize=10)
    handles, labels = grid[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="upper right", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _draw_bars(axes: Axes, cases: Sequence[Case], peers: Sequence[str], short: bool) -> None:
    """Bars from 1, to the right where fastops is faster; the quartiles as whiskers."""
    height = 0.85 / max(1, len(peers))
    for index, peer in enumerate(peers):
        found = [(place, row) for place, case in enumerate(cases) if (row := _speedup(case, peer))]
        places = [place + (index - (len(peers) - 1) / 2) * height for place, _ in found]
        ratios = [row.fastops_speedup or 1.0 for _, row in found]
        whiskers = [
            [max(0.0, ratio - (row.fastops_speedup_lower or ratio)) for ratio, (_, row) in zip(ratios, found, strict=True)],
            [max(0.0, (row.fastops_speedup_upper or ratio) - ratio) for ratio, (_, row) in zip(ratios, found, strict=True)],
        ]
        widths = [ratio - 1 for ratio in ratios]
        axes.barh(places, widths, height, left=1, xerr=whiskers, color=COLORS[peer], label=f"vs {peer}", ecolor="#555555")
        for place, ratio in zip(places, ratios, strict=True):
            axes.annotate(
                f"{ratio:.2f}",
                (max(ratio, 1.0), place),
                (6, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
    axes.set_yticks(range(len(cases)), [_label(case, short) for case in cases], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(matplotlib.ticker.FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.axvline(1, color="#333333", linewidth=1)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _speedup(case: Case, peer: str) -> Row | None:
    """The row of a peer that has a ratio."""
    row = case.rows.get(peer)
    return row if row is not None and row.fastops_speedup is not None else None


def _label(case: Case, short: bool) -> str:
    row = case.fastops
    return row.name if short else f"{row.name}, {row.size}, {row.dtype}"
