"""Python processes of their own, and processes that compute together."""

from __future__ import annotations

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


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a process of its own, with these environment variables and no others of the CPU backend's."""
    clean = {name: value for name, value in os.environ.items() if "_CPU_" not in name and "PYTEST_" not in name}
    return subprocess.run(
        [sys.executable, *command],
        env={**clean, **environment},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )


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
