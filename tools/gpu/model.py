"""A model of the benchmark's times on GPUs that nobody has measured yet: what to expect, and what to argue with.

    python tools/gpu/model.py --gpu H100 --suite ffn elementwise --measured bench/results.csv

prints a Markdown table: fastops' and eager's time of each case, what bounds fastops', and measured times where there
are any. A case is a list of kernels. A kernel takes the longest of what its bytes, its arithmetic and the way through
one block (as often as blocks come one after another) take, and a gap before the next. A case takes as long as its
kernels or as the host takes to launch them, whichever is longer, as the benchmark calls it again and again.

What it does not know: what PyTorch's libraries choose for a product, clocks under load, caches between kernels beyond
"it all fits", and memory allocation. Efficiencies and latencies are assumptions, below; expect errors of 1.5 either
way, more for tiny networks. Instructions per element are those of build/gpu-check/kernels.csv where check_kernels.py
has left it, else 30: all of a kernel's, which has its formula once for each element of a packet and once more.
Of PTX, the GPU's own instructions are about as many.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import occupancy

from fastops.bench import results, suites
from fastops.bench.workloads import INFERENCE, MODES, Elementwise, Network, Workload, dtype_name

KERNELS = Path(__file__).resolve().parents[2] / "build/gpu-check/kernels.csv"

# Assumptions, in seconds and parts of a peak.
OP = 4.5e-6  # the host's, for an op that launches a kernel
LAUNCH = 2.0e-6  # for each further kernel of an op
NODE = 5.0e-6  # besides, for an op that autograd records and runs backward
GAP = 1.0e-6  # between two kernels of a stream
LATENCY = 0.8e-6  # of a load from memory; a block loads and stores
BARRIERS = 0.1e-6  # two of a block
OF_BANDWIDTH, OF_ISSUE = 0.85, 0.7
TILES = {128: 0.75, 64: 0.5, 32: 0.25}  # sides of a product's tiles, and what of the peak they reach
INSTRUCTIONS = 30.0  # of an element, where nobody has counted
MODELLED = ("tiny", "digits", "ffn", "elementwise", "products")


@dataclass(frozen=True)
class Gpu:
    """What its maker says, but for the bandwidth of the cache: FLOP/s, bytes and bytes/s."""

    name: str
    arch: str  # whose budget of occupancy and instructions count
    float32: float
    matrix16: float
    bandwidth: float
    cache: float
    cache_bandwidth: float
    processors: int
    clock: float


GPUS = {
    gpu.name: gpu
    for gpu in [
        # NVIDIA H100 datasheet (SXM, dense); L2: Chips and Cheese, "Nvidia's H100".
        Gpu("H100", "sm_90", 66.9e12, 989e12, 3.35e12, 50e6, 5.5e12, 132, 1.98e9),
        # AMD Instinct MI300X data sheet (dense), with the peak of its Infinity Cache.
        Gpu("MI300X", "gfx942", 163.4e12, 1307e12, 5.3e12, 256e6, 17.2e12, 304, 2.1e9),
        # AMD's product page of the RX 7900 XTX: float32 by pairs of instructions; 48 WGPs; 3.5 TB/s: AMD on RDNA 3.
        Gpu("7900XTX", "gfx1100", 61.4e12, 122.8e12, 0.96e12, 96e6, 3.5e12, 48, 2.5e9),
        # Apple: 40 cores, 546 GB/s. No more is published: 128 lanes a core at 1.58 GHz, as others measured; the cache
        # is a guess. There is no compiler here that counts, so sm_90's instructions and occupancy stand in.
        Gpu("M4Max", "sm_90", 16.2e12, 16.2e12, 0.546e12, 48e6, 1.0e12, 40, 1.58e9),
    ]
}


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


def small_network(gpu: Gpu, sizes: list[int], rows: int, itemsize: int, backward: bool) -> list[Kernel]:
    """A network in one kernel (small_mlp.hip): panels of weights are on their way during the products before them."""
    kind = f"{'backward' if backward else 'forward'}<{'float' if itemsize == 4 else 'float16'}>"
    room = occupancy.budget()["small_mlp", kind].blocks[gpu.arch]
    tile_rows, on_their_way = 32, 1 if backward else 2
    waves = math.ceil(math.ceil(rows / tile_rows) / (gpu.processors * room))
    # 8 waves of threads on 4 SIMDs, 16 multiply-adds of each thread for each k, with as many other instructions.
    cycles_of_k = 2 * (16 + 16)
    way = 2 * LATENCY
    for inputs, outputs in pairwise(sizes):
        way += LATENCY  # of the bias
        if itemsize == 4:
            panels = math.ceil(inputs / (16 if outputs > 64 else 32))
            products = inputs * cycles_of_k * min(1, outputs / 128) / gpu.clock
            way += max(panels * LATENCY / on_their_way, products) + panels * BARRIERS
        else:  # asked for at once and ahead, where it lies in packets, and forward
            loads = (2 if backward else 0) if inputs % 8 == 0 else math.ceil(inputs / 32) * math.ceil(outputs / 32)
            way += loads * LATENCY + 2 * BARRIERS + math.ceil(inputs / 16) * cycles_of_k / gpu.clock
    kernels = [Kernel({"latency": way * waves * (2.5 if backward else 1)})]
    if not backward:
        return kernels
    # Blocks write their sums, and another kernel reads them.
    sums = math.ceil(rows / tile_rows) * sum(outputs * (inputs + 1) for inputs, outputs in pairwise(sizes))
    return [*kernels, Kernel({"latency": 3 * LATENCY, "bytes": moved(gpu, 2 * 4 * sums)})]


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
    if workload.suite not in MODELLED or not match:
        return None
    sizes, rows, itemsize = [int(size) for size in match[1].split("-")], workload.size, workload.dtype.itemsize
    training, layers = mode != INFERENCE, len(sizes) - 1

    def passes(features: int, *operands: int) -> list[Kernel]:
        return [elementwise(gpu, rows * features, n, itemsize, instructions) for n in operands]

    shapes = [(inputs, outputs) for inputs, outputs in pairwise(sizes)]
    shapes = [shapes[0], *shapes] if gated else shapes
    products = [product(gpu, rows, outputs, inputs, itemsize) for inputs, outputs in shapes]
    activated = sizes[1:-1]
    own, eager = list(products), list(products)
    for features in activated:
        own += passes(features, 3 if gated else 2)
        eager += passes(features, *((2, 3) if gated else (2,)))
    host_own, host_eager = host(1, len(own)), host(len(eager), len(eager))
    if training:
        for i, (inputs, outputs) in enumerate(shapes):
            back = [product(gpu, outputs, inputs, rows, itemsize)]
            if i or workload.input_gradient:
                back.append(product(gpu, rows, inputs, outputs, itemsize))
            own, eager = own + back, eager + back
            if not gated:  # the bias' gradient: of fastops' hidden layers with the derivative, then the blocks' sums
                own += (passes(outputs, 1) if i == layers - 1 else []) + [Kernel({"latency": 2 * LATENCY})]
                eager += passes(outputs, 1)
        for features in activated:
            own += passes(features, 6 if gated else 3)
            eager += passes(features, *((3, 3, 3) if gated else (3,)))
        eager += passes(sizes[0], 3) if gated else []  # the sum of the input's gradients
        loss = passes(sizes[-1], 2, 3)
        host_loss = host(2, 2, nodes=1)
        own, eager = own + loss, eager + loss
        host_own = host(2, len(own) - 2, nodes=1) + host_loss
        host_eager = host(len(eager) - 2, len(eager) - 2, nodes=len(products) + len(activated)) + host_loss
    time = Time(own, host_own)
    if not gated and max(sizes) <= 128 and layers <= 8:  # the library counts, too: small_mlp.cpp
        own, host_own = small_network(gpu, sizes, rows, itemsize, backward=False), host(1, 1)
        if training:
            own += small_network(gpu, sizes, rows, itemsize, backward=True) + loss
            host_own = host(2, 3, nodes=1) + host_loss
        time = min(time, Time(own, host_own), key=lambda time: time.seconds)
    return time, Time(eager, host_eager)


Counts = dict[tuple[str, str], float]


def counted(arch: str, path: Path = KERNELS) -> Counts:
    """Instructions of an element of a forward kernel, by activation and dtype."""
    found: Counts = {}
    if not path.exists():
        return found
    pattern = re.compile(r"::transform<(?:fastops::hip::)?(\w+), 1, 1, .*?activations::(\w+),")
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
    return {(row.case, row.peer): row.seconds for row in results.read(path.parent) if row.seconds}


def table(gpu: Gpu, names: list[str], case: str, times: dict[tuple[str, str], float], quick: bool) -> Iterator[str]:
    """The lines of the table, with what was measured where anything was."""
    heads = ["suite", "case", "dtype", "fastops, µs", "eager, µs", "ratio", "bound by"]
    heads += ["fastops measured", "model's error", "eager measured", "model's error"] if times else []
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    counts = counted(gpu.arch)
    for workload in (workload for name in names for workload in suites.SUITES[name](quick)):
        for mode in MODES:
            pair = predicted(gpu, workload, mode, counts)
            if pair is None or not re.search(case, workload.case(mode)):
                continue
            own, eager = pair
            cells = [workload.suite, f"{workload.name}, {workload.size_text}, {mode}", dtype_name(workload.dtype)]
            cells += [f"{own.seconds * 1e6:.1f}", f"{eager.seconds * 1e6:.1f}"]
            cells += [f"{eager.seconds / own.seconds:.2f}", own.bound]
            for time, peer in zip(pair, ("fastops", "eager"), strict=True) if times else ():
                seconds = times.get((workload.case(mode), peer))
                cells += [f"{seconds * 1e6:.1f}", f"{time.seconds / seconds - 1:+.0%}"] if seconds else ["", ""]
            yield f"| {' | '.join(cells)} |"


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", choices=GPUS, default="H100")
    parser.add_argument("--suite", nargs="*", choices=MODELLED, default=list(MODELLED))
    parser.add_argument("--case", default="", help="a regular expression that chooses cases")
    parser.add_argument("--quick", action="store_true", help="the fewer cases of the benchmark's --quick")
    parser.add_argument("--measured", type=Path, metavar="CSV", help="results.csv of a run on this GPU")
    args = parser.parse_args()
    times = measured(args.measured) if args.measured else {}
    print("\n".join(table(GPUS[args.gpu], args.suite, args.case, times, args.quick)))


if __name__ == "__main__":
    main()
