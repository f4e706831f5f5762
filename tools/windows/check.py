"""Compiles the sources for Windows as far as that is possible elsewhere: with Clang in MSVC's mode, the headers of
torch's wheel for Windows, and LLVM's and MinGW's in place of Microsoft's (standard_library.h). Nothing is linked.

    python tools/windows/check.py [REGEX]

With REGEX: only files whose path in src/ it is found in. Needs clang-19, and what `make windows-check` installs. Not
looked at is the Python module: Python's headers for Windows come with Python for Windows alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ziglang

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = ROOT / "src"
sys.path.insert(0, str(HERE.parent))
from torch_headers import headers, version_of_group  # noqa: E402

COMPILER = "clang-19"
# As src/backends/cpu/CMakeLists.txt has them for MSVC's command line.
TIERS = {
    "DEFAULT": [],
    "AVX2": ["-march=haswell"],
    "AVX512": ["-march=skylake-avx512"],
    "AVX512_BF16": ["-march=cooperlake"],
    "AMX": ["-march=sapphirerapids"],
}
ONLY_IN = {"AVX512_BF16": ["gemm_bfloat16"], "AMX": ["gemm_amx", "roofs_amx"]}  # kernels of one of them alone
LIBRARY = {
    "ABI_NAMESPACE": "__1", "ABI_VERSION": 1, "DISABLE_VISIBILITY_ANNOTATIONS": 1, "HARDENING_MODE_DEFAULT": 2,
    "HAS_FILESYSTEM": 1, "HAS_LOCALIZATION": 1, "HAS_MONOTONIC_CLOCK": 1, "HAS_MUSL_LIBC": 0, "HAS_RANDOM_DEVICE": 1,
    "HAS_TERMINAL": 1, "HAS_THREADS": 1, "HAS_THREAD_API_C11": 0, "HAS_THREAD_API_EXTERNAL": 0,
    "HAS_THREAD_API_PTHREAD": 0, "HAS_THREAD_API_WIN32": 1, "HAS_TIME_ZONE_DATABASE": 0, "HAS_UNICODE": 1,
    "HAS_VENDOR_AVAILABILITY_ANNOTATIONS": 0, "HAS_WIDE_CHARACTERS": 1, "INSTRUMENTED_WITH_ASAN": 0,
    "PSTL_BACKEND_SERIAL": 1,
}  # fmt: skip


def flags(torch: Path) -> list[str]:
    zig = Path(ziglang.__file__).parent / "lib"
    resources = subprocess.run([COMPILER, "-print-resource-dir"], check=True, capture_output=True, text=True).stdout
    system = [
        zig / "libcxx/include", Path(resources.strip()) / "include", zig / "libc/include/any-windows-any",
        SOURCES / "torch_internal/stand_ins", torch / "include", torch / "include/torch/csrc/api/include",
    ]  # fmt: skip
    return [
        *"--target=x86_64-pc-windows-msvc -std=c++20 -fms-compatibility -fms-extensions -nostdinc++ -D_UCRT".split(),
        *(f"-D_LIBCPP_{name}={value}" for name, value in LIBRARY.items()),
        *"-Wall -Wextra -Wgnu -Wno-missing-braces -Werror -DAT_PER_OPERATOR_HEADERS".split(),
        "-DFASTOPS_BUILDING", "-DFASTOPS_KERNELS_BUILDING", "-DFASTOPS_AVX2_TIER", "-DFASTOPS_AVX512_TIER",
        f"-I{SOURCES}", *(f"-isystem{folder}" for folder in system),
    ]  # fmt: skip


def jobs(choice: str) -> list[tuple[Path, str]]:
    """The files, with the instruction set of each."""
    kernels = sorted((SOURCES / "backends/cpu/kernels").glob("*.cpp"))
    cmake = (SOURCES / "backends/cpu/CMakeLists.txt").read_text()
    (products,) = (names.split() for names in re.findall(r"set\(products (.*)\)", cmake))  # not without such a tier
    folders = ["backends/cpu", "backends/cpu/launchers", "ops", "autograd", "torch_internal"]
    files = [file for folder in folders for file in sorted((SOURCES / folder).glob("*.cpp"))]

    def is_of(tier: str, kernel: str) -> bool:
        for only, its_kernels in ONLY_IN.items():
            if tier == only or kernel in its_kernels:
                return tier == only and kernel in its_kernels
        return tier != "DEFAULT" or kernel not in products

    found = [(file, tier) for tier in TIERS for file in kernels if is_of(tier, file.stem)]
    return [
        (file, tier) for file, tier in [*found, *((file, "DEFAULT") for file in files)] if re.search(choice, str(file))
    ]


def main(choice: str = "") -> None:
    torch = headers(version_of_group(), "win_amd64")
    common = flags(torch)
    out = ROOT / "build/windows-check"
    out.mkdir(parents=True, exist_ok=True)
    for tier, options in TIERS.items():
        header = ["-x", "c++-header", str(HERE / "standard_library.h"), "-w", "-o", str(out / f"{tier}.pch")]
        subprocess.run([COMPILER, *common, *options, *header], check=True)

    def compile_one(job: tuple[Path, str]) -> bool:
        file, tier = job
        of_tier = ["-include-pch", str(out / f"{tier}.pch"), f"-DCPU_CAPABILITY={tier}", f"-DCPU_CAPABILITY_{tier}"]
        command = [COMPILER, *common, *TIERS[tier], *of_tier, "-fsyntax-only", str(file)]
        run = subprocess.run(command, capture_output=True, text=True)
        print(
            f"{file.relative_to(ROOT)} ({tier}): {'fails' if run.returncode else 'compiles'}\n{run.stderr}",
            end="",
            flush=True,
        )
        return run.returncode == 0

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(compile_one, jobs(choice)))
    if not results or not all(results):
        raise SystemExit(f"{results.count(False)} of {len(results)} files do not compile for Windows")
    print(f"{len(results)} files compile for Windows")


if __name__ == "__main__":
    main(*sys.argv[1:])
