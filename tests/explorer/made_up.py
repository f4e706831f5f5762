"""Measurements that nobody made, in the form in which the benchmark writes them."""

from __future__ import annotations

import csv
import itertools
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import build_explorer

COLUMNS = (*build_explorer.COLUMNS, "case", "error")


Record = dict[str, Any]


def row(suite: str, name: str, size: int | str, dtype: str, mode: str, peer: str, ratio: float | None = 1.0) -> Record:
    """A row as the benchmark writes it; without a ratio what the peer could not do."""
    found = dict.fromkeys(COLUMNS, "") | {"suite": suite, "name": name, "size": size, "dtype": dtype, "mode": mode}
    machine = {"cpu": "Made-up CPU", "device": "cpu", "threads": 2, "cores": 2, "capability": "AVX2"}
    found |= machine | {"fastops": "0.1.0", "torch": "2.13.0", "date": "2026-01-02", "peer": peer}
    if ratio is None:
        return found | {"status": "n/a", "note": "it is for CPUs"}
    spread = {"fastops_speedup_lower": ratio * 0.97, "fastops_speedup_upper": ratio * 1.04}
    own = {"seconds": ratio * 1e-5, "percent_of_roof": 50 / ratio, "fastops_speedup": ratio, "status": "measured"}
    return found | own | spread


def measurements() -> list[Record]:
    """Two suites: a few networks, beside two peers, and more activations than are drawn at once."""
    rows = []
    for name, ratios in {"5-15-1-relu": (1.5, 3.4), "17-64-64-6-tanh": (0.91, None)}.items():
        for size in (1, 64):
            for mode in ("inference", "training"):
                for peer, ratio in zip(("fastops", "eager", "compile"), (1.0, *ratios), strict=True):
                    rows.append(row("tiny", name, size, "float32", mode, peer, ratio))
    names = [f"activation_{number}" for number in range(60)]
    everything = itertools.product(("2^12", "2^16", "2^20"), names, ("fastops", "eager"))
    return rows + [row("elementwise", name, size, "float32", "training", peer) for size, name, peer in everything]


def write(path: Path, rows: list[Record]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path
