"""One case at a time: in the process that runs them, and when a case is replayed."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import random
import resource
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

# What a process may have mapped: a case that wants more gets an error instead of the machine's memory.
ADDRESS_SPACE = 24 << 30
THREADS = 2

_report: Callable[[dict[str, Any]], None] = lambda message: print(*message.values(), flush=True)  # noqa: E731


def category(name: str, details: str = "") -> None:
    """Says what kind of case the present one is, and what it does, before it may end the process."""
    _report({"category": name, "details": details})


def report(to: Callable[[dict[str, Any]], None]) -> None:
    """Who is told."""
    global _report
    _report = to


def family(name: str) -> ModuleType:
    """The module of a family."""
    return importlib.import_module(f"fuzz.{name}")


def environments(name: str) -> list[dict[str, str]]:
    """The environment variables that a family's cases run in, in turn."""
    return getattr(family(name), "ENVIRONMENTS", [{}])


def run(module: ModuleType, seed: int) -> None:
    """The case of a seed, which is the seed of all random numbers."""
    random.seed(seed)
    if torch := sys.modules.get("torch"):  # a family that does without starts in no time
        torch.manual_seed(seed)
        torch.set_num_threads(THREADS)
    module.case(seed)


def replay(name: str, seeds: Sequence[int]) -> None:
    """Runs cases in this process, for a debugger: an error is raised, a crash happens."""
    choices = environments(name)
    variables = choices[seeds[0] % len(choices)]
    if any(os.environ.get(key) != value for key, value in variables.items()):
        # They are read when fastops is imported.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **variables})
    faulthandler.enable()
    for seed in seeds:
        run(family(name), seed)
        print(f"{name} --seed {seed} passes")


def work(name: str) -> None:
    """Runs the cases whose seeds come on stdin; what happens to each goes to stdout, as lines of JSON."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a case prints
    report(lambda message: print(json.dumps(message), file=replies))
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    module = family(name)
    _report({"ready": True})
    for line in sys.stdin:
        error = None
        try:
            run(module, int(line))
        except Exception as caught:
            summary = "".join(traceback.format_exception_only(caught)).strip()
            error = {"summary": summary, "trace": traceback.format_exc()}
        _report({"done": True, "error": error})
