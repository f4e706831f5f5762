"""Checks what a source distribution or a repaired Linux wheel of fastops requires and contains.

python tools/check_distributions.py FILE...    (in the environment that they were built in)
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from email import message_from_bytes
from pathlib import Path, PurePosixPath

from torch_requirement import OLDEST, TorchRequirement

IN_SDIST = ["CMakeLists.txt", "LICENSE", "README.md", "cmake", "pyproject.toml", "python", "src", "tests", "tools"]
IN_WHEEL = ["_C.pyi", "__init__.py", "_activations.py", "_build.py", "functional.py", "libfastops.so", "py.typed"]
RPATH = "$ORIGIN:$ORIGIN/../torch/lib"


def main(*files: str) -> None:
    if not files:
        raise SystemExit(__doc__)
    for file in map(Path, files):
        try:
            requirement = check_wheel(file) if file.suffix == ".whl" else check_sdist(file)
        except ValueError as error:
            raise SystemExit(f"{file.name}: {error}") from None
        print(f"{file.name}: requires {requirement}; contents as they should be")


def check_sdist(file: Path) -> str:
    with tarfile.open(file) as archive:
        names = [PurePosixPath(name) for name in archive.getnames()]
        check_presence(IN_SDIST, (name.parts[1] for name in names))
        metadata = archive.extractfile(f"{names[0].parts[0]}/PKG-INFO")
        assert metadata is not None
        return check_requirement(metadata.read(), OLDEST)


def check_wheel(file: Path) -> str:
    if "manylinux" not in file.name:
        raise ValueError("is not repaired")
    with zipfile.ZipFile(file) as archive, tempfile.TemporaryDirectory() as directory:
        names = [PurePosixPath(name) for name in archive.namelist()]
        check_presence(IN_WHEEL, (name.name for name in names if name.parts[0] == "fastops"))
        for library in (name for name in names if ".so" in name.name):
            if library.parent.name != "fastops":
                raise ValueError(f"has the foreign library {library}")
            check_rpath(archive.extract(str(library), directory))
        metadata = next(str(name) for name in names if name.parts[1:] == ("METADATA",))
        return check_requirement(archive.read(metadata), TorchRequirement.pinned())


def check_presence(expected: Iterable[str], names: Iterable[str]) -> None:
    if absent := set(expected) - set(names):
        raise ValueError(f"lacks {', '.join(sorted(absent))}")


def check_rpath(library: str) -> None:
    command = ["patchelf", "--print-rpath", library]
    rpath = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    if rpath != RPATH:
        raise ValueError(f"{Path(library).name} has rpath {rpath!r} instead of {RPATH!r}")


def check_requirement(metadata: bytes, expected: str) -> str:
    requirements = message_from_bytes(metadata).get_all("Requires-Dist") or []
    if requirements != [expected]:
        raise ValueError(f"requires {requirements} instead of {expected} alone")
    return expected


if __name__ == "__main__":
    main(*sys.argv[1:])
