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
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build/wheel-matrix"


class Environment:
    """A virtual environment with a release of torch."""

    def __init__(self, version: str, suite: bool) -> None:
        self.folder = OUT / version
        shutil.rmtree(self.folder, ignore_errors=True)
        venv.create(self.folder)
        self.python = self.folder / "bin/python"
        self.pip(f"torch=={version}", *(["--group", f"{ROOT}/pyproject.toml:test"] if suite else ["numpy"]))

    def pip(self, *arguments: str) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--disable-pip-version-check"]
        subprocess.run([*pip, "--quiet", "--no-compile", *arguments], check=True)

    def run(self, *arguments: str) -> str:
        """The output of Python, which must succeed."""
        command = [str(self.python), *arguments]
        result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        print(result.stdout)
        if result.returncode:
            raise RuntimeError(f"python {' '.join(arguments)} failed")
        return result.stdout

    def torch(self) -> dict[str, tuple[int, int]]:
        """The files of torch, with their sizes and times."""
        (folder,) = self.folder.glob("lib/python*/site-packages")
        files = [
            file for place in folder.glob("torch*") for file in place.rglob("*") if "__pycache__" not in file.parts
        ]
        return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()}


def try_beside(version: str, wheels: Path, name: str, suite: bool) -> str:
    """A line of the table."""
    began = time.monotonic()
    environment = Environment(version, suite)
    before, installed = environment.torch(), time.monotonic()
    environment.pip("--no-index", "--find-links", str(wheels), name)
    seconds = time.monotonic() - installed
    if environment.torch() != before:
        raise RuntimeError(f"installing {name} changed torch")
    library = next(line for line in environment.run("-m", "fastops").splitlines() if line.startswith("library:"))
    if f"torch-{'.'.join(version.split('.')[:2])}/" not in library:
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
