"""The results as tables: one for the terminal and the same in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.table import Table

from .peers import DESCRIPTIONS, EAGER, FASTOPS, PEERS
from .results import FAILED, MEASURED, Row

FILE = "table.md"

EXPLANATION = (
    "Ratios: how many times faster fastops is, the median over rounds of paired times; below 1 it is slower. "
    "Roof: multiply-adds in registers for networks, a copy of the same size for single activations."
)


class Case(NamedTuple):
    """The rows of one case, by peer."""

    name: str
    rows: dict[str, Row]

    @property
    def fastops(self) -> Row:
        return self.rows[FASTOPS]


def by_case(rows: Iterable[Row]) -> list[Case]:
    """The rows case by case; on each machine by itself."""
    cases: dict[tuple[object, ...], Case] = {}
    for row in rows:
        key = (row.case, row.cpu, row.device, row.threads)
        cases.setdefault(key, Case(row.case.partition("/")[2], {})).rows[row.peer] = row
    return [case for case in cases.values() if FASTOPS in case.rows]


def rich_table(title: str, rows: Sequence[Row]) -> Table:
    """The table for the terminal."""
    headings, *lines = _lines(rows, spread=True)
    table = Table(title=title, box=box.SIMPLE)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "case" else "right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    return table


def notes(rows: Iterable[Row]) -> list[str]:
    """What did not work and why, each reason once for each peer and suite."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row.note:
            groups.setdefault((row.suite, row.peer, row.status, row.note), []).append(row.case)
    texts = []
    for (_, peer, status, note), cases in groups.items():
        more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
        texts.append(f"{peer}, {cases[0]}{more}: {'FAILED: ' if status == FAILED else ''}{note}")
    return texts


def write_markdown(folder: Path, rows: Sequence[Row]) -> Path:
    """Writes the tables of all suites; gives the file."""
    path = folder / FILE
    path.write_text(markdown(rows), encoding="utf-8")
    return path


def markdown(rows: Sequence[Row]) -> str:
    """A section for each machine, with a table for each suite."""
    parts = []
    for machine, its_rows in groupby(sorted(rows, key=_machine), key=_machine):
        suites: dict[str, list[Row]] = {}
        for row in its_rows:
            suites.setdefault(row.suite, []).append(row)
        parts.append(f"{machine}.\n\n{EXPLANATION}\n")
        parts += [f"### {suite}\n\n{_markdown_table(suite_rows)}" for suite, suite_rows in suites.items()]
        if texts := notes(row for suite_rows in suites.values() for row in suite_rows):
            parts.append("".join(f"- {text}\n" for text in texts))
    return "\n".join(parts)


def legend(peers: Iterable[str]) -> str:
    """What each peer is."""
    return "\n".join(f"{peer}: {DESCRIPTIONS[peer]}" for peer in (FASTOPS, *peers))


def _machine(row: Row) -> str:
    return str(row.machine)


def _markdown_table(rows: Sequence[Row]) -> str:
    headings, *lines = _lines(rows, spread=False)
    alignments = ["---" if heading == "case" else "---:" for heading in headings]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headings, alignments, *lines))


def _lines(rows: Sequence[Row], spread: bool) -> list[list[str]]:
    """The headings and then a line for each case. The columns that a suite has nothing for are left out."""
    cases = by_case(rows)
    peers = [peer for peer in PEERS if any(peer in case.rows for case in cases)]
    keeps = any(case.fastops.bytes_kept_for_backward is not None for case in cases)
    headings = ["case", "fastops", *(f"vs {peer}" for peer in peers), "% of roof"]
    lines = [headings + (["kept vs eager"] if keeps else [])]
    for case in cases:
        own = case.fastops
        time = own.status if own.status != MEASURED else time_text(own.seconds or 0.0)
        if spread and own.seconds and own.seconds_lower and own.seconds_upper:
            time += f" ±{50 * (own.seconds_upper - own.seconds_lower) / own.seconds:.0f}%"
        roof = "" if own.percent_of_roof is None else f"{own.percent_of_roof:.{0 if own.percent_of_roof >= 10 else 1}f}"
        line = [case.name, time, *(_ratio(case.rows.get(peer)) for peer in peers), roof]
        lines.append(line + ([_kept(case)] if keeps else []))
    return lines


def _ratio(row: Row | None) -> str:
    if row is None:
        return ""
    return row.status if row.fastops_speedup is None else f"{row.fastops_speedup:.2f}"


def _kept(case: Case) -> str:
    own = case.fastops.bytes_kept_for_backward
    eager = case.rows[EAGER].bytes_kept_for_backward if EAGER in case.rows else None
    return "" if own is None or not eager else f"{own / eager:.2f}"


def time_text(seconds: float) -> str:
    """A time with three digits."""
    for scale, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * scale < 1000:
            value = seconds * scale
            return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
    return f"{seconds:.2f} s"
