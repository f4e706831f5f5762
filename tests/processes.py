"""Python processes of their own, and processes that compute together."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.distributed.device_mesh import init_device_mesh

WORLD = 2

needs_gloo = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")


def _environment() -> dict[str, str]:
    """The environment variables here, without those of the CPU backend and of pytest."""
    return {name: value for name, value in os.environ.items() if "_CPU_" not in name and "PYTEST_" not in name}


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a process of its own, with these environment variables and no others of the CPU backend's."""
    return subprocess.run(
        [sys.executable, *command],
        env=_environment() | environment,
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )


# Reads lines of JSON: what all begin with, and then the script and the environment variables of each process. Answers
# each with a line: the exit code and what was printed.
_FORKS = """
import json, os, sys, traceback
names = {}
exec(json.loads(sys.stdin.readline()), names)
for line in sys.stdin:
    script, environment = json.loads(line)
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
    answer = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), printed]
    print(json.dumps(answer), flush=True)
"""


@contextlib.contextmanager
def forks(begin: str) -> Iterator[Callable[[str, dict[str, str]], tuple[int, str]]]:
    """Runs scripts, with environment variables, in forks of a process that has run ``begin``.

    Each gives its exit code and what it printed. torch takes seconds to import: it is imported once for all.
    """
    command = [sys.executable, "-c", _FORKS]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=_environment(), cwd=Path(__file__).parent, text=True, **pipes) as server:
        assert server.stdin and server.stdout
        to, answers = server.stdin, server.stdout
        print(json.dumps(begin), file=to, flush=True)

        def ask(script: str, environment: dict[str, str]) -> tuple[int, str]:
            print(json.dumps([script, environment]), file=to, flush=True)
            code, printed = json.loads(answers.readline())
            return code, printed

        yield ask


def run_each(begin: str, *cases: tuple[str, dict[str, str]]) -> list[tuple[int, str]]:
    """Runs ``begin`` and then the script of each case, in its environment variables: exit codes and what is printed.

    Where processes fork well, ``begin`` is run once, in none of them.
    """
    if sys.platform != "linux":
        runs = [run("-c", begin + script, **environment) for script, environment in cases]
        return [(one.returncode, one.stdout + one.stderr) for one in runs]
    with forks(begin) as ask:
        return [ask(*case) for case in cases]


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
