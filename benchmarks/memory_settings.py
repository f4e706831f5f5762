"""What allocators do to the time of a large result: the table in ``docs/performance.md``.

``python benchmarks/memory_settings.py`` times ReLU and tanh-GELU of 2^24 float32 (64 MiB), PyTorch's and fastops', with
different settings of the memory that they get, each in a process of its own: for a call without gradients, and for one
with a backward pass. Linux; the settings of ``malloc`` are glibc's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable

import torch
from torch import Tensor

import fastops
from fastops.bench.models import pytorch_activation
from fastops.bench.timing import measure, warm_up

NOTHING_KEPT = {"FASTOPS_CPU_KEPT_MIB": "0"}
HUGE_PAGES_OF_MALLOC = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
HUGE_PAGES_OF_PYTORCH = {"THP_MEM_ALLOC_ENABLE": "1"}
ALL_KEPT_BY_MALLOC = {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=68719476736"}
SETTINGS: list[dict[str, str]] = [
    {},
    NOTHING_KEPT,
    HUGE_PAGES_OF_MALLOC,
    HUGE_PAGES_OF_PYTORCH,
    NOTHING_KEPT | HUGE_PAGES_OF_PYTORCH,
    ALL_KEPT_BY_MALLOC,
    NOTHING_KEPT | ALL_KEPT_BY_MALLOC,
    {"FASTOPS_CPU_KEPT_MIB": "256"},
]
ACTIVATIONS = ("relu", "gelu_tanh")


def cells(exponent: int, seconds: float) -> list[str]:
    """Milliseconds of PyTorch and of fastops, and their ratio, for each function, without and with a backward pass."""
    result = []
    x = torch.randn(2**exponent)
    gradient = torch.randn(2**exponent)
    for activation in ACTIVATIONS:
        functions = {"eager": pytorch_activation(activation), "fastops": getattr(fastops.functional, activation)}
        for with_gradients in (False, True):
            x.requires_grad_(with_gradients)

            def work(function: Callable[[Tensor], Tensor], backward: bool = with_gradients) -> Callable[[], object]:
                return lambda: torch.autograd.grad(function(x), x, gradient) if backward else function(x)

            works = {name: work(function) for name, function in functions.items()}
            warm_up(works)
            timings = measure(works, seconds=seconds, synchronize=lambda: None)
            eager, own = (timings.spread(name).median * 1e3 for name in ("eager", "fastops"))
            result += [f"{eager:.1f}", f"{own:.1f}", f"{timings.ratio('eager', 'fastops').median:.1f}"]
    return result


def main() -> None:
    """Parses the command line and prints the table, whose lines other processes measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--exponent", type=int, default=24, help="of the number of elements (default: 24)")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each measurement (default: 4)")
    parser.add_argument("--one", action="store_true", help="the settings that this process was started with, alone")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.one:
        print(*cells(args.exponent, args.seconds), sep=" | ")
        return
    columns = [
        f"{name}{', ' * bool(mode)}{mode}: {each}"
        for name in ACTIVATIONS
        for mode in ("", "training")
        for each in ("PyTorch", "fastops", "ratio")
    ]
    print(f"| settings | {' | '.join(columns)} |")
    print(f"|---|{'--:|' * len(columns)}")
    for setting in SETTINGS:
        names = ", ".join(f"`{name}={value}`" for name, value in setting.items()) or "as it comes"
        # An own process: the settings are read when it starts.
        command = [sys.executable, __file__, "--one", "--threads", args.threads, "--exponent", args.exponent]
        command += ["--seconds", args.seconds]
        line = subprocess.run(
            [str(each) for each in command], env=os.environ | setting, check=True, stdout=subprocess.PIPE, text=True
        )
        print(f"| {names} | {line.stdout.strip()} |", flush=True)


if __name__ == "__main__":
    main()
