"""Checks what a source distribution or a repaired Linux wheel of fastops requires and contains.

In the environment that they were built in: python tools/check_distributions.py [--released] FILE...
Where --released is given, a wheel must be for machines as old as we say and, for x86-64, have the kernels for GPUs.
"""

from __future__ import annotations

import argparse
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from pathlib import Path, PurePosixPath

from torch_requirement import OLDEST, requirement

ROOT = Path(__file__).resolve().parent.parent
IN_SDIST = ["CMakeLists.txt", "LICENSE", "README.md", "cmake", "pyproject.toml", "python", "src", "tests", "tools"]
IN_WHEEL = [
    "_C.pyi", "__init__.py", "_activations.py", "functional.py", "libfastops_cpu.so", "py.typed",
    "include/fastops/fastops.h", "share/cmake/fastops/fastopsConfig.cmake", "share/cmake/fastops/fastops-kernels.cmake",
]  # fmt: skip
FOR_A_TORCH = ["_build.py", "libfastops.so", "cmake/fastops-targets.cmake"]  # in each folder torch-X.Y, beside _C
RELEASED_FOR = "manylinux_2_28"
# Of what is in such a folder. The libraries of kernels have none: they need nothing that is not everywhere.
RPATH = "$ORIGIN:$ORIGIN/..:$ORIGIN/../../torch/lib"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--released", action="store_true", help="whether wheels are fit for a release")
    arguments = parser.parse_args()
    for file in arguments.files:
        try:
            if file.suffix == ".whl" and arguments.released:
                check_released(file)
            requirement = check_wheel(file) if file.suffix == ".whl" else check_sdist(file)
        except ValueError as error:
            raise SystemExit(f"{file.name}: {error}") from None
        print(f"{file.name}: requires {requirement}; contents as they should be")


def check_sdist(file: Path) -> str:
    with tarfile.open(file) as archive:
        top = PurePosixPath(archive.getnames()[0]).parts[0]

        def content(name: str) -> bytes:
            member = archive.extractfile(f"{top}/{name}")
            assert member is not None
            return member.read()

        sources = [source for name in IN_SDIST for source in files_of(ROOT / name)]
        check_presence((f"{top}/{name}" for name in sources), archive.getnames())
        if differing := [name for name in sources if content(name) != (ROOT / name).read_bytes()]:
            raise ValueError(f"differs from the working tree in {', '.join(differing)}")
        return check_requirement(content("PKG-INFO"), OLDEST)


def files_of(path: Path) -> Iterator[str]:
    """The names, relative to the project, of a file or of the files in a directory, without caches and hidden ones."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        name = file.relative_to(ROOT)
        if file.is_file() and not any(part.startswith((".", "__pycache__")) for part in name.parts):
            yield name.as_posix()


def check_wheel(file: Path) -> str:
    if "manylinux" not in file.name:
        raise ValueError("is not repaired")
    with zipfile.ZipFile(file) as archive, tempfile.TemporaryDirectory() as directory:
        names = [PurePosixPath(name) for name in archive.namelist()]
        inside = [name.relative_to("fastops") for name in names if name.parts[0] == "fastops"]
        check_presence(IN_WHEEL, map(str, inside))
        gpu_libraries = [name for name in inside if name.name in ("libfastops_hip.txt", "libfastops_cuda.txt")]
        check_presence((str(name.with_suffix(".so")) for name in gpu_libraries), map(str, inside))
        folders = {name.parts[0] for name in inside if len(name.parts) > 1 and name.parts[0].startswith("torch-")}
        for_a_torch = [*FOR_A_TORCH, *(["gpu_bindings.so"] if gpu_libraries else [])]
        check_presence((f"{folder}/{name}" for folder in folders for name in for_a_torch), map(str, inside))
        for library in (name for name in names if ".so" in name.name):
            of_torch = library.parent.name in folders
            if library.parent.parts[:1] != ("fastops",) or not (of_torch or library.name.startswith("libfastops_")):
                raise ValueError(f"has the foreign library {library}")
            check_rpath(archive.extract(str(library), directory), RPATH if of_torch else "")
        if without := [folder for folder in folders if not any(f"{folder}/_C." in str(name) for name in inside)]:
            raise ValueError(f"lacks _C in {', '.join(sorted(without))}")
        metadata = next(str(name) for name in names if name.parts[1:] == ("METADATA",))
        check_presence([metadata.replace("METADATA", "sboms/fastops.cdx.json")], map(str, names))
        minors = [folder.removeprefix("torch-") for folder in folders]
        return check_requirement(archive.read(metadata), requirement(minors))


def check_released(file: Path) -> None:
    platform = file.stem.rpartition("-")[2]
    if RELEASED_FOR not in platform:
        raise ValueError(f"is for {platform} instead of {RELEASED_FOR}")
    if platform.endswith("x86_64"):
        with zipfile.ZipFile(file) as archive:
            check_presence(["fastops/libfastops_hip.txt", "fastops/libfastops_cuda.txt"], archive.namelist())


def check_presence(expected: Iterable[str], names: Iterable[str]) -> None:
    if absent := set(expected) - set(names):
        raise ValueError(f"lacks {', '.join(sorted(absent))}")


def check_rpath(library: str, expected: str) -> None:
    command = ["patchelf", "--print-rpath", library]
    rpath = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    if rpath != expected:
        raise ValueError(f"{Path(library).name} has rpath {rpath!r} instead of {expected!r}")


def check_requirement(metadata: bytes, expected: str) -> str:
    requirements = message_from_bytes(metadata).get_all("Requires-Dist") or []
    requirements = [requirement for requirement in requirements if "extra ==" not in requirement]
    if requirements != [expected]:
        raise ValueError(f"requires {requirements} instead of {expected} alone")
    return expected


if __name__ == "__main__":
    main()
