"""Compiles the GPU kernels for several GPUs and looks at the machine code, which takes no GPU.

No kernel may spill registers to memory, hold a call or a compare-and-swap loop, or access memory through generic
addresses; the kernels that work in packets must read and write 16 bytes of every operand at once, and the products
of 16-bit types must be those of matrix cores, and the next part of a weight must be on its way while one
is multiplied with. A multiprocessor must have room for as many blocks as the budget says (occupancy.py). A table of
registers and blocks is written for each GPU. AMD's GPUs take clang, NVIDIA's (sm_*) nvcc; where there is no nvcc, the
table and the last line say so:

    python tools/gpu/check_kernels.py gfx90a sm_90 --few gfx1100 --out build/gpu-check
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import device_libraries
import occupancy

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src/backends/hip/kernels").glob("*.hip"))
COMMON = ["-std=c++20", "-O3"]
FEW = ["-include", str(ROOT / "src/backends/hip/emulator/few_activations.h")]
WHOLE = [
    "narrow_rows",
    "product",
    "rows",
    "small_mlp",
]  # Each kernel has all activations: with few of them, compilers would make others of it.

# Kernels that work in packets of 16 bytes: by their names, with the type that is stored and the number of operands that
# they write where it is not one.
IN_PACKETS = re.compile(
    r"::transform(?P<row>_row)?<(?P<transformed>[^,]+), \d, (?P<outputs>\d)|::backward<[248], (?P<summed>[^,]+),"
)

# Kernels with products of 16-bit types.
WITH_PRODUCTS = re.compile(r"::((forward|backward)|multiply<.*)<fastops::hip::b?float16>")

# Kernels of small_mlp.hip and product.hip that ask for the next part of a weight before they multiply with one, and for
# how many loads at least.
ASKS_AHEAD = re.compile(r"::((forward|backward)<(float|double|fastops::hip::b?float16)>\(|multiply<)")
LEAST_AHEAD = 3
REGISTER = re.compile(r"%\w+")  # of PTX


@dataclasses.dataclass
class Kernel:
    """What the compiler made of a kernel."""

    gpu: str
    source: str
    name: str  # demangled, with template arguments
    registers: int
    shared: int  # bytes, without those that its launcher asks for
    spills: int  # bytes of memory, or registers that went there
    threads: int = 0  # of a block
    instructions: list[str] = dataclasses.field(default_factory=list)

    def count(self, pattern: str) -> int:
        """How many instructions match."""
        return sum(bool(re.match(pattern, instruction)) for instruction in self.instructions)

    @property
    def kind(self) -> str:
        """Its name in the budget."""
        return occupancy.kind(self.name)

    @property
    def budget(self) -> occupancy.Row | None:
        """Its row there."""
        return occupancy.budget().get((self.source, self.kind))

    @property
    def blocks(self) -> int | None:
        """How many a multiprocessor has room for, where that is known of the GPU."""
        if self.gpu not in occupancy.LIMITS:
            return None
        launched = self.budget.shared if self.budget else 0
        return occupancy.blocks(self.gpu, self.registers, self.threads, self.shared + launched)

    @property
    def least_blocks(self) -> int | None:
        """How many the budget has."""
        return self.budget.blocks.get(self.gpu) if self.budget else None

    def most_ahead(self) -> int:
        """How many loads are under way at a product, at most: asked for, and neither waited for nor used.

        In the order of the listing, which has what begins a loop before its end.
        """
        patterns = _PATTERNS["gfx" if self.gpu.startswith("gfx") else "sm"]
        product = patterns["product" if WITH_PRODUCTS.search(self.name) else "multiply-add"]
        under_way: list[set[str]] = []  # the registers of each load
        most = 0
        for instruction in self.instructions:
            if re.match(product, instruction):
                most = max(most, len(under_way))
            if re.match(patterns["load"], instruction):
                under_way.append(set(REGISTER.findall(instruction.split("[")[0])))
            elif match := re.match(patterns["wait"], instruction):
                under_way = under_way[max(0, len(under_way) - patterns["left"](match)) :]
            else:
                used = set(REGISTER.findall(instruction))
                under_way = [registers for registers in under_way if not registers & used]
        return most

    def faults(self) -> list[str]:
        """What is wrong with it."""
        patterns = _PATTERNS["gfx" if self.gpu.startswith("gfx") else "sm"]
        faults = [] if self.spills == 0 else ["spills registers or uses scratch memory"]
        faults += [what for what, pattern in patterns["forbidden"].items() if self.count(pattern)]
        # A derivative that is 0 everywhere reads nothing.
        in_packets, loads = IN_PACKETS.search(self.name), self.count(patterns["load"])
        if in_packets and loads:
            packets = self.count(patterns["load of 16 bytes"])
            if loads - packets > packets * most_other_loads(in_packets):
                faults.append(f"{packets} loads of 16 bytes, {loads - packets} others")
            packets, outputs = self.count(patterns["store of 16 bytes"]), int(in_packets["outputs"] or 1)
            if packets < outputs:
                faults.append(f"{packets} stores of 16 bytes for {outputs} operands")
        if WITH_PRODUCTS.search(self.name) and not self.count(patterns["product"]):
            faults.append("no product of matrix cores")
        if (
            self.source in ("product", "small_mlp")
            and ASKS_AHEAD.search(self.name)
            and (ahead := self.most_ahead()) < LEAST_AHEAD
        ):
            faults.append(f"{ahead} loads under way while a product is computed")
        blocks, least = self.blocks, self.least_blocks
        if blocks is not None and least is None:
            faults.append(f"no budget: --write-budget writes it into {occupancy.BUDGET.relative_to(ROOT)}")
        elif blocks is not None and least is not None and blocks < least:
            faults.append(f"{blocks} blocks on a multiprocessor, where the budget has {least}")
        return faults


def most_other_loads(in_packets: re.Match[str]) -> int:
    """How many a kernel may have of an operand besides that of 16 bytes: where the operand is elsewhere in memory.

    One of an element for a whole packet, and one of each of its elements. The elementwise kernels, which have rows of
    any length, have one for what is left of a row, too, and that for one row of packets no other.
    """
    if in_packets["row"]:
        return 1
    transformed = in_packets["transformed"]
    storage = transformed or in_packets["summed"]
    width = 16 // {"double": 8, "float": 4}.get(storage, 2)
    return 1 + width + (transformed is not None)


_PATTERNS: dict[str, Any] = {
    "gfx": {
        "forbidden": {
            "compare-and-swap loop": r"\w*cmpswap",
            "generic memory access": r"flat_(load|store|atomic)",
            "scratch memory access": r"scratch_",
            "call": r"s_swappc|s_setpc",
        },
        # But not of a block's size, among the arguments that the runtime adds: gfx1201 reads that so.
        "load": r"global_load_(?!u16 v\d+, v\d+, s\[[\d:]+\] offset:1[246]$)",
        "load of 16 bytes": r"global_load_(dwordx4|b128)",
        "store of 16 bytes": r"global_store_(dwordx4|b128)",
        "product": r"v_(mfma|wmma)_f32_16x16x",
        "multiply-add": r"v_(pk_|dual_)?fmac?_f",
        # For all but the last so many loads. gfx12's for shared memory, too, has that number eight bits higher.
        "wait": r"s_waitcnt .*vmcnt\((\d+)\)|s_wait_loadcnt (\w+)|s_wait_loadcnt_dscnt (\w+)",
        "left": lambda match: int(match[1] or match[2] or "0", 0) if not match[3] else int(match[3], 0) >> 8,
    },
    # Of PTX, in which registers are yet without number: that none is spilled is ptxas' word.
    "sm": {
        "forbidden": {
            "compare-and-swap loop": r".*\batom\S*\.cas",
            "generic memory access": r".*\b(ld|st)\.(v\d\.)?[bfsu]\d",
            "local memory access": r".*\b(ld|st)\.local",
            "call": r".*\bcall",
        },
        "load": r".*\bld\.global",
        "load of 16 bytes": r".*\bld\.global\S*\.(v4\.\w32|v2\.\w64)",
        "store of 16 bytes": r".*\bst\.global\S*\.(v4\.\w32|v2\.\w64)",
        "product": r".*\bmma\.sync\.aligned\.m16n8k16",
        "multiply-add": r".*\bfma\.rn\.f",
        "wait": r"(?!)",  # PTX has none
    },
}


def run(command: list[str]) -> str:
    """The program's output and messages; its failure ends this one."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def lacks_compiler(gpu: str, nvcc: str = "nvcc") -> bool:
    """Whether the compiler is missing that not every machine has."""
    return gpu.startswith("sm_") and not shutil.which(nvcc)


def cached(compiler: str) -> list[str]:
    """The compiler, through ccache where there is one."""
    ccache = shutil.which("ccache")
    return [ccache, compiler] if ccache else [compiler]


def includes(source: Path) -> Path:
    """src, which a file of kernels is in."""
    return source.parents[3]


class Amd:
    """clang with Debian's HIP headers and device libraries."""

    def __init__(self, out: Path, gpus: list[str], flags: Sequence[str] = (), clang: str = "clang++-19") -> None:
        self.out = out
        self.flags = flags
        self.clang = clang
        self.version = re.sub(r".*?(-\d+)?$", r"\1", clang)
        self.libraries = out / "bitcode"
        device_libraries.prepare(self.libraries, gpus, clang)

    def compile(self, source: Path, gpu: str) -> list[Kernel]:
        """The kernels of one source file on one GPU."""
        code = self.out / f"{source.stem}.{gpu}.co"
        hip = ["-x", "hip", f"--offload-arch={gpu}", "--hip-path=/usr", f"--rocm-device-lib-path={self.libraries}"]
        flags = "-Wall -Wextra -Werror -ffp-contract=off --cuda-device-only --no-gpu-bundle-output".split()
        remarks = run(
            [
                *cached(self.clang),
                *hip,
                *COMMON,
                *flags,
                f"-I{includes(source)}",
                *(self.flags if source.stem not in WHOLE else []),
                "-Rpass-analysis=kernel-resource-usage",
            ]
            + ["-c", str(source), "-o", str(code)]
        )
        kernels = {}
        for block in remarks.split("Function Name: ")[1:]:
            facts = dict(re.findall(r"remark:\s+([\w ]+?)(?: \[[^\]]*\])?: (\w+) \[-Rpass", block))
            kernels[block.split(" ")[0]] = Kernel(
                gpu,
                source.stem,
                name="",
                registers=int(facts["VGPRs"]) + int(facts.get("AGPRs", 0)),
                shared=int(facts["LDS Size"]),
                spills=int(facts["ScratchSize"]) + int(facts["VGPRs Spill"]),
            )
        notes = run([f"llvm-readelf{self.version}", "--notes", str(code)])
        for threads, name in re.findall(r"\.max_flat_workgroup_size: (\d+)\s+\.name: +(\S+)", notes):
            kernels[name].threads = int(threads)
        listing = run([f"llvm-objdump{self.version}", "-d", f"--mcpu={gpu}", "--triple=amdgcn-amd-amdhsa", str(code)])
        attach(kernels, listing, symbol=r"[0-9a-f]+ <(.*)>:", comment="//")
        return named(kernels)


class Nvidia:
    """nvcc."""

    def __init__(self, out: Path, flags: Sequence[str] = (), nvcc: str = "nvcc") -> None:
        self.out = out
        self.flags = flags
        self.nvcc = nvcc

    def compile(self, source: Path, gpu: str) -> list[Kernel]:
        """The kernels of one source file on one GPU."""
        kept = self.out / f"{source.stem}.{gpu}"
        kept.mkdir(exist_ok=True)
        flags = f"-x cu -arch={gpu} -cubin -fmad=false -Werror=all-warnings -Xptxas=-v --keep --keep-dir={kept}".split()
        report = run(
            [
                self.nvcc,
                *flags,
                *COMMON,
                f"-I{includes(source)}",
                *(self.flags if source.stem not in WHOLE else []),
                "-o",
                str(kept / "code.cubin"),
                str(source),
            ]
        )
        kernels = {}
        for block in report.split("Compiling entry function '")[1:]:
            spills = [int(n) for n in re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", block)]
            registers = int(re.findall(r"Used (\d+) registers", block)[0])
            shared = sum(int(n) for n in re.findall(r"(\d+) bytes smem", block))
            kernels[block.split("'")[0]] = Kernel(gpu, source.stem, "", registers, shared, sum(spills))
        ptx = (kept / f"{source.stem}.ptx").read_text()
        for name, threads in re.findall(r"\.entry (\w+)\([^{]*?\.maxntid (\d+), 1, 1", ptx):
            kernels[name].threads = int(threads)
        attach(kernels, ptx, symbol=r".*\.entry (\w+)\(", comment="//")
        return named(kernels)


def attach(kernels: dict[str, Kernel], listing: str, symbol: str, comment: str) -> None:
    """Gives each kernel its instructions from a disassembly."""
    kernel = None
    for line in listing.splitlines():
        if match := re.match(symbol, line):
            kernel = kernels.get(match[1])
        elif kernel is not None and line.strip():
            kernel.instructions.append(line.split(comment)[0].strip())


def named(kernels: dict[str, Kernel]) -> list[Kernel]:
    """The kernels with their names as C++ has them."""
    names = run(["c++filt", *kernels]).splitlines()
    for kernel, name in zip(kernels.values(), names, strict=True):
        kernel.name = name
    return list(kernels.values())


def write_tables(kernels: list[Kernel], skipped: list[str], out: Path) -> None:
    """Every kernel in kernels.csv, the extremes for each source file and GPU in kernels.md."""
    with (out / "kernels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["gpu", "source", "registers", "blocks", "instructions", "kernel"])
        for k in kernels:
            writer.writerow([k.gpu, k.source, k.registers, k.blocks, len(k.instructions), k.name])
    groups = defaultdict(list)
    for kernel in kernels:
        groups[kernel.source, kernel.gpu].append(kernel)
    lines = [
        "| source | GPU | kernels | registers, median | most | blocks on a multiprocessor, least |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for (source, gpu), group in sorted(groups.items()):
        registers = sorted(k.registers for k in group)
        least = min((k.blocks for k in group if k.blocks is not None), default="")
        lines.append(
            f"| {source} | {gpu} | {len(group)} | {registers[len(registers) // 2]} | {registers[-1]} | {least} |"
        )
    lines += [f"| all | {gpu} | skipped: there is no compiler | | | |" for gpu in skipped]
    (out / "kernels.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpus", nargs="+", metavar="gpu", help="gfx90a, sm_90, ...")
    parser.add_argument(
        "--few", nargs="*", default=[], metavar="gpu", help="others, for the kernels of few activations"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu-check")
    parser.add_argument("--clang", default="clang++-19")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--write-budget", action="store_true", help=f"of the GPUs, into {occupancy.BUDGET.name}")
    parser.add_argument("--sources", nargs="*", type=Path, default=SOURCES)
    args = parser.parse_args()
    if args.few and args.write_budget:
        parser.error("--write-budget: the budget is one for all activations, so there must be no --few")
    flags: dict[str, list[str]] = {gpu: [] for gpu in args.gpus} | {gpu: FEW for gpu in args.few}
    skipped = [gpu for gpu in flags if lacks_compiler(gpu, args.nvcc)]

    def compiled(flags: dict[str, list[str]], out: Path) -> list[Kernel]:
        out.mkdir(parents=True, exist_ok=True)
        compilers: dict[str, Amd | Nvidia] = {
            gpu: Amd(out, [gpu], few, args.clang) if gpu.startswith("gfx") else Nvidia(out, few, args.nvcc)
            for gpu, few in flags.items()
            if gpu not in skipped
        }
        jobs = [(source, gpu) for source in args.sources for gpu in compilers]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            results = pool.map(lambda job: compilers[job[1]].compile(job[0].resolve(), job[1]), jobs)
            return [kernel for result in results for kernel in result]

    kernels = compiled(flags, args.out)
    if args.write_budget:
        # A kernel that has the code of few activations may take more registers than that with all.
        both = kernels + compiled(dict.fromkeys(args.gpus, FEW), args.out / "few")
        occupancy.write_budget((k.gpu, k.source, k.kind, n) for k in both if (n := k.blocks) is not None)
    write_tables(kernels, skipped, args.out)
    faulty = [(kernel, faults) for kernel in kernels if (faults := kernel.faults())]
    for kernel, faults in faulty:
        print(f"{kernel.gpu}: {kernel.name.split('>(')[0]}>: {', '.join(faults)}")
    without = f", SKIPPED: {', '.join(skipped)}, for which there is no {args.nvcc}" if skipped else ""
    # With few activations, those that take most room may be missing.
    roomier = {(k.gpu, k.source, k.kind) for k in kernels if k.gpu in args.gpus}
    roomier -= {(k.gpu, k.source, k.kind) for k in kernels if k.blocks == k.least_blocks}
    if roomier:
        print(f"{len(roomier)} rows of {occupancy.BUDGET.name} are below what there is room for, for every activation")
    print(f"{len(kernels)} kernels, {len(faulty)} with faults{without}")
    sys.exit(bool(faulty) or not kernels)


if __name__ == "__main__":
    main()
