"""A family for a time: its cases in processes of their own, so that one that crashes or hangs is noticed and named."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fuzz import cases

START = 300.0  # seconds in which a process must have imported everything


@dataclasses.dataclass
class Outcome:
    """What became of a case: nothing to tell, unless it failed."""

    category: str = ""
    summary: str = ""
    details: str = ""
    ended: bool = False  # the process with it


class Process:
    """A process that runs cases of a family."""

    def __init__(self, family: str, environment: dict[str, str]) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent), family, "--work"],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            bufsize=0,
        )
        self.received = b""
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        if self._message(START) is None:
            raise RuntimeError(f"the process of {family} does not start:\n{self._printed()}")

    def run(self, seed: int, limit: float) -> Outcome:
        """One case."""
        outcome, doing = Outcome(), ""
        try:
            self.process.stdin.write(f"{seed}\n".encode())
            while message := self._message(limit):
                outcome.category = message.get("category", outcome.category)
                doing = message.get("details", doing)
                if "done" in message:
                    if error := message["error"]:
                        outcome.summary, outcome.details = error["summary"], f"{doing}\n{error['trace']}"
                    return outcome
        except TimeoutError:
            outcome.summary = f"hangs: no end after {limit:g} s"
            self.process.send_signal(signal.SIGABRT)  # for faulthandler's traceback
        except BrokenPipeError:
            pass  # it has ended between two cases
        outcome.ended = True
        code = self._end()
        reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        outcome.summary = outcome.summary or f"ends the process: {reason}"
        outcome.details = f"{doing}\n{self._printed()}"
        return outcome

    def close(self) -> None:
        """Ends the process."""
        if self.process.poll() is None:
            self.process.stdin.close()
            self._end()

    def _end(self) -> int:
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def _printed(self) -> str:
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - 4000))
        return self.errors.read().decode(errors="replace")

    def _message(self, limit: float) -> dict[str, Any] | None:
        """The next message; None from a process that has ended."""
        deadline = time.monotonic() + limit
        while b"\n" not in self.received:
            if not self.selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            chunk = os.read(self.process.stdout.fileno(), 1 << 16)
            if not chunk:
                return None
            self.received += chunk
        line, _, self.received = self.received.partition(b"\n")
        return json.loads(line)


@dataclasses.dataclass
class Result:
    """The cases of a family by category, and its failures by what they say."""

    family: str
    cases: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    failures: dict[tuple[str, str], list[int]] = dataclasses.field(default_factory=dict)

    def lines(self) -> list[str]:
        """A summary."""
        lines = [f"\n{self.family}: {self.cases.total()} cases, {sum(map(len, self.failures.values()))} failed"]
        for name, count in sorted(self.cases.items()):
            failed = sum(len(seeds) for (category, _), seeds in self.failures.items() if category == name)
            lines.append(f"  {count:8} {name or 'cases'}" + (f", {failed} failed" if failed else ""))
        for (category, summary), seeds in self.failures.items():
            lines += [f"  {len(seeds)} x {category}: {summary}", f"    {command(self.family, seeds[0])}"]
        return lines


def command(family: str, *seeds: int) -> str:
    """What replays a case."""
    return f"python tests/fuzz {family} --seed {' '.join(map(str, seeds))}"


def run(
    family: str, first_seed: int, seconds: float, limit: float, processes: int, every_environment: bool = True
) -> Result:
    """Runs cases of a family until the time is over, in every environment or in one for each process.

    Failures are printed as they come.
    """
    result = Result(family)
    environments = cases.environments(family)
    # Each stream of seeds has one environment and one process at a time.
    streams = -(-max(processes, len(environments)) // len(environments)) * len(environments)
    chosen = range(streams if every_environment else processes)
    seconds *= processes / len(chosen)

    def stream(number: int) -> None:
        environment = environments[(first_seed + number) % len(environments)]
        process = Process(family, environment)
        deadline = time.monotonic() + seconds
        seed, started_with = first_seed + number, first_seed + number
        while True:
            outcome = process.run(seed, limit)
            result.cases[outcome.category] += 1
            if outcome.summary:
                before = range(started_with, seed, streams)
                note(result, seed, outcome, environment, limit, before)
            if outcome.ended:
                process, started_with = Process(family, environment), seed + streams
            seed += streams
            if time.monotonic() > deadline:
                return process.close()

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(stream, chosen))
    return result


def note(result: Result, seed: int, outcome: Outcome, environment: dict[str, str], limit: float, before: range) -> None:
    """Counts a failure; the first of its kind is run again by itself and printed."""
    alike = re.sub(r"0x[0-9a-f]+|[\d.]+(e[-+]\d+)?", "#", outcome.summary.partition("\n")[0])[:200]
    seeds = result.failures.setdefault((outcome.category, alike), [])
    seeds.append(seed)
    if len(seeds) > 1:
        return
    print(f"\n{command(result.family, seed)}\n  {outcome.category}: {outcome.summary}\n{outcome.details}", flush=True)
    alone = Process(result.family, environment)
    again = alone.run(seed, limit)
    alone.close()
    if not again.summary:
        print(f"  It passes alone, and fails after these:\n  {command(result.family, *before, seed)}", flush=True)
