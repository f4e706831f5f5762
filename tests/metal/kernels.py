"""Checks and compiles the Metal kernels with clang.

kernels.py check          every kernel against Metal's rules
kernels.py build OUTPUT   a library of kernels that run on the CPU and stop at undefined behavior
"""

from __future__ import annotations

import argparse
import concurrent.futures
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import translate

HERE = Path(__file__).parent
SOURCES = sorted((translate.ROOT / "src/backends/metal/kernels").glob("*.metal"))

STRICT = (
    "-x clcpp -cl-std=CLC++2021 -cl-no-stdinc -target x86_64 -DMETAL_SHIM_STRICT -Wall -Wextra -Werror "
    "-Wno-unused-parameter -Wno-unused-function -Wno-null-dereference -fsyntax-only"
).split()
# The language is C++14, and a float must not become a double on the way.
EXECUTABLE = (
    "-std=c++14 -Wall -Werror -Wno-unused-function -Wc++17-extensions -Wdouble-promotion -ffp-contract=off -fPIC"
).split()
SANITIZE = "-fsanitize=undefined,float-cast-overflow -fsanitize-trap=all -g".split()


def run(command: Sequence[str | Path]) -> str:
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if result.returncode:
        raise translate.NotMetalError(result.stderr or result.stdout)
    return result.stdout


def check(source: Path, defines: Sequence[str] = (), include: Path = translate.ROOT / "src") -> None:
    """Raises NotMetalError where the file is not legal Metal."""
    with tempfile.TemporaryDirectory() as directory:
        strict, executable, assembly = (Path(directory, name) for name in ("k.clcpp", "k.cpp", "k.ll"))
        translate.translate("strict", source, strict, defines, include)
        run([translate.CLANG, *STRICT, "-I", HERE / "shim", strict])
        translate.translate("exec", source, executable, defines, include)
        run([translate.CLANG, *EXECUTABLE, "-O0", "-emit-llvm", "-S", "-I", HERE / "shim", executable, "-o", assembly])
        if cycle := recursion(assembly.read_text()):
            raise translate.NotMetalError(f"recursion, which Metal does not have: {cycle}")


def recursion(assembly: str) -> str | None:
    """A function of an LLVM assembly that may come to call itself."""
    calls: dict[str, set[str]] = {}
    name = ""
    for line in assembly.splitlines():
        if line.startswith("define"):
            name = re.search(r"@([\w.$]+)\(", line)[1]  # type: ignore[index]
            calls[name] = set()
        elif name and " call " in line and (called := re.search(r"@([\w.$]+)\(", line)):
            calls[name].add(called[1])
    finished: set[str] = set()

    def visit(function: str, path: tuple[str, ...]) -> str | None:
        if function in path:
            return function
        if function in finished or function not in calls:
            return None
        finished.add(function)
        return next(filter(None, (visit(called, (*path, function)) for called in calls[function])), None)

    return next(filter(None, (visit(function, ()) for function in calls)), None)


def compile_kernels(source: Path, output: Path, defines: Sequence[str], include: Path) -> Path:
    """The kernels of a file as an object for the CPU."""
    text = output.with_suffix(".cpp")
    translate.translate("exec", source, text, defines, include)
    run([translate.CLANG, *EXECUTABLE, *SANITIZE, "-O0", "-I", HERE / "shim", "-c", text, "-o", output])
    return output


def build(
    library: Path,
    sources: Sequence[Path] = SOURCES,
    defines: Sequence[str] = (),
    include: Path = translate.ROOT / "src",
) -> None:
    """Compiles kernels and what launches them into a shared library."""
    with tempfile.TemporaryDirectory() as directory, concurrent.futures.ThreadPoolExecutor(2) as pool:
        launcher = Path(directory, "launcher.o")
        jobs = [
            pool.submit(compile_kernels, source, Path(directory, f"{source.stem}.o"), defines, include)
            for source in sources
        ]
        run([translate.CLANG, "-std=c++17", "-O2", "-fPIC", "-c", HERE / "launcher.cpp", "-o", launcher])
        objects = [job.result() for job in jobs]
        run(["clang++-19", "-shared", launcher, *objects, "-o", library])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["check", "build"])
    parser.add_argument("output", nargs="?", type=Path)
    arguments = parser.parse_args()
    if arguments.task == "build":
        build(arguments.output)
        return
    for source in SOURCES:
        check(source)
        print(f"{source.name}: legal Metal")


if __name__ == "__main__":
    main()
