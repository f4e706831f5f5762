"""What the page gets of the CSV files, and what the build says of others. No browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from made_up import build_explorer, measurements, row, write


def test_columns_are_those_of_the_benchmark() -> None:
    results = pytest.importorskip("fastops.bench.results", exc_type=ImportError)
    assert set(build_explorer.COLUMNS) <= set(results.COLUMNS)


def test_peers_are_those_of_the_benchmark() -> None:
    peers = pytest.importorskip("fastops.bench.peers", exc_type=ImportError)
    script = (build_explorer.PAGE / "chart.js").read_text()
    listed = re.search(r"const PEERS = \{(.*?)\};", script, re.DOTALL)
    assert listed and tuple(re.findall(r'^ *"?([\w-]+)"?:', listed[1], re.MULTILINE)) == peers.PEERS


def test_reads_what_the_benchmark_writes(tmp_path: Path) -> None:
    results = pytest.importorskip("fastops.bench.results", exc_type=ImportError)
    written = results.Row("tiny", "c", "net", "64", "float32", "training", "eager", seconds=2e-5, fastops_speedup=2.0)
    results.write(tmp_path, [written])
    assert build_explorer.read(tmp_path / "results.csv")[0]["seconds"] == "2e-05"


def test_cases(tmp_path: Path) -> None:
    path = write(tmp_path / "Some CPU.csv", measurements())
    [machine] = build_explorer.machines(path)
    assert machine["id"] == "some-cpu" and machine["date"] == "2026-01-02"
    case = machine["cases"][0]
    assert (case["name"], case["size"], case["mode"]) == ("5-15-1-relu", "1", "inference")
    assert case["results"]["eager"]["ratio"] == [1.5, pytest.approx(1.455), pytest.approx(1.56)]
    assert "ratio" not in case["results"]["fastops"]
    assert machine["cases"][4]["results"]["compile"] == {"status": "n/a", "note": "it is for CPUs"}


def test_machines_are_apart(tmp_path: Path) -> None:
    """Another number of threads is another machine; another day is not."""
    one = row("tiny", "net", 1, "float32", "training", "fastops")
    other = one | {"size": 64, "date": "2026-01-03"}
    path = write(tmp_path / "cpu.csv", [one, other, one | {"threads": 1}])
    first, second = build_explorer.machines(path)
    assert (first["id"], second["id"]) == ("cpu", "cpu-2")
    assert len(first["cases"]) == 2 and first["date"] == "2026-01-02 to 2026-01-03"
    assert "1 thread on" in second["label"]


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no CSV file in"):
        build_explorer.build(tmp_path / "out", [tmp_path])
    (tmp_path / "other.csv").write_text("suite,name\n")
    with pytest.raises(ValueError, match=r"other\.csv: it lacks the columns size, dtype"):
        build_explorer.build(tmp_path / "out", [tmp_path])
    write(tmp_path / "other.csv", [])
    with pytest.raises(ValueError, match="it has no measurements"):
        build_explorer.build(tmp_path / "out", [tmp_path])
    write(tmp_path / "other.csv", measurements())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("")
    with pytest.raises(ValueError, match="would be emptied"):
        build_explorer.build(tmp_path / "out", [tmp_path])
    assert (tmp_path / "out" / "precious.txt").exists()


def test_committed_measurements_are_read() -> None:
    for path in build_explorer.DATA.glob("*.csv"):
        assert all(machine["cases"] for machine in build_explorer.machines(path))
