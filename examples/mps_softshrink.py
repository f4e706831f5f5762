"""Profiles a network of linear layers and softshrink on an Apple GPU, with PyTorch's ops and with fastops.

Run it with ``python examples/mps_softshrink.py`` on a Mac. Signposts show each part in Instruments; the times are those
of events on the GPU. It also prints which of PyTorch's ops have no kernel for the GPU and run on the CPU instead, and
which kernels of fastops were launched. Without a Mac it runs on the stand-in for the device of tests/metal, and then
prints no times.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

# PyTorch reads it when it is loaded. What has no kernel for the GPU then runs on the CPU, instead of raising.
os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")

import torch
from common import positive
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fastops

HAS_GPU = torch.backends.mps.is_built()  # false where the stand-in is


def networks(features: int, hidden: int, layers: int) -> dict[str, nn.Module]:
    """The network twice with the same weights: by PyTorch and by fastops."""
    modules: list[nn.Module] = []
    for _ in range(layers):
        modules += [nn.Linear(features if not modules else hidden, hidden), nn.Softshrink()]
    pytorch = nn.Sequential(*modules, nn.Linear(hidden, features))
    return {
        "PyTorch": pytorch.to("mps"),
        "fastops": fastops.nn.MLP.from_sequential(copy.deepcopy(pytorch)).to("mps"),
    }


@contextlib.contextmanager
def signposts() -> Iterator[None]:
    """Has PyTorch mark its ops for Instruments."""
    if HAS_GPU:
        with torch.mps.profiler.profile(mode="interval", wait_until_completed=False):
            yield
    else:
        yield


def milliseconds(work: Callable[[], Any], rounds: int) -> float:
    """The median time that the GPU takes."""
    times = []
    for _ in range(rounds):
        start, end = (torch.mps.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.mps.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


class Calls(TorchDispatchMode):
    """Notes the ops that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(function.name())
        return function(*args, **(kwargs or {}))


def runs_on_cpu(op: str) -> bool:
    """Whether an op has neither a kernel for the GPU nor one in terms of other ops."""
    keys = ("MPS", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    return not any(torch._C._dispatch_has_kernel_for_dispatch_key(op, key) for key in keys)


def train(network: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """One step forward and backward; the loss."""
    network.zero_grad()
    loss = (network(x) - target).square().mean()
    loss.backward()
    return loss.detach()


def profile(name: str, network: nn.Module, x: Tensor, target: Tensor, rounds: int) -> Tensor:
    """Prints what one step consists of and how long it takes; the loss."""
    with Calls() as calls:
        loss = train(network, x, target)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        train(network, x, target)
    kernels = [f"{event.count} x {event.key}" for event in profiler.key_averages() if event.key.startswith("fastops_")]
    print(f"\n{name}: {len(calls.names)} different ops; loss {loss.item():.6f}")
    print("  run on the CPU:", ", ".join(sorted(filter(runs_on_cpu, calls.names))) or "none")
    print("  kernels of fastops:", ", ".join(kernels) or "none")
    if HAS_GPU:
        with torch.no_grad():
            forward = milliseconds(lambda: network(x), rounds)
        both = milliseconds(lambda: train(network, x, target), rounds)
        print(f"  forward {forward:.3f} ms, forward and backward {both:.3f} ms")
    return loss.cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=positive, default=4096)
    parser.add_argument("--features", type=positive, default=784)
    parser.add_argument("--hidden", type=positive, default=256)
    parser.add_argument("--layers", type=positive, default=3)
    parser.add_argument("--rounds", type=positive, default=30)
    arguments = parser.parse_args()
    if not torch.backends.mps.is_available():
        sys.exit("PyTorch finds no Apple GPU here (torch.backends.mps.is_available() is False)")

    torch.manual_seed(0)
    x = torch.randn(arguments.rows, arguments.features, device="mps")
    target = torch.randn(arguments.rows, arguments.features, device="mps")
    with signposts():
        losses = [
            profile(name, network, x, target, arguments.rounds)
            for name, network in networks(arguments.features, arguments.hidden, arguments.layers).items()
        ]
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
    print("\nThe losses agree." if HAS_GPU else "\nThe losses agree. No GPU, no times.")


if __name__ == "__main__":
    main()
