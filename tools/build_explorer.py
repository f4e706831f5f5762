"""Builds the benchmark explorer: the page of docs/explorer, the measurements of docs/benchmarks, and Vega-Lite.

    python tools/build_explorer.py [--out build/explorer] [--data FOLDER_OR_CSV ...] [--documentation ../index.html]

What comes out is a folder of static files that needs no server. The measurements are CSV files as
`python -m fastops.bench --out DIR` writes them (DIR/results.csv), under any name; one file may have several machines.
Vega-Lite comes with the package vl-convert-python, which bundles it without a network.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explorer"
DATA = ROOT / "docs" / "benchmarks"
OUT = ROOT / "build" / "explorer"

FASTOPS = "fastops"
CASE = ("suite", "name", "size", "dtype", "mode")
# What a machine is: measurements that differ in one of these are not beside each other. The date is none of them.
MACHINE = ("cpu", "device", "threads", "cores", "capability", "fastops", "torch", "zentorch")
RATIO = ("fastops_speedup", "fastops_speedup_lower", "fastops_speedup_upper")
OTHERS = ("peer", "status", "note", "seconds", "percent_of_roof", "bytes_kept_for_backward", "date")
COLUMNS = (*CASE, *MACHINE, *RATIO, *OTHERS)

Record = dict[str, str]


def read(path: Path) -> list[Record]:
    """The rows of a CSV file.

    Raises:
        ValueError: it has none, or lacks a column.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if missing := [column for column in COLUMNS if column not in (reader.fieldnames or ())]:
            raise ValueError(f"{path}: it lacks the columns {', '.join(missing)}; python -m fastops.bench writes them")
        records = list(reader)
    if not records:
        raise ValueError(f"{path}: it has no measurements")
    return records


def machines(path: Path) -> list[dict[str, Any]]:
    """What the page gets of a CSV file: each machine with its cases, in their order."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in read(path):
        groups.setdefault(tuple(record[column] for column in MACHINE), []).append(record)
    return [_machine(path, index, records) for index, records in enumerate(groups.values())]


def _machine(path: Path, index: int, records: Sequence[Record]) -> dict[str, Any]:
    first = records[0]
    dates = sorted({record["date"] for record in records})
    slug = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")
    device = "" if first["device"] == "cpu" else f", {first['device']}"
    threads = f"{first['threads']} thread{'' if first['threads'] == '1' else 's'}"
    versions = f"fastops {first['fastops']}, torch {first['torch']}"
    if first["zentorch"]:
        versions += f", zentorch {first['zentorch']}"
    return {
        "id": f"{slug}-{index + 1}" if index else slug,
        "name": f"{first['cpu']}{device}, {threads}, torch {first['torch']}",
        "label": f"{first['cpu']}{device}, {threads} on {first['cores']} core(s), {first['capability']}; {versions}",
        "date": dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
        "csv": path.name,
        "cases": _cases(records),
    }


def _cases(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Those that have a row of fastops; of a peer that was measured again, the last row counts."""
    cases: dict[tuple[str, ...], dict[str, Any]] = {}
    for record in records:
        key = tuple(record[column] for column in CASE)
        case = cases.setdefault(key, {**dict(zip(CASE, key, strict=True)), "results": {}})
        case["results"][record["peer"]] = _result(record)
    return [case for case in cases.values() if FASTOPS in case["results"]]


def _result(record: Record) -> dict[str, Any]:
    ratio = [_number(record[column]) for column in RATIO]
    result = {
        "status": record["status"],
        "note": record["note"],
        "seconds": _number(record["seconds"]),
        "roof": _number(record["percent_of_roof"]),
        "kept": _number(record["bytes_kept_for_backward"]),
        "ratio": None if record["peer"] == FASTOPS or None in ratio else ratio,
    }
    return {name: value for name, value in result.items() if value not in (None, "")}


def _number(text: str) -> float | None:
    return float(text) if text else None


def build(out: Path, sources: Sequence[Path] = (DATA,), documentation: str = "") -> None:
    """Writes the explorer into a folder, from CSV files or the folders that they are in; with a link, if there is one.

    Raises:
        FileNotFoundError: there is no CSV file.
        ValueError: one has another form, two have the same name, or the folder has something else in it.
    """
    files = [file for source in sources for file in (sorted(source.glob("*.csv")) if source.is_dir() else [source])]
    if not files:
        raise FileNotFoundError(f"there is no CSV file in {', '.join(map(str, sources))}")
    if len({file.name for file in files}) < len(files):
        raise ValueError(f"two CSV files have the same name: {', '.join(map(str, files))}")
    if out.exists() and any(out.iterdir()) and not (out / "explorer.js").is_file():
        raise ValueError(f"{out} has something else in it than an explorer, and would be emptied")
    found = [machine for file in files for machine in machines(file)]
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(PAGE, out)
    for file in files:
        shutil.copy(file, out / file.name)
    data = json.dumps({"machines": found, "documentation": documentation}, separators=(",", ":"), allow_nan=False)
    (out / "data.js").write_text(f"window.fastopsBenchmarks = {data};\n", encoding="utf-8")
    (out / "vega.js").write_text(vega(), encoding="utf-8")


def vega() -> str:
    """Vega-Lite and what it needs for a script element, with their names in a scope of their own."""
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    notice = f"Vega {vl_convert.get_vega_version()}, Vega-Lite and Vega-Embed: vega.LICENSE"
    return f"/* {notice} */\n(() => {{\n{bundle}\n}})();\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="the folder, which is made anew; default: build/explorer")
    parser.add_argument("--data", type=Path, nargs="+", default=[DATA], help="default: docs/benchmarks")
    parser.add_argument("--documentation", default="", help="the address of the documentation, as seen from the page")
    options = parser.parse_args()
    try:
        build(options.out, options.data, options.documentation)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    print(f"wrote {options.out / 'index.html'}")


if __name__ == "__main__":
    main()
