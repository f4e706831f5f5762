"""How many times faster fastops is, as bars: one picture for each suite, drawn from the rows of the CSV file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .peers import PEERS
from .results import Row
from .tables import Case, by_case
from .workloads import MODES

COLORS = dict(zip(PEERS, ("#e8702a", "#6b6b6b", "#b03060", "#1f5fa8", "#c2a83e", "#4a9a5a", "#8a63a8"), strict=True))
BAR_INCHES = 0.2
WIDEST = (1 / 16, 64.0)  # ratios beyond are cut off, with their number shown


def draw(folder: Path, rows: Iterable[Row]) -> list[Path]:
    """Draws SUITE.png for each suite; gives the files."""
    matplotlib.use("Agg")
    suites: dict[str, list[Case]] = {}
    for case in by_case(rows):
        suites.setdefault(case.fastops.suite, []).append(case)
    return [_draw_suite(folder / f"{suite}.png", suite, cases) for suite, cases in suites.items()]


def _draw_suite(path: Path, suite: str, cases: Sequence[Case]) -> Path:
    """A column of panels for each mode; for single activations a row for each size."""
    peers = [peer for peer in PEERS if any(_row(case, peer) for case in cases)]
    panels: dict[str, list[Case]] = {}
    for case in cases:
        title = f"{case.fastops.size} x {case.fastops.dtype}" if suite == "elementwise" else ""
        panels.setdefault(title, []).append(case)
    longest = [max(sum(case.fastops.mode == mode for case in panel) for mode in MODES) for panel in panels.values()]
    heights = [0.7 + length * (len(peers) * BAR_INCHES + 0.12) for length in longest]
    figure, grid = plt.subplots(
        len(panels),
        len(MODES),
        figsize=(13, 1.3 + sum(heights)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    figure.suptitle(f"{suite}: times faster with fastops (bars from 1; to the left it is slower)", fontsize=13)
    figure.supxlabel("\n".join(sorted({str(case.fastops.machine) for case in cases})), fontsize=8)
    limits = _limits(cases, peers)
    for (title, panel), axes_row in zip(panels.items(), grid, strict=True):
        for mode, axes in zip(MODES, axes_row, strict=True):
            _draw_panel(axes, [case for case in panel if case.fastops.mode == mode], peers, limits)
            axes.set_title(f"{title}, {mode}" if title else mode, fontsize=11)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=max(1, len(labels)), frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _limits(cases: Sequence[Case], peers: Sequence[str]) -> tuple[float, float]:
    """Where the axis begins and ends, with room for the numbers."""
    rows = [row for case in cases for peer in peers if (row := _row(case, peer))]
    lowest = min((_quartiles(row)[0] for row in rows), default=1.0)
    highest = max((_quartiles(row)[1] for row in rows), default=1.0)
    low, high = max(WIDEST[0], min(0.8, lowest)), min(WIDEST[1], max(1.5, highest))
    return low * 0.95, high * (high / low) ** 0.12


def _draw_panel(axes: Axes, cases: Sequence[Case], peers: Sequence[str], limits: tuple[float, float]) -> None:
    """Bars from 1 with the quartiles as whiskers, and the ratio beside them."""
    height = 0.85 / max(1, len(peers))
    for index, peer in enumerate(peers):
        found = [(place, row) for place, case in enumerate(cases) if (row := _row(case, peer))]
        places = [place + (index - (len(peers) - 1) / 2) * height for place, _ in found]
        ratios = [_ratio(row) for _, row in found]
        spreads = [_quartiles(row) for _, row in found]
        whiskers = [
            [max(0.0, ratio - lower) for ratio, (lower, _) in zip(ratios, spreads, strict=True)],
            [max(0.0, upper - ratio) for ratio, (_, upper) in zip(ratios, spreads, strict=True)],
        ]
        axes.barh(places, [ratio - 1 for ratio in ratios], height, left=1, color=COLORS[peer], label=f"vs {peer}")
        axes.errorbar(ratios, places, xerr=whiskers, fmt="none", ecolor="#333333", elinewidth=0.9, capsize=2)
        for place, ratio, (_, upper) in zip(places, ratios, spreads, strict=True):
            end = min(max(upper, ratio, 1.0), limits[1] / (limits[1] / limits[0]) ** 0.11)
            axes.annotate(f"{ratio:.2f}", (end, place), (5, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(cases)), [_label(case) for case in cases], fontsize=9)
    axes.set_ylim(max(1, len(cases)) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.set_xlim(*limits)
    axes.xaxis.set_major_locator(FixedLocator(_ticks(*limits)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.axvline(1, color="#333333", linewidth=1)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _ticks(low: float, high: float) -> list[float]:
    """Powers of two, and between them where there are few."""
    powers = [2.0**exponent for exponent in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    between = [1.25 * power for power in powers] + [1.5 * power for power in powers] + [0.75]
    return sorted(powers + [tick for tick in between if low <= tick <= high]) if len(powers) <= 3 else powers


def _row(case: Case, peer: str) -> Row | None:
    """The row of a peer, if it has a ratio."""
    row = case.rows.get(peer)
    return row if row is not None and row.fastops_speedup is not None else None


def _ratio(row: Row) -> float:
    return row.fastops_speedup or 1.0


def _quartiles(row: Row) -> tuple[float, float]:
    return row.fastops_speedup_lower or _ratio(row), row.fastops_speedup_upper or _ratio(row)


def _label(case: Case) -> str:
    row = case.fastops
    return row.name if row.suite == "elementwise" else f"{row.name}, {row.size}, {row.dtype}"
