"""Counts the instructions per element of the elementwise ops on Arm, fastops's beside PyTorch's, in an emulator.

    make aarch64-check
    make aarch64-instructions [ARGS="--cpu sve256 --activation gelu"]

Two sizes of a contiguous tensor of normal random numbers are computed by one thread, and the difference of the counts
is divided by that of the sizes: what a call costs is in neither. An instruction of a vector counts as one, however long
it takes, so this says which kernel has more to do, and not how fast it is on a CPU. 12 minutes on two cores for one
instruction set.

qemu-aarch64-static logs each block of instructions that it runs in the libraries of the two, in libm and in code that
oneDNN makes, and its length when it is translated; the program that it runs writes between them what is next.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build/aarch64/root/usr/bin/python"

# What qemu is told for the instruction sets that PyTorch has kernels for, and what it calls them.
CPUS = {
    "neon": ("neoverse-n1", "DEFAULT"),
    "sve128": ("max,sve-default-vector-length=16", "SVE128"),
    "sve256": ("max,sve-default-vector-length=32", "SVE256"),
}
DTYPES = ("float32", "bfloat16", "float16")
WITHOUT_EQUAL = {"identity", "quick_gelu", "relu_squared"}  # PyTorch has no function for them
LIBRARIES = re.compile(r"/(libfastops_cpu|libtorch_cpu|libarm_compute\w*|libm)\.so[.\d]*$")
SHORTEST = 12  # instructions; shorter ones are parts of what a call costs
NEAR = 4000  # what ran before the calls and lies between two kernels may be this many instructions
SIZES = (4096, 8192)
CALL, CODE, OTHER = "call:", "code:", "other:"


# ---- in the emulator ----


def say(*words: object) -> None:
    """Between qemu's lines, which go the same way."""
    os.write(2, (" ".join(map(str, words)) + "\n").encode())


def run_in_emulator(capability: str, activations: list[str], dtypes: list[str]) -> None:
    import torch
    from fastops._activations import FUNCTIONS

    import fastops
    from fastops.bench.models import pytorch_activation

    if torch.backends.cpu.get_cpu_capability() != capability:
        raise SystemExit(f"PyTorch takes this CPU for {torch.backends.cpu.get_cpu_capability()}, not for {capability}")
    torch.set_num_threads(1)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, *_, file = line.split()
        first, last = (int(address, 16) for address in addresses.split("-"))
        if "x" in access and file.startswith("/"):
            say(CODE if LIBRARIES.search(file) else OTHER, f"{first:#x}..{last - 1:#x}")

    def measure(name: str, dtype: str, library: str, function: Callable[..., torch.Tensor]) -> None:
        for size in (64, *SIZES):  # the first is what a first call does
            torch.manual_seed(0)
            x, grad = torch.randn(2, size).to(getattr(torch, dtype))
            say(CALL, name, dtype, library, "forward", size)
            function(x)
            say(CALL, "nothing")
            y = function(x.requires_grad_())
            say(CALL, name, dtype, library, "backward", size)
            torch.autograd.grad(y, x, grad)
            say(CALL, "nothing")

    for name in activations or [name for name in FUNCTIONS if name not in WITHOUT_EQUAL]:
        for dtype in dtypes:
            measure(name, dtype, "fastops", getattr(fastops.functional, name))
            measure(name, dtype, "torch", pytorch_activation(name))


# ---- here ----


def emulate(cpu: str, arguments: list[str], log: dict[str, str]) -> Iterator[str]:
    """The lines of the emulator, and of the program in it."""
    model, capability = CPUS[cpu]
    # With memory of its own for the program, its libraries are in the same place each time.
    environment = {**os.environ, "QEMU_CPU": model, "QEMU_RESERVED_VA": "0x10000000000", **log}
    command = ["setarch", "-R", str(PYTHON), __file__, "--emulated", capability, *arguments]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        yield from process.stderr
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")


def find_kernels(cpu: str, arguments: list[str]) -> tuple[list[str], list[str]]:
    """Where the libraries are, and the ranges of addresses whose blocks are counted: those that run in the calls, and
    did not run before. To log what all of torch does while it is imported would take an hour."""
    libraries: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    called: dict[int, bool] = {}
    in_call = False
    for line in emulate(cpu, arguments, {"QEMU_LOG": "in_asm"}):
        if line.startswith("0x"):
            called.setdefault(int(line.partition(":")[0], 16), in_call)
        elif line.startswith(CALL):
            in_call = line.split()[1] != "nothing"
        elif line.startswith((CODE, OTHER)):
            first, last = (int(address, 16) for address in line.split()[1].split(".."))
            (libraries if line.startswith(CODE) else others).append((first, last))
        elif not line.startswith("IN:") and line.strip("-\n "):
            print(line, end="", file=sys.stderr)
    runs: list[list[int]] = []  # the first address, the last, and how many run in calls
    # What is in no file is code that was made at run time, as oneDNN does.
    ends = sorted([(0, 0), *libraries, *others, (1 << 48, 1 << 48)])
    between = [(last + 1, first - 1) for (_, last), (first, _) in itertools.pairwise(ends)]
    for first, last in [*libraries, *between]:
        apart = NEAR
        for address in sorted(address for address in called if first <= address <= last):
            if not called[address]:
                apart += 1
            elif apart < NEAR:
                runs[-1][1:] = address, runs[-1][2] + 1
                apart = 0
            else:
                runs.append([address, address, 1])
                apart = 0
    places = [f"{first:#x}..{last:#x}" for first, last in libraries]
    return places, [f"{first:#x}..{last:#x}" for first, last, calls in runs if calls >= SHORTEST]


def count(cpu: str, activations: list[str], dtypes: list[str]) -> dict[tuple[str, ...], float]:
    """The instructions per element by activation, dtype, library and pass."""
    arguments = ["--activation", *activations, "--dtype", *dtypes]
    places, kernels = find_kernels(cpu, arguments)
    lengths: dict[str, int] = {}
    counts: Counter[tuple[str, ...]] = Counter()
    call: tuple[str, ...] = ()
    block = ""
    seen = []
    log = {"QEMU_LOG": "exec,nochain,in_asm", "QEMU_DFILTER": ",".join(kernels)}
    for line in emulate(cpu, arguments, log):
        if line.startswith("Trace "):
            counts[call] += lengths[line.split("/", 2)[1]]
        elif line.startswith("0x"):  # an instruction of a block, of 4 bytes
            address = line.partition(":")[0]
            block = block or f"{int(address, 16):016x}"
            lengths[block] = (int(address, 16) - int(block, 16)) // 4 + 1
        elif line.startswith("IN:"):
            block = ""
        elif line.startswith(CALL):
            call = tuple(line.split()[1:])
        elif line.startswith(CODE):
            seen.append(line.split()[1])
    if seen != places:
        raise SystemExit("the libraries were not where they had been")
    smaller, larger = map(str, SIZES)
    return {
        call[:-1]: (counts[call] - counts[(*call[:-1], smaller)]) / (SIZES[1] - SIZES[0])
        for call in list(counts)
        if call[-1:] == (larger,)
    }


def show(cpu: str, figures: dict[tuple[str, ...], float]) -> int:
    """Prints a table, and returns how many of fastops's figures are higher than PyTorch's."""
    table: dict[str, list[str]] = defaultdict(list)
    worse = 0
    for (name, dtype, library, which), ours in figures.items():
        if library == "fastops":
            theirs = figures[name, dtype, "torch", which]
            more = round(ours, 1) > round(theirs, 1)
            table[name].append(f"{ours:.1f} / {theirs:.1f}{'*' if more else ''}")
            worse += more
    dtypes = list(dict.fromkeys(dtype for _, dtype, *_ in figures))
    columns = [f"{dtype} {which}" for dtype in dtypes for which in ("forward", "backward")]
    print(f"\n{cpu}: instructions per element, fastops / PyTorch; where ours are more, *")
    for row in [("", columns), *table.items()]:
        print("| " + " | ".join([row[0].ljust(12), *(cell.rjust(17) for cell in row[1])]) + " |")
    return worse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emulated", help=argparse.SUPPRESS)
    parser.add_argument("--cpu", nargs="+", choices=CPUS, default=list(CPUS), help="instruction sets")
    parser.add_argument("--activation", nargs="*", default=[], help="by default all that PyTorch has, too")
    parser.add_argument("--dtype", nargs="*", choices=DTYPES, default=list(DTYPES))
    options = parser.parse_args()
    if not PYTHON.exists():
        raise SystemExit("make aarch64-check first, which builds fastops for Arm and gets a Python and torch for it")
    if options.emulated:
        run_in_emulator(options.emulated, options.activation, options.dtype)
        return 0
    worse = sum([show(cpu, count(cpu, options.activation, options.dtype)) for cpu in options.cpu])
    print(f"\n{worse} of fastops's figures are higher than PyTorch's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
