"""Tables and plots of the benchmark's CSV files, docs/benchmarks/*.csv, in the place of a comment in benchmarks.md.

Each file is one that `python -m fastops.bench --out DIR` wrote (DIR/results.csv), under any name, and the tables and
plots are those that this program makes. Where there is no file, there is nothing in the comment's place.
"""

from __future__ import annotations

import os
import re
import shutil
from itertools import groupby
from pathlib import Path

from sphinx.application import Sphinx

from fastops.bench import plots, results, tables

DATA = Path(__file__).parents[1] / "benchmarks"
PLACE = "<!-- the measurements of docs/benchmarks -->"

EXPLORER = """
[The explorer](<url:explorer/index.html>) shows the same measurements: choose the machine, the network, rows and dtype.
"""
PLOT = """
```{{image}} {path}
:alt: Ratios of the suite {suite}; the table above has the numbers
```
"""


def _read_csv(file: Path, folder: Path) -> list[results.Row]:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, folder / results.FILE)
    return results.read(folder)


def _machine(row: results.Row) -> str:
    return str(row.machine)


def _section(app: Sphinx, rows: list[results.Row], folder: Path) -> str:
    """The tables of one machine's suites, each with its plot."""
    folder.mkdir(parents=True, exist_ok=True)
    images = {path.stem: path for path in plots.draw(folder, rows)}
    about, *suites = re.split(r"^### ", tables.markdown(rows), flags=re.MULTILINE)
    parts = [f"### {suite}{_plot(app, images.get(suite.split()[0]))}" for suite in suites]
    first = rows[0]
    device = "" if first.device == "cpu" else f"{first.device}, "
    return "\n".join([f"## {device}{first.cpu}, {first.threads} threads\n\n{about}", *parts])


def _plot(app: Sphinx, path: Path | None) -> str:
    return PLOT.format(path="/" + os.path.relpath(path, app.srcdir), suite=path.stem) if path else ""


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    if PLACE not in source[0]:
        return
    app.env.note_dependency(str(DATA))
    folder, text = Path(app.doctreedir) / "measurements", ""
    for file in sorted(DATA.glob("*.csv")):
        app.env.note_dependency(str(file))
        rows = sorted(_read_csv(file, folder / file.stem), key=_machine)
        for place, (_, of_machine) in enumerate(groupby(rows, key=_machine)):
            text += "\n" + _section(app, list(of_machine), folder / file.stem / str(place))
    source[0] = source[0].replace(PLACE, EXPLORER + text if text else "")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
