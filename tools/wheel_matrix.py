"""Tries a wheel beside releases of torch, each in an environment of its own that is removed afterwards.

    python tools/wheel_matrix.py --wheels FOLDER --name NAME [--suite 2.13.0] 2.11.0 2.12.0 ...

torch comes from PyPI (for Linux x86-64 with CUDA, which takes 5 GB), the wheel from the folder alone, and installing it
must not change torch. Then comes tools/smoke_test.py, and for the releases that --suite names, all tests. What came of
it is written to build/wheel-matrix/results.md.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import time
from pathlib import Path

from environments import Environment
from torch_requirement import minor_of

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build/wheel-matrix"


def try_beside(version: str, wheels: Path, name: str, suite: bool) -> str:
    """A line of the table."""
    began = time.monotonic()
    packages = ["--group", f"{ROOT}/pyproject.toml:test"] if suite else ["numpy"]
    environment = Environment(OUT / version, f"torch=={version}", *packages)
    before, installed = environment.files(["torch*"]), time.monotonic()
    environment.install("--no-index", "--find-links", str(wheels), name)
    seconds = time.monotonic() - installed
    if environment.files(["torch*"]) != before:
        raise RuntimeError(f"installing {name} changed torch")
    library = next(line for line in environment.run("-m", "fastops").splitlines() if line.startswith("library:"))
    if f"torch-{minor_of(version)}/" not in library:
        raise RuntimeError(f"is for another torch: {library}")
    environment.run("tools/smoke_test.py")
    tests = environment.run("-m", "pytest", "-q", "-n", "auto", "tests").splitlines()[-1] if suite else "smoke test"
    shutil.rmtree(environment.folder)
    return f"| {version} | {seconds:.1f} | {time.monotonic() - began:.0f} | {tests.strip('= ')} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--suite", nargs="*", default=[], metavar="VERSION", help="with which all tests are run")
    parser.add_argument("--wheels", type=Path, required=True, metavar="FOLDER", help="where the wheel is")
    parser.add_argument("--name", required=True, help="that of the distribution")
    arguments = parser.parse_args()
    lines = ["| torch | seconds to install fastops | seconds in all | result |", "|---|---:|---:|---|"]
    failed = 0
    for version in arguments.versions:
        try:
            lines.append(try_beside(version, arguments.wheels, arguments.name, version in arguments.suite))
        except (RuntimeError, subprocess.CalledProcessError) as error:
            lines.append(f"| {version} | | | failed: {error} |")
            failed += 1
        (OUT / "results.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
