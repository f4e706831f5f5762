"""Random cases against what they must equal, for a time: ``python tests/fuzz --help``, or ``make fuzz``.

A family is a module here with a function ``case(seed)``, which makes up one case from the seed and raises where it goes
wrong. It may call ``category(name)`` of cases.py, for the summary and for the case that ends the process, and have a
list ``ENVIRONMENTS`` of environment variables: a case runs in ``ENVIRONMENTS[seed % len(ENVIRONMENTS)]``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])

from fuzz import cases, sessions  # noqa: E402

FAMILIES = ["numerics", "arguments", "convert", "transforms"]
CPUS = os.cpu_count() or 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser("python tests/fuzz", description="Random cases against what they must equal.")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"by default all: {' '.join(FAMILIES)}")
    parser.add_argument("--seed", type=int, nargs="+", help="run these cases of the family in this process, in order")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="15 seconds of the same cases each time, on all CPUs, each in one environment of the family's",
    )
    parser.add_argument("--minutes", type=float, help="of cases, in all (default 60)")
    parser.add_argument("--first-seed", type=int, help="default: random")
    parser.add_argument("--limit", type=float, default=120, help="seconds until a case hangs (default %(default)s)")
    parser.add_argument("--processes", type=int, help="default: one for two CPUs, beside other work")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)  # in the processes that run cases
    quick = {"minutes": 0.25, "first_seed": 0, "processes": CPUS}
    long = {"minutes": 60.0, "first_seed": random.SystemRandom().randrange(2**31), "processes": max(1, CPUS // 2)}
    chosen = parser.parse_args()
    for name, value in (quick if chosen.quick else long).items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)
    for name in chosen.families:
        if importlib.util.find_spec(f"fuzz.{name}") is None:
            parser.error(f"unknown family '{name}': it must be one of {', '.join(FAMILIES)}")
    for name, least in {"minutes": 0, "limit": 1, "processes": 1}.items():
        if not getattr(chosen, name) >= least:
            parser.error(f"--{name} must be at least {least}, but is {getattr(chosen, name)}")
    return chosen


def main() -> int:
    """Runs the families, or some cases of one."""
    chosen = arguments()
    families = chosen.families or [name for name in FAMILIES if Path(__file__).with_name(f"{name}.py").exists()]
    if chosen.work:
        cases.work(families[0])
        return 0
    if chosen.seed:
        cases.replay(families[0], chosen.seed)
        return 0
    print(f"fuzz: {' '.join(families)}; --first-seed {chosen.first_seed}; {chosen.minutes:g} minutes", flush=True)
    seconds = 60 * chosen.minutes / len(families)
    settings = chosen.first_seed, seconds, chosen.limit, chosen.processes, not chosen.quick
    results = [sessions.run(name, *settings) for name in families]
    print("\n".join(line for result in results for line in result.lines()))
    return int(any(result.failures for result in results))


if __name__ == "__main__":
    sys.exit(main())
