"""examples/distributed.py: processes that share a network, one of which is killed, follow one loss curve."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from processes import needs_gloo

EXAMPLES = Path(__file__).parents[1] / "examples"


def torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Two processes that run the example, and start again once."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    example = EXAMPLES / "distributed.py", "--steps", 12, "--every", 4
    return subprocess.run([*command, *map(str, (*example, *arguments))], capture_output=True, text=True, timeout=300)


@needs_gloo
@pytest.mark.skipif(sys.platform == "win32", reason="nothing kills a process at once there")
def test_a_killed_worker_resumes(tmp_path: Path) -> None:
    """With tensor parallelism, and with sharded parameters and a worker that is killed between two checkpoints."""
    whole, killed = tmp_path / "whole.csv", tmp_path / "killed.csv"
    run = torchrun("--tensor-parallel", 2, "--losses", whole)
    assert run.returncode == 0, run.stderr
    checkpoints = "--checkpoints", tmp_path / "checkpoints", "--asynchronous", "--kill-at", 10
    run = torchrun(*checkpoints, "--losses", killed, "--compare", whole)
    assert run.returncode == 0, run.stderr
    assert "exitcode: -9" in run.stderr  # of the worker that was killed
    assert "Begins with step 8, after 1 restarts" in run.stdout
    assert "14 losses of 12 steps" in run.stdout  # those from 8 to 10 were computed twice


def test_another_curve_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    example = importlib.import_module("distributed")
    curves = {
        "whole": "0,2.3\n1,2.0\n",
        "other": "0,2.3\n1,2.1\n0,2.3\n1,2.0\n",
        "nan": "0,2.3\n1,nan\n",
        "short": "0,2.3\n",
    }
    paths = {name: tmp_path / f"{name}.csv" for name in curves}
    for name, text in curves.items():
        paths[name].write_text("step,loss\n" + text)
    example.compare(paths["whole"], paths["whole"], 2, Console())
    for name, message in (
        ("other", "differ by 3.3e-02 at step 1"),
        ("nan", "differ by nan"),
        ("short", "lacks 1 steps"),
    ):
        with pytest.raises(SystemExit, match=message):
            example.compare(paths[name], paths["whole"], 2, Console())
