"""What is kept by a server: the memory that a process holds after many threads have run networks of random sizes.

    python benchmarks/kept_memory.py
    python benchmarks/kept_memory.py --eager    # with PyTorch's own layers

The threads take 1,000 networks in turns, forward and backward, and stay. Then everything that they made is gone, and
what the process has grown by is somebody's cache: of fastops, or of glibc, whose part ``malloc_trim`` gives back.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import os
import random
import threading
from collections.abc import Iterator

import torch
from torch import nn

import fastops

MIB = 2**20


def resident() -> int:
    """The bytes of this process that are in memory (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def networks(count: int, seed: int) -> Iterator[tuple[list[int], int]]:
    """Features of each layer and rows: numbers of every magnitude alike."""
    choice = random.Random(seed)
    for _ in range(count):
        depth = choice.randint(2, 4)
        yield [int(2 ** choice.uniform(3, 10)) for _ in range(depth + 1)], int(2 ** choice.uniform(0, 13))


def run(features: list[int], rows: int, *, eager: bool) -> None:
    """Makes a network, runs it forward and backward once, and drops it."""
    layers: list[nn.Module] = [nn.Linear(features[0], features[1])]
    for inputs, outputs in itertools.pairwise(features[1:]):
        layers += [nn.GELU(), nn.Linear(inputs, outputs)]
    sequential = nn.Sequential(*layers)
    model = sequential if eager else fastops.nn.MLP.from_sequential(sequential)
    model(torch.randn(rows, features[0])).square().mean().backward()


def main() -> None:
    """Runs the networks and prints what is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--networks", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eager", action="store_true", help="PyTorch's own layers")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    run([8, 8, 8], 8, eager=arguments.eager)
    before = resident()
    todo = networks(arguments.networks, arguments.seed)
    turn = threading.Lock()
    done = threading.Barrier(arguments.threads + 1)

    def work() -> None:
        while True:
            with turn:
                sizes = next(todo, None)
            if sizes is None:
                break
            run(*sizes, eager=arguments.eager)
        done.wait()  # all have run
        done.wait()  # the figures are taken

    threads = [threading.Thread(target=work) for _ in range(arguments.threads)]
    for thread in threads:
        thread.start()
    done.wait()
    gc.collect()
    print(f"{arguments.networks} networks on {arguments.threads} threads")
    print(f"held: {(resident() - before) / MIB:.0f} MiB")
    ctypes.CDLL(None).malloc_trim(0)
    print(f"without what glibc kept: {(resident() - before) / MIB:.0f} MiB")
    memory = getattr(fastops, "memory", None)
    if memory is not None:
        print(memory.stats())
        memory.empty_cache()
        ctypes.CDLL(None).malloc_trim(0)
        print(f"after fastops.memory.empty_cache(): {(resident() - before) / MIB:.0f} MiB")
    done.wait()


if __name__ == "__main__":
    main()
