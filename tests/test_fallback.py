"""FASTOPS_FALLBACK: the composite path made visible. The variable is read once, so each test has its own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

# Every op's composite kernel, which devices without kernels of ours get, on CPU tensors.
CALLS = """
import sys, torch
sys.path.insert(0, {folder!r})
from calls import ARGUMENTS
import fastops
keys = torch._C.DispatchKeySet(torch._C.DispatchKey.XPU)
for op, arguments in {{"silu": lambda t: {{"self": t(3, 4)}}, **ARGUMENTS}}.items():
    name, _, overload = op.partition(".")
    try:
        getattr(getattr(torch.ops.fastops, name), overload or "default").redispatch(keys, **arguments(torch.ones))
        outcome = "ran"
    except NotImplementedError as error:
        outcome = str(error).splitlines()[0]
    print(op, "|", outcome)
"""


def outcomes(value: str | None) -> dict[str, tuple[str, bool]]:
    """For every op, what its composite kernel did, and whether a warning says that it has no other."""
    environment = {key: text for key, text in os.environ.items() if key != "FASTOPS_FALLBACK"}
    if value is not None:
        environment["FASTOPS_FALLBACK"] = value
    command = [sys.executable, "-c", CALLS.format(folder=os.path.dirname(__file__))]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    rows = [line.split(" | ") for line in result.stdout.splitlines()]
    assert len(rows) > 10
    warned = set(re.findall(r"Warning: fastops\.([\w.]+) has no kernel of its own for cpu tensors", result.stderr))
    return {op: (outcome, op in warned) for op, outcome in rows}


@pytest.mark.parametrize("value", [None, ""])
def test_unset(value: str | None) -> None:
    """Nothing is said."""
    assert set(outcomes(value).values()) == {("ran", False)}


def test_warn() -> None:
    """Every op says that it has no kernel, and runs."""
    assert set(outcomes("warn").values()) == {("ran", True)}


def test_error() -> None:
    """Every op raises NotImplementedError."""
    for op, (outcome, _) in outcomes("error").items():
        assert outcome.startswith(f"fastops.{op} has no kernel of its own for cpu tensors"), op
