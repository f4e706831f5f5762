"""Virtual environments in which wheels are tried: each with packages of its own, or with those of another, too."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Files = dict[str, tuple[int, int]]


class Environment:
    """A virtual environment in a folder, which is replaced; it sees the packages of ``beside`` as its own."""

    def __init__(self, folder: Path, *packages: str, beside: Environment | None = None) -> None:
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder)
        self.python = folder / "bin/python"
        (self.site,) = folder.glob("lib/python*/site-packages")
        if beside:
            (self.site / "beside.pth").write_text(f"{beside.site}\n")
        if packages:
            self.install(*packages)

    def install(self, *arguments: str) -> None:
        self.pip("install", "--no-compile", *arguments)

    def pip(self, command: str, *arguments: str) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, command, *arguments], check=True)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Python with these arguments, in the project's folder."""
        return subprocess.Popen([str(self.python), *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def run(self, *arguments: str) -> str:
        """The output of Python, which must succeed."""
        return output(self.start(*arguments))

    def files(self, names: Sequence[str] = ("*",)) -> Files:
        """The installed files of what has such a name, with their sizes and times; without Python's caches."""
        places = [place for name in names for place in self.site.glob(name)]
        files = [file for place in places for file in [place, *place.rglob("*")] if "__pycache__" not in file.parts]
        return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()}


def output(process: subprocess.Popen[str]) -> str:
    """What a process that was started prints; it must succeed."""
    printed, _ = process.communicate()
    print(printed)
    if process.returncode:
        raise RuntimeError(f"{process.args!r} failed")
    return printed
