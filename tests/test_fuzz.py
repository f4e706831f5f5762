"""Random cases, tests/fuzz: what goes wrong is noticed, named and can be replayed."""

from __future__ import annotations

import pytest

import processes
from fuzz import sessions
from fuzz.broken import WAYS
from strategies import DEVICE

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="its processes compute on the CPU")

SUMMARIES = {
    "asserts": "AssertionError: 0.1 is wrong",
    "crashes": "ends the process: SIGSEGV",
    "hangs": "hangs: no end after 5 s",
}


@pytest.mark.parametrize("way", SUMMARIES)
def test_outcome(way: str) -> None:
    """Whatever a case does, what became of it is told, and where it stood."""
    seed = WAYS.index(way)
    process = sessions.Process("broken", {"FUZZ_BROKEN": str(seed % 2)})
    outcome = process.run(seed, 5.0)
    process.close()
    assert (outcome.category, outcome.summary) == (way, SUMMARIES[way])
    assert "broken.py" in outcome.details
    assert outcome.ended == (way != "asserts")


def test_families(capsys: pytest.CaptureFixture[str]) -> None:
    """One case in each environment; the next case runs after one that ended the process; what to call is printed."""
    result = sessions.run("broken", 3, 0.0, 5.0, 1)
    assert result.cases == {"aborts": 1, "exits": 1}
    assert result.failures == {
        ("aborts", "ends the process: SIGABRT"): [3],
        ("exits", "ends the process: exit code #"): [4],
    }
    assert "python tests/fuzz broken --seed 3\n" in capsys.readouterr().out


def test_command_line() -> None:
    """Without time, one case in each environment; failures make the exit code."""
    for first_seed, code in ((7, 0), (0, 1)):
        run = processes.run("fuzz", "broken", "--minutes", "0", "--first-seed", str(first_seed))
        assert run.returncode == code, run.stderr
        assert "broken: 2 cases" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "unknown family 'nosuch': it must be one of numerics, "),
        (["--processes", "0"], "--processes must be at least 1, but is 0"),
        (["--minutes", "nan"], "--minutes must be at least 0, but is nan"),
    ],
)
def test_errors(arguments: list[str], message: str) -> None:
    """Each says what there may be."""
    run = processes.run("fuzz", *arguments)
    assert run.returncode == 2 and message in run.stderr


def test_replay() -> None:
    """A case is run again in its environment, with the cases before it where it needs them."""
    assert processes.run("fuzz", "broken", "--seed", "7").returncode == 0
    assert "is wrong" in processes.run("fuzz", "broken", "--seed", "1").stderr
    run = processes.run("fuzz", "broken", "--seed", "0", "6")
    assert run.returncode == 1 and "left something behind" in run.stderr


def test_mutants() -> None:
    """Wrong values, errors, strides and transforms, and writes beside an argument, are noticed by the first cases."""
    run = processes.run("-m", "fuzz.mutants")
    assert run.returncode == 0, run.stdout + run.stderr
