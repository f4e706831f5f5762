"""A function under ``fastops.fuse``, eagerly and under ``torch.compile``: the table in ``docs/compile.md``.

``python benchmarks/fused_functions.py`` times ``sin(x)**2 + cos(x)**2`` for a call without gradients, and for one with
a backward pass, on one thread: how many times as long as with ``fastops.fuse`` the others take.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

import fastops
from fastops.bench.timing import measure, warm_up

Function = Callable[[Tensor], Tensor]
EXPONENTS = (8, 12, 16, 20)


def formula(x: Tensor) -> Tensor:
    """What is computed."""
    return torch.sin(x) ** 2 + torch.cos(x) ** 2


def inference(function: Function, exponent: int) -> Callable[[], object]:
    """A call without gradients."""
    x = torch.randn(2**exponent)

    def run() -> None:
        with torch.no_grad():
            function(x)

    return run


def training(function: Function, exponent: int) -> Callable[[], object]:
    """A call and its backward pass, from a gradient of each result."""
    x = torch.randn(2**exponent, requires_grad=True)
    gradient = torch.randn(2**exponent)
    return lambda: torch.autograd.grad(function(x), x, gradient)


def main() -> None:
    """Parses the command line and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each measurement (default: 4)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("| elements | inference: eager | torch.compile | training: eager | torch.compile |")
    print("|---:|---:|---:|---:|---:|")
    for exponent in EXPONENTS:
        cells = [f"2^{exponent}"]
        for kind in (inference, training):
            torch._dynamo.reset()  # each compiles for this alone
            functions = {"eager": formula, "torch.compile": torch.compile(formula), "fuse": fastops.fuse(formula)}
            works = {name: kind(function, exponent) for name, function in functions.items()}
            warm_up(works)
            timings = measure(works, seconds=args.seconds, synchronize=lambda: None)
            cells += [f"{timings.ratio(other, 'fuse').median:.2f}" for other in ("eager", "torch.compile")]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
