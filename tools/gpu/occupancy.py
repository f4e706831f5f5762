"""How many blocks of a kernel a multiprocessor has room for, and the budget that no kernel may fall below.

A multiprocessor is what the runtimes call so: a CU of CDNA, a WGP of RDNA (two CUs, over which a block spreads), an SM.

occupancy.csv has a row for each kernel, for all activations together: the bytes of shared memory that its launcher asks
for, and the least blocks on each GPU. `check_kernels.py GPUS --write-budget` writes the blocks. The bytes are kept, as
the machine code does not tell them; tests/test_gpu_launch.py compares them with what is launched, of kernels of rows
for 768 features: LayerNorm, GELU and, but in float64, dropout, with all gradients.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

BUDGET = Path(__file__).with_name("occupancy.csv")


@dataclass(frozen=True)
class Limits:
    """Of a multiprocessor."""

    simds: int
    wave: int  # threads
    waves: int  # of a SIMD
    registers: int  # of a lane of a SIMD, for all its waves
    register_granule: int
    shared: int  # bytes
    shared_granule: int
    shared_reserved: int  # of each block
    blocks: int


# AMD: LLVM's AMDGPUBaseInfo.cpp (getTotalNumVGPRs, getVGPRAllocGranule, getMaxWavesPerEU, getMaxWorkGroupsPerCU) and
# AMDGPUSubtarget.cpp (the granule of LDS). NVIDIA: the table of compute capabilities in the CUDA C++ Programming Guide,
# and cuda_occupancy.h for granules.
_CDNA = Limits(4, 64, 8, 512, 8, 64 * 1024, 512, 0, 16)
_RDNA = Limits(4, 32, 16, 1536, 24, 128 * 1024, 512, 0, 32)
LIMITS = {
    "gfx90a": _CDNA,
    "gfx942": _CDNA,
    "gfx1100": _RDNA,
    "gfx1201": _RDNA,
    "sm_90": Limits(4, 32, 16, 512, 8, 228 * 1024, 128, 1024, 32),
}


def _round_up(n: int, granule: int) -> int:
    return -(-n // granule) * granule


def blocks(gpu: str, registers: int, threads: int, shared: int) -> int:
    """How many blocks of so many threads, registers for each and bytes of shared memory there is room for."""
    limits = LIMITS[gpu]
    waves = min(limits.waves, limits.registers // _round_up(max(registers, 1), limits.register_granule))
    room = min(limits.blocks, limits.simds * waves // -(-threads // limits.wave))
    block_shared = _round_up(shared + limits.shared_reserved, limits.shared_granule)
    return min(room, limits.shared // block_shared) if block_shared else room


def kind(name: str) -> str:
    """What a kernel is called in the budget: its demangled name without namespaces, activation and arguments."""
    name = re.sub(r"^void |\(anonymous namespace\)::|\b(fastops|hip|activations)::", "", name).split("(")[0]
    name = re.sub(r"\b(Forward|Backward|Gradient)<\w+, ", r"\1<", name)
    return name.replace(", ", " ").replace("> >", ">>").strip()


@dataclass
class Row:
    """Of the budget."""

    shared: int
    blocks: dict[str, int]  # by GPU


Budget = dict[tuple[str, str], Row]  # by source and kind of kernel


@functools.cache
def budget(path: Path = BUDGET) -> Budget:
    """The budget as it is in the file."""
    with path.open(newline="") as file:
        return {
            (row["source"], row["kernel"]): Row(
                int(row["shared"]), {gpu: int(row[gpu]) for gpu in LIMITS if row.get(gpu)}
            )
            for row in csv.DictReader(file)
        }


def write_budget(found: Iterable[tuple[str, str, str, int]], path: Path = BUDGET) -> None:
    """Puts (gpu, source, kind, blocks) in the place of what the file has of these GPUs and sources."""
    found = list(found)
    rows, old = {}, budget(path)
    compiled = {(gpu, source) for gpu, source, _, _ in found}
    for (source, kernel), row in old.items():
        kept = {gpu: n for gpu, n in row.blocks.items() if (gpu, source) not in compiled}
        rows[source, kernel] = Row(row.shared, kept)
    for gpu, source, kernel, room in found:
        row = rows.setdefault((source, kernel), Row(0, {}))
        row.blocks[gpu] = min(room, row.blocks.get(gpu, room))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["source", "kernel", "shared", *LIMITS])
        for (source, kernel), row in sorted(rows.items()):
            if row.blocks:
                writer.writerow([source, kernel, row.shared, *(row.blocks.get(gpu, "") for gpu in LIMITS)])
    budget.cache_clear()
