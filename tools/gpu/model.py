"""A model of the benchmark's times on GPUs: what to expect, and what to argue with.

    python tools/gpu/model.py --gpu H100 --suite ffn elementwise --measured bench/results.csv

prints a Markdown table: fastops' and eager's time of each case, both also as CUDA graphs, what bounds fastops', and
measured times where there are any. A case is a list of kernels. A kernel takes the longest of what its bytes, its
arithmetic and the way through one block (as often as blocks come one after another) take, and a gap before the next. A
case takes as long as its kernels or as the host takes to launch them, whichever is longer, as the benchmark calls it
again and again. A graph has the same kernels with smaller gaps, and one launch.

Small networks and own products are counted by the library's own counts, by which it chooses their kernels
(src/backends/hip/small_mlp_time.h, product_time.h): those of an H100, whatever the GPU. PyTorch's products take no less
than what was measured of them there. PyTorch's sum over rows is a pass over its matrix, though it has few
threads for few rows.

What the model does not know: what PyTorch's libraries choose for a product, clocks under load, caches between kernels
beyond "it all fits", and memory allocation. Efficiencies and latencies are assumptions, below, but for one that
was measured; docs/gpu.md compares what comes out with times of an H100. Instructions per element are those of
build/gpu-check/kernels.csv where check_kernels.py has left it, else 30: all of a kernel's, which has its formula once
for each element of a packet and once more. Of PTX, the GPU's own instructions are about as many.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import functools
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from fastops.bench import models, results, suites
from fastops.bench.workloads import INFERENCE, MODES, Elementwise, Network, Workload, dtype_name

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "build/gpu-check/kernels.csv"

# Assumptions, in seconds and parts of a peak.
OP = 4.5e-6  # the host's, for an op that launches a kernel
LAUNCH = 2.0e-6  # for each further kernel of an op
NODE = 5.0e-6  # besides, for an op that autograd records and runs backward
GAP = 1.0e-6  # between two kernels of a stream
LATENCY = 0.8e-6  # of a load from memory; a block loads and stores
GRAPH = 2.5e-6  # the host's, for a CUDA graph: NVIDIA's blog, "Constant Time Launch for Straight-Line CUDA Graphs"
GRAPH_GAP = 0.5e-6  # between two kernels of one: "Getting Started with CUDA Graphs" there, 3.4 us for kernels of 2.9
OF_BANDWIDTH, OF_ISSUE = 0.89, 0.7  # the former: a copy of 512 MiB on an H100, measured
TILES = {128: 0.75, 64: 0.5, 32: 0.25}  # sides of a product's tiles, and what of the peak they reach
INSTRUCTIONS = 30.0  # of an element, where nobody has counted
SUM_INSTRUCTIONS = 4.0  # of an element that is but added


@dataclass(frozen=True)
class Gpu:
    """What its maker says, but for the bandwidth of the cache: FLOP/s, bytes and bytes/s."""

    name: str
    arch: str  # whose instructions count
    float32: float
    matrix16: float
    bandwidth: float
    cache: float
    cache_bandwidth: float
    processors: int


GPUS = {
    gpu.name: gpu
    for gpu in [
        # NVIDIA H100 datasheet (SXM, dense); L2: Chips and Cheese, "Nvidia's H100".
        Gpu("H100", "sm_90", 66.9e12, 989e12, 3.35e12, 50e6, 5.5e12, 132),
        # AMD Instinct MI300X data sheet (dense), with the peak of its Infinity Cache.
        Gpu("MI300X", "gfx942", 163.4e12, 1307e12, 5.3e12, 256e6, 17.2e12, 304),
        # AMD's product page of the RX 7900 XTX: float32 by pairs of instructions; 48 WGPs; 3.5 TB/s: AMD on RDNA 3.
        Gpu("7900XTX", "gfx1100", 61.4e12, 122.8e12, 0.96e12, 96e6, 3.5e12, 48),
        # Apple: 40 cores, 546 GB/s. No more is published: 128 lanes a core at 1.58 GHz, as others measured; the cache
        # is a guess. There is no compiler here that counts, so sm_90's instructions stand in.
        Gpu("M4Max", "sm_90", 16.2e12, 16.2e12, 0.546e12, 48e6, 1.0e12, 40),
    ]
}


def small(quick: bool) -> Iterator[Workload]:
    """Networks that are one kernel, up to more rows than are worth it."""
    for sizes in ((17, 64, 64, 6), (64, 128, 128, 64)):
        build = partial(models.sequential, sizes, nn.Tanh())
        for dtype in (torch.float32, torch.bfloat16):
            for rows in (64, 1024) if quick else (1, 64, 1024, 4096, 16384):
                yield Network("small", f"{'-'.join(map(str, sizes))}-tanh", rows, dtype, build)


# What is modelled of the benchmark's suites, and one more.
SUITES = {name: suites.SUITES[name] for name in ("tiny", "digits", "ffn", "elementwise", "products")} | {"small": small}


@dataclass(frozen=True)
class Kernel:
    """One launch: seconds by each bound."""

    by: dict[str, float]

    @property
    def seconds(self) -> float:
        return max(self.by.values()) + GAP


def moved(gpu: Gpu, count: float, working_set: float | None = None) -> float:
    """Seconds for so many bytes."""
    rate = gpu.cache_bandwidth if (working_set or count) <= gpu.cache else gpu.bandwidth
    return count / (max(rate, gpu.bandwidth) * OF_BANDWIDTH)


def elementwise(gpu: Gpu, elements: float, operands: int, itemsize: int, instructions: float) -> Kernel:
    """A pass over memory: each thread takes 16 bytes of each operand."""
    count = elements * operands * itemsize
    blocks = math.ceil(elements * itemsize / 16 / 256)
    at_once = gpu.processors * 8
    return Kernel(
        {
            "bytes": moved(gpu, count),
            "instructions": elements * instructions / (gpu.float32 / 2 * OF_ISSUE),
            # Loads of later blocks are under way while the first ones wait.
            "latency": 2 * LATENCY * min(2, math.ceil(blocks / at_once)),
        }
    )


def row_sums(gpu: Gpu, rows: int, columns: int, itemsize: int) -> Kernel:
    """PyTorch's sum over rows: the matrix is read once."""
    return elementwise(gpu, rows * columns, 1, itemsize, SUM_INSTRUCTIONS)


def product(gpu: Gpu, rows: int, columns: int, depth: int, itemsize: int) -> Kernel:
    """[rows, depth] x [depth, columns] with the best of the tiles, whose last wave may be half empty."""
    peak = (gpu.matrix16 if itemsize == 2 else gpu.float32) / gpu.processors

    def of_tiles(side: int, parts: int) -> float:
        tiles = math.ceil(rows / side) * math.ceil(columns / side) * parts
        share = math.ceil(depth / parts)
        added = moved(gpu, 8 * rows * columns * parts) + LATENCY if parts > 1 else 0.0
        return math.ceil(tiles / gpu.processors) * 2 * side * side * share / (peak * TILES[side]) + added

    count = itemsize * (rows * depth + depth * columns + rows * columns)
    return Kernel(
        {
            "bytes": moved(gpu, count),
            "products": min(of_tiles(side, parts) for side in TILES for parts in (1, 2, 4, 8)),
            "latency": 3 * LATENCY,
        }
    )


@functools.cache
def small_mlp_time() -> ctypes.CDLL:
    """The library's own count of small networks, compiled: the one by which it chooses."""
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "small_mlp_time.so"
        command = [os.environ.get("CXX", "c++"), "-std=c++20", "-shared", "-fPIC", f"-I{ROOT / 'src'}"]
        subprocess.run([*command, "-o", library, Path(__file__).with_name("small_mlp_time.cpp")], check=True)
        loaded = ctypes.CDLL(str(library))
    loaded.small_mlp_kernel.restype = loaded.small_mlp_sums.restype = loaded.own_product.restype = ctypes.c_int64
    loaded.library_product.restype = ctypes.c_int64
    loaded.small_mlp_is_faster.restype = loaded.own_products_are_faster.restype = ctypes.c_bool
    return loaded


FORWARD, BACKWARD, WEIGHTS = range(3)  # kinds of products, as in product_time.h


def library_product(gpu: Gpu, kind: int, rows: int, columns: int, depth: int, itemsize: int) -> Kernel:
    """PyTorch's: no shorter than what an H100's were measured to take."""
    kernel = product(gpu, rows, columns, depth, itemsize)
    if itemsize == 8:
        return kernel
    sizes = (ctypes.c_int64 * 4)(kind, rows, columns, depth)
    measured = small_mlp_time().library_product(sizes, ctypes.c_int64(itemsize)) * 1e-9
    return Kernel(kernel.by | {"products": max(kernel.by["products"], measured)})


def own_products(gpu: Gpu, itemsize: int, products: list[tuple[int, int, int, int, int]]) -> list[Kernel] | None:
    """The library's own products, where it chooses them: kind, rows, columns, depth, PyTorch's steps."""
    if itemsize == 8 or gpu.name == "M4Max":  # Metal has no such kernels
        return None
    counted, of_gpu = small_mlp_time(), (ctypes.c_int64(itemsize), ctypes.c_int64(gpu.processors))
    numbers = [number for product in products for number in product]
    array = (ctypes.c_int64 * len(numbers))(*numbers)
    if not counted.own_products_are_faster(ctypes.c_int64(len(products)), array, *of_gpu):
        return None
    times = [counted.own_product((ctypes.c_int64 * 5)(*product), *of_gpu) for product in products]
    return [Kernel({"products": nanoseconds * 1e-9}) for nanoseconds in times]


def small_network(
    gpu: Gpu, sizes: list[int], rows: int, itemsize: int, backward: bool, steps: int
) -> list[Kernel] | None:
    """A network in one kernel (small_mlp.hip), where the library chooses that; backward, in two."""
    if max(sizes) > 128 or len(sizes) > 9:
        return None
    arguments = [len(sizes) - 1, (ctypes.c_int64 * len(sizes))(*sizes), rows, itemsize, gpu.processors]
    wide = [ctypes.c_int64(value) if isinstance(value, int) else value for value in arguments]
    counted = small_mlp_time()
    if not counted.small_mlp_is_faster(*wide, ctypes.c_bool(backward), ctypes.c_int64(steps)):
        return None
    kernels = [Kernel({"latency": counted.small_mlp_kernel(*wide, ctypes.c_bool(backward)) * 1e-9})]
    if backward:  # the second one adds up the blocks' sums
        kernels.append(Kernel({"latency": 3 * LATENCY, "bytes": counted.small_mlp_sums(*wide) * 1e-9}))
    return kernels


@dataclass(frozen=True)
class Time:
    """Of a case."""

    kernels: list[Kernel]
    host: float

    @property
    def device(self) -> float:
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def seconds(self) -> float:
        return max(self.device, self.host)

    @property
    def graph(self) -> float:
        """The same kernels as a CUDA graph."""
        return max(GRAPH, self.device - (GAP - GRAPH_GAP) * len(self.kernels))

    @property
    def bound(self) -> str:
        """What takes most of it."""
        if self.host >= self.device:
            return "host"
        sums = {"gaps": GAP * len(self.kernels)}
        for kernel in self.kernels:
            what = max(kernel.by, key=lambda name: kernel.by[name])
            sums[what] = sums.get(what, 0.0) + kernel.by[what]
        return max(sums, key=lambda name: sums[name])


def host(ops: int, kernels: int, nodes: int = 0) -> float:
    """The host's time for ops of PyTorch's dispatcher, their kernels, and what autograd has of them."""
    return ops * OP + (kernels - ops) * LAUNCH + nodes * NODE


def of_elementwise(gpu: Gpu, workload: Elementwise, mode: str, instructions: float) -> tuple[Time, Time]:
    """fastops' and eager's time."""
    itemsize, training = workload.dtype.itemsize, mode != INFERENCE
    steps = {"quick_gelu": 3, "relu_squared": 2}.get(workload.name, 1)  # eager's ops
    kernels = [elementwise(gpu, workload.size, 2, itemsize, instructions)]
    if training:
        kernels.append(elementwise(gpu, workload.size, 3, itemsize, instructions))
    one = host(len(kernels), len(kernels), nodes=int(training))
    return Time(kernels, one), Time(kernels * steps, one * steps)


def of_network(gpu: Gpu, workload: Network, mode: str, instructions: float) -> tuple[Time, Time] | None:
    """fastops' and eager's time; None for networks that are not modelled."""
    gated = workload.name.startswith("swiglu-")
    match = re.fullmatch(r"(?:swiglu-)?(\d+(?:-\d+)+)(?:-[a-z_]+)?", workload.name)
    if workload.suite not in SUITES or not match:
        return None
    sizes, rows, itemsize = [int(size) for size in match[1].split("-")], workload.size, workload.dtype.itemsize
    training, layers = mode != INFERENCE, len(sizes) - 1

    def passes(features: int, *operands: int) -> list[Kernel]:
        return [elementwise(gpu, rows * features, n, itemsize, instructions) for n in operands]

    shapes = [(inputs, outputs) for inputs, outputs in pairwise(sizes)]
    shapes = [shapes[0], *shapes] if gated else shapes
    activated = sizes[1:-1]
    eager = [library_product(gpu, FORWARD, rows, outputs, inputs, itemsize) for inputs, outputs in shapes]
    own = []
    for i, (inputs, outputs) in enumerate(shapes):
        step = 0 if gated or i + 1 == layers else 1  # the activation, which an own product does
        done = own_products(gpu, itemsize, [(FORWARD, rows, outputs, inputs, step)])
        own += done or [eager[i], *(passes(outputs, 2) if step else ())]
    for features in activated:
        own += passes(features, 3) if gated else []
        eager += passes(features, *((2, 3) if gated else (2,)))
    if not gated:
        own = small_network(gpu, sizes, rows, itemsize, False, len(activated)) or own
    if not training:
        return Time(own, host(1, len(own))), Time(eager, host(len(eager), len(eager)))

    own_back: list[Kernel] = []
    for i, (inputs, outputs) in enumerate(shapes):
        own_back.append(library_product(gpu, WEIGHTS, outputs, inputs, rows, itemsize))
        if i or workload.input_gradient:
            own_back.append(library_product(gpu, BACKWARD, rows, inputs, outputs, itemsize))
    eager_back = list(own_back)
    for features in activated:
        own_back += passes(features, 6 if gated else 3)
        eager_back += passes(features, *((3, 3, 3) if gated else (3,)))
    if gated:
        eager_back += passes(sizes[0], 3)  # the sum of the input's gradients
    else:
        # The biases' gradients: fastops' of hidden layers come with the derivative, and then the blocks' sums.
        own_back += [Kernel({"latency": 2 * LATENCY}) for _ in activated] + [row_sums(gpu, rows, sizes[-1], itemsize)]
        eager_back += [row_sums(gpu, rows, features, itemsize) for features in sizes[1:]]
        products = [(WEIGHTS, outputs, inputs, rows, 1) for inputs, outputs in shapes]
        below = shapes if workload.input_gradient else shapes[1:]
        products += [(BACKWARD, rows, inputs, outputs, 1) for inputs, outputs in below]
        own_back = own_products(gpu, itemsize, products) or own_back
        own_back = small_network(gpu, sizes, rows, itemsize, True, layers) or own_back
    loss, host_loss = passes(sizes[-1], 2, 3), host(2, 2, nodes=1)
    host_own = host(1, len(own)) + host(1, len(own_back), nodes=1)
    host_eager = host(len(eager + eager_back), len(eager + eager_back), nodes=len(shapes) + len(activated))
    return (
        Time(own + own_back + loss, host_own + host_loss),
        Time(eager + eager_back + loss, host_eager + host_loss),
    )


Counts = dict[tuple[str, str], float]


def counted(arch: str, path: Path = KERNELS) -> Counts:
    """Instructions of an element of a forward kernel, by activation and dtype."""
    found: Counts = {}
    if not path.exists():
        return found
    pattern = re.compile(r"::transform_row<(?:fastops::hip::)?(\w+), 1, 1, .*?activations::(\w+),")
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["gpu"] == arch and row["source"] == "activation" and (match := pattern.search(row["kernel"])):
                width = {"double": 2, "float": 4}.get(match[1], 8)
                dtype = {"double": "float64", "float": "float32"}.get(match[1], match[1])
                found[match[2].lower(), dtype] = int(row["instructions"]) / (width + 1)
    return found


def predicted(gpu: Gpu, workload: Workload, mode: str, counts: Counts) -> tuple[Time, Time] | None:
    """fastops' and eager's time, where the case is modelled."""
    name = re.sub(r"[^a-z]", "", workload.name) if isinstance(workload, Elementwise) else "gelu"
    instructions = counts.get((name, dtype_name(workload.dtype)), INSTRUCTIONS)
    if isinstance(workload, Elementwise):
        return of_elementwise(gpu, workload, mode, instructions)
    return of_network(gpu, workload, mode, instructions) if isinstance(workload, Network) else None


def measured(path: Path) -> dict[tuple[str, str], float]:
    """Seconds by case and peer, of python -m fastops.bench's file."""
    return {(row.case, row.peer): row.seconds for row in results.read(path.parent, path.name) if row.seconds}


def table(gpu: Gpu, names: list[str], case: str, times: dict[tuple[str, str], float], quick: bool) -> Iterator[str]:
    """The lines of the table, with what was measured where anything was."""
    heads = ["suite", "case", "dtype", "fastops, µs", "its graph", "eager, µs", "its graph", "ratio", "of graphs"]
    heads.append("bound by")
    heads += ["fastops measured", "model's error", "eager measured", "model's error"] if times else []
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    counts = counted(gpu.arch)
    for workload in (workload for name in names for workload in SUITES[name](quick)):
        for mode in MODES:
            pair = predicted(gpu, workload, mode, counts)
            if pair is None or not re.search(case, workload.case(mode)):
                continue
            own, eager = pair
            cells = [workload.suite, f"{workload.name}, {workload.size_text}, {mode}", dtype_name(workload.dtype)]
            cells += [f"{seconds * 1e6:.1f}" for time in pair for seconds in (time.seconds, time.graph)]
            cells += [f"{eager.seconds / own.seconds:.2f}", f"{eager.graph / own.graph:.2f}", own.bound]
            for time, peer in zip(pair, ("fastops", "eager"), strict=True) if times else ():
                seconds = times.get((workload.case(mode), peer))
                cells += [f"{seconds * 1e6:.1f}", f"{time.seconds / seconds - 1:+.0%}"] if seconds else ["", ""]
            yield f"| {' | '.join(cells)} |"


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", choices=GPUS, default="H100")
    parser.add_argument("--suite", nargs="*", choices=SUITES, default=list(SUITES))
    parser.add_argument("--case", default="", help="a regular expression that chooses cases")
    parser.add_argument("--quick", action="store_true", help="the fewer cases of the benchmark's --quick")
    parser.add_argument("--measured", type=Path, metavar="CSV", help="results of a run on this GPU")
    args = parser.parse_args()
    times = measured(args.measured) if args.measured else {}
    print("\n".join(table(GPUS[args.gpu], args.suite, args.case, times, args.quick)))


if __name__ == "__main__":
    main()
