"""The device libraries of ROCm that clang links HIP's kernels with, in a folder, for GPUs that the installed ones are
older than, too: Debian's, with the one constant in which those of newer GPUs differ.

    python tools/gpu/device_libraries.py --clang clang++-19 --out FOLDER gfx90a gfx1201
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROCM = os.environ.get("ROCM_PATH", "/opt/rocm")
PLACES = [
    f"{ROCM}/amdgcn/bitcode",
    f"{ROCM}/lib/llvm/lib/clang/*/lib/amdgcn/bitcode",
    "/usr/lib/*/amdgcn/bitcode",
]


def prepare(folder: Path, gpus: Iterable[str], clang: str) -> None:
    """Fills the folder."""
    found = [path for place in PLACES for path in sorted(Path("/").glob(f"{place[1:]}/*.bc"))]
    if not found:
        raise SystemExit("There are no ROCm device libraries: apt-get install rocm-device-libs libamdhip64-dev")
    folder.mkdir(parents=True, exist_ok=True)
    for path in found:
        link = folder / path.name
        if not link.exists():
            link.symlink_to(path)
    for gpu in gpus:
        number = gpu.removeprefix("gfx")
        target = folder / f"oclc_isa_version_{number}.bc"
        if target.exists():
            continue
        version = int(number[:-2]) * 1000 + int(number[-2], 16) * 100 + int(number[-1], 16)
        constant = (
            '__attribute__((address_space(4), visibility("protected"))) extern const int __oclc_ISA_version;'
            '__attribute__((address_space(4), visibility("protected"))) '
            f"const int __oclc_ISA_version = {version};"
        )
        flags = "-x c --target=amdgcn-amd-amdhsa -nogpulib -emit-llvm -c -".split()
        subprocess.run([clang, *flags, "-o", target], input=constant, text=True, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpus", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--clang", default="clang++-19")
    arguments = parser.parse_args()
    prepare(arguments.out, arguments.gpus, arguments.clang)


if __name__ == "__main__":
    main()
