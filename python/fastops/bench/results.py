"""One row per case and peer, kept as a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from .machine import Machine

FILE = "results.csv"

MEASURED, UNAVAILABLE, FAILED = "measured", "n/a", "failed"


@dataclass(frozen=True)
class Row:
    """What a peer did in a case. Times are seconds per call; lower and upper are quartiles."""

    suite: str
    case: str
    name: str
    size: str
    dtype: str
    mode: str
    peer: str
    status: str = MEASURED
    seconds: float | None = None
    seconds_lower: float | None = None
    seconds_upper: float | None = None
    rounds: int | None = None
    calls_per_sample: int | None = None
    fastops_speedup: float | None = None
    """How many times longer the peer takes than fastops: the median of the rounds."""
    fastops_speedup_lower: float | None = None
    fastops_speedup_upper: float | None = None
    percent_of_roof: float | None = None
    roof: str = ""
    bytes_kept_for_backward: int | None = None
    error: float | None = None
    """Largest difference from the float64 reference, relative to its size."""
    note: str = ""
    cpu: str = ""
    cores: int | None = None
    device: str = ""
    threads: int | None = None
    capability: str = ""
    fastops: str = ""
    torch: str = ""
    zentorch: str = ""
    platform: str = ""
    date: str = ""

    def on(self, machine: Machine) -> Row:
        """The row, with the machine that it was measured on."""
        return replace(self, **asdict(machine))

    @property
    def machine(self) -> Machine:
        return Machine(**{field.name: getattr(self, field.name) for field in fields(Machine)})

    @property
    def key(self) -> tuple[object, ...]:
        """What a later measurement of the same replaces."""
        return (self.case, self.peer, self.cpu, self.device, self.threads)


COLUMNS = [field.name for field in fields(Row)]
REQUIRED = [field.name for field in fields(Row) if field.default is MISSING]


def write(folder: Path, rows: Iterable[Row]) -> None:
    """Writes the rows into the folder's CSV file."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{FILE}.new"  # so that nothing is lost by whatever ends the process
    with new.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _text(value) for name, value in asdict(row).items()})
    new.replace(folder / FILE)


def read(folder: Path, name: str = FILE) -> list[Row]:
    """The rows of the folder's CSV file.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not what :func:`write` has written, or has columns of a newer version.
    """
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: write it with python -m fastops.bench --out {folder}")
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        columns = reader.fieldnames or []
        unknown = [name for name in columns if name not in COLUMNS]
        missing = [name for name in REQUIRED if name not in columns]
        if unknown or missing:
            what = f"has unknown columns {', '.join(unknown)}" if unknown else f"has no columns {', '.join(missing)}"
            raise ValueError(f"{path} {what}: it is not of this version of fastops.bench")
        return [_row(record) for record in reader]


def merged(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """All rows, where cases measured anew on the same machine are in the place of the old ones."""
    rows = {row.key: row for row in old}
    rows.update({row.key: row for row in new})
    return list(rows.values())


def _text(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


# The columns that hold numbers or nothing; the annotations are strings.
_NUMBERS = {name: int if "int" in kind else float for name, kind in Row.__annotations__.items() if "None" in kind}


def _row(record: dict[str, str]) -> Row:
    values: dict[str, Any] = {name: _value(name, text) for name, text in record.items()}
    return Row(**values)


def _value(name: str, text: str) -> object:
    number = _NUMBERS.get(name)
    if number is None:
        return text
    return number(text) if text else None
