"""Python processes of their own, and processes that compute together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.distributed.device_mesh import init_device_mesh

WORLD = 2

needs_gloo = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")


def run(*command: str, stdin: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a process of its own, with these environment variables and no others of the CPU backend's."""
    clean = {name: value for name, value in os.environ.items() if "_CPU_" not in name and "PYTEST_" not in name}
    return subprocess.run(
        [sys.executable, *command],
        env={**clean, **environment},
        cwd=Path(__file__).parent,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


# Reads what to run from stdin; what became of each case goes to stdout.
_FORKS = """
import json, os, sys, traceback
begin, cases = json.load(sys.stdin)
names = {}
exec(begin, names)
results = []
for script, environment in cases:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ.update(environment)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        code = 0
        try:
            exec(script, names)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code)
    os.close(writing)
    with open(reading) as pipe:
        printed = pipe.read()
    results.append([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), printed])
print(json.dumps(results))
"""


def run_each(begin: str, *cases: tuple[str, dict[str, str]]) -> list[tuple[int, str]]:
    """Runs ``begin`` and then the script of each case, in its environment variables: exit codes and what is printed.

    Where processes fork well, ``begin`` is run once, in none of them: torch takes seconds to import.
    """
    if sys.platform != "linux":
        runs = [run("-c", begin + script, **environment) for script, environment in cases]
        return [(one.returncode, one.stdout + one.stderr) for one in runs]
    server = run("-c", _FORKS, stdin=json.dumps([begin, cases]))
    assert server.returncode == 0, server.stderr
    return [(code, printed) for code, printed in json.loads(server.stdout)]


def run_in_processes(work: Callable[..., None], folder: Path, *arguments: Any) -> None:
    """Calls ``work(rank, mesh, *arguments)`` in two new processes on a mesh of them; ``folder`` must be a new one."""
    multiprocessing.spawn(_start, (work, str(folder), arguments), nprocs=WORLD)


def _start(rank: int, work: Callable[..., None], folder: str, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    work(rank, init_device_mesh("cpu", (WORLD,)), *arguments)
    dist.destroy_process_group()
    # Without the interpreter's teardown, during which gloo's threads may still drop Python objects: that aborts.
    os._exit(0)
