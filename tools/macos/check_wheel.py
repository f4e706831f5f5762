"""Says what the libraries in a wheel for macOS link with, and whether it is there when they are loaded.

    python tools/macos/check_wheel.py WHEEL TORCH

TORCH is the folder torch of the wheel for macOS that they are linked with. `delocate-listdeps` would say the same, but
runs Apple's otool; here macholib reads the load commands. Needs llvm-nm-19.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from macholib.mach_o import CPU_TYPE_NAMES, LC_BUILD_VERSION, LC_ID_DYLIB, LC_RPATH
from macholib.MachO import MachO

LIBRARIES = {"libfastops_cpu.dylib", "libfastops.dylib", "_C"}  # in the wheel
OF_MACOS = {"/usr/lib/libSystem.B.dylib", "/usr/lib/libc++.1.dylib"}
OLDEST = "14.0"  # torch's


def text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode()


def problems(library: Path, torch: Path) -> list[str]:
    """What is wrong with a library in an unpacked wheel, beside which torch will be."""
    (header,) = MachO(str(library)).headers
    commands = [
        (command.cmd, body, text(data) if isinstance(data, bytes) else "") for command, body, data in header.commands
    ]
    rpaths = [data for kind, _, data in commands if kind == LC_RPATH]
    needed = [name for _, _, name in header.walkRelocatables()]
    print(f"{library.name}: links with {', '.join(needed)}; looks in {', '.join(rpaths) or 'no folder'}")

    found = []
    if (machine := CPU_TYPE_NAMES[header.header.cputype]) != "ARM64":
        found.append(f"is for {machine}")
    versions = [body.minos for kind, body, _ in commands if kind == LC_BUILD_VERSION]
    if [f"{version >> 16}.{version >> 8 & 255}" for version in versions] != [OLDEST]:
        found.append(f"is not for macOS {OLDEST}")
    names = [name for kind, _, name in commands if kind == LC_ID_DYLIB]
    if library.suffix == ".dylib" and names != [f"@rpath/{library.name}"]:
        found.append("has the name of another place")
    packages = library.parents[1 if library.parent.name == "fastops" else 2]
    for name in needed:
        if name in OF_MACOS:
            continue
        paths = [name.replace("@rpath", rpath) for rpath in rpaths] if name.startswith("@rpath/") else [name]
        places = [Path(path.replace("@loader_path", str(library.parent))).resolve() for path in paths]
        in_torch = [torch.parent / place.relative_to(packages) for place in places if place.is_relative_to(packages)]
        if not any(place.exists() for place in [*places, *in_torch]):
            found.append(f"does not find {name}")
    # What is of a library is shown with its name, all else is looked for in everything that is loaded.
    lines = subprocess.run(["llvm-nm-19", "-m", "-u", library], check=True, capture_output=True, text=True).stdout
    open_names = re.findall(r"external (\S+)$", lines, re.MULTILINE)
    if strange := [name for name in open_names if not re.match("__?Py", name)]:
        found.append(f"does not say where it has {', '.join(strange)} from")
    return [f"{library.name} {problem}" for problem in found]


def main(wheel: Path, torch: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(temporary)
        libraries = [file for kind in ("dylib", "so") for file in sorted(Path(temporary).rglob(f"*.{kind}"))]
        found = [problem for library in libraries for problem in problems(library.resolve(), torch)]
    if missing := LIBRARIES - {name for file in libraries for name in (file.name, file.name.partition(".")[0])}:
        found.append(f"{wheel.name} lacks {', '.join(sorted(missing))}")
    if found:
        raise SystemExit("\n".join(found))
    print(f"{wheel.name}: {len(libraries)} libraries, {wheel.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
