"""Makes libraries that stand for CUDA's, so that a CUDA build of torch runs on a machine without one.

    python tools/aarch64/stand_ins.py FOLDER TORCH_LIB LIBRARIES...

FOLDER gets one library for each that torch's libraries in TORCH_LIB need and that is neither there nor in the folders
LIBRARIES, and in one of them every symbol that is missing then: functions that return 0, as if there were no GPU, but
for those that a name is given for below.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TARGET = "aarch64-linux-gnu"
OF_A_REFERENCE = re.compile(r"_ZN4c10d15get_gil_checkerEv")  # returns one, which is written to when torch is loaded
FAILS = re.compile(r"cu[a-z]*[A-Z]\w*")  # CUDA's own, with "no device": their results are not looked at then
OPTIONS = "_ZN4c10d16ProcessGroupNCCL7OptionsC1Eb"  # a default argument, which pybind11 asks for its class
GPU_ALONE = re.compile(r"lib(torch_cuda|torch_nvshmem|c10_cuda|caffe2_nvrtc)")  # neither loaded nor looked at


def output(*command: str | Path) -> list[str]:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout.splitlines()


def is_elf(file: Path) -> bool:
    """Not so the text in its place that tells the linker which libraries to take."""
    return file.is_file() and file.read_bytes().startswith(b"\x7fELF")


def needed(library: Path) -> set[str]:
    lines = output(f"{TARGET}-readelf", "--dynamic", "--wide", library)
    return {line.partition("[")[2].rstrip("]") for line in lines if "(NEEDED)" in line}


def symbols(library: Path, kind: str) -> set[str]:
    """The dynamic symbols, without their versions: kind is --defined-only or --undefined-only."""
    lines = output(f"{TARGET}-nm", "--dynamic", kind, "--format=posix", library)
    return {line.split()[0].partition("@")[0] for line in lines if line.split()[1] not in "wv"}


def link(source: Path, library: Path) -> None:
    options = ["-shared", "-nostdlib", f"-Wl,-soname,{library.name}"]
    subprocess.run([f"{TARGET}-gcc", *options, "-o", str(library), str(source)], check=True)


def main(folder: Path, torch: Path, others: list[Path]) -> None:
    libraries = [file for file in torch.glob("*.so*") if not GPU_ALONE.match(file.name)]
    present = {file.name: file for place in others for file in place.glob("*.so*")} | {
        file.name: file for file in libraries
    }
    missing = sorted(set().union(*map(needed, libraries)) - present.keys())
    wanted = set().union(*(symbols(library, "--undefined-only") for library in libraries))
    there = set().union(*(symbols(file, "--defined-only") for file in present.values() if is_elf(file)))
    lacking = sorted(name for name in wanted - there if re.fullmatch(r"\w+", name))

    folder.mkdir(parents=True, exist_ok=True)
    code = folder / "stand_ins.s"
    labels = {name: f".globl {name}\n{name}:\n" for name in lacking}
    # A class is known by its name, to pybind11 and to exceptions.
    types = "".join(
        f'{labels.pop(name)}.quad 0, 1f\n.section .rodata\n1: .asciz "{name.removeprefix("_ZTI")}"\n.data\n'
        for name in lacking
        if name.startswith("_ZTI")
    )
    options = labels.pop(OPTIONS, "")
    place, error = (
        "".join(labels.pop(name) for name in lacking if kind.fullmatch(name)) for kind in (OF_A_REFERENCE, FAILS)
    )
    zero = "".join(labels.values())
    # The zeros behind the code are for symbols that are data.
    code.write_text(
        f".text\n.balign 16\n{place}adrp x0, room\nadd x0, x0, :lo12:room\nret\n"
        f".balign 16\n{error}mov x0, #100\nret\n"
        f".balign 16\n{zero}mov x0, #0\nret\n.fill 4096\n.local room\n.comm room, 4096, 16\n"
        f".text\n.balign 16\n{options}adrp x1, table\nadd x1, x1, :lo12:table\nstr x1, [x0]\nret\nnothing: ret\n"
        f".data\n.balign 16\n.quad 0, class\ntable: {'.quad nothing;' * 16}\n"
        f'class: .quad 0, name\nname: .asciz "Options"\n.balign 16\n{types}'
    )
    nothing = folder / "nothing.s"
    nothing.write_text("")
    for number, name in enumerate(missing):
        link(nothing if number else code, folder / name)
    print(f"{len(missing)} libraries and {len(lacking)} symbols of CUDA: {' '.join(missing)}")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(place) for place in sys.argv[3:]])
