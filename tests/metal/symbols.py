"""Compiles the Metal backend for macOS and looks for its undefined symbols in the libraries of a torch for macOS.

symbols.py TORCH   the folder `torch` of an unpacked wheel
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
BACKEND = ROOT / "src/backends/metal"
FLAGS = "-target aarch64-macos.14.0 -std=c++20 -O1 -fPIC -fvisibility=hidden -w -DAT_PER_OPERATOR_HEADERS".split()
NM = "llvm-nm-19"


def compile_for_macos(source: Path, target: Path, torch: Path) -> Path:
    includes = [ROOT / "src", torch / "include", torch / "include/torch/csrc/api/include"]
    command = [sys.executable, "-m", "ziglang", "c++", *FLAGS, *(f"-I{path}" for path in includes)]
    subprocess.run([*command, "-c", str(source), "-o", str(target)], check=True)
    return target


def symbols(path: Path, *options: str) -> set[str]:
    output = subprocess.run([NM, *options, str(path)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in output.splitlines() if line.strip() and not line.endswith(":")}


def main(folder: str) -> None:
    torch = Path(folder)
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(2) as pool:
        sources = Path(directory, "sources.cpp")
        kernels = re.findall(r"kernels/\w+\.metal", (BACKEND / "CMakeLists.txt").read_text())
        embed = [sys.executable, BACKEND / "embed.py", sources, ROOT / "src", *(BACKEND / kernel for kernel in kernels)]
        subprocess.run(list(map(str, embed)), check=True)
        files = [*sorted(BACKEND.glob("*.cpp")), sources]
        jobs = [pool.submit(compile_for_macos, file, Path(directory, f"{file.stem}.o"), torch) for file in files]
        objects = [job.result() for job in jobs]
        undefined = set().union(*(symbols(file, "-u") for file in objects))
    exported = set().union(*(symbols(torch / "lib" / f"lib{name}.dylib", "-gU") for name in ("torch_cpu", "c10")))
    of_torch = {name for name in undefined if "7fastops" not in name and re.search(r"^__Z\w*(2at|3c10|5torch)", name)}
    missing = sorted(of_torch - exported)
    print(f"{len(objects)} files, {len(of_torch)} symbols of torch, {len(missing)} of them missing")
    if missing:
        sys.exit("\n".join(missing))


if __name__ == "__main__":
    main(*sys.argv[1:])
