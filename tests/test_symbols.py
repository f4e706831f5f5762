"""What the libraries show and need, how they are hardened, and that no function of an instruction set is taken for
another's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastops

KERNELS = sorted(file for folder in fastops.__path__ for file in Path(folder).glob("libfastops_*.so"))
MODULE = Path(fastops._C.__file__)
LIBRARIES = [*KERNELS, Path(fastops.library_path()), MODULE]
ROOT = Path(__file__).parent.parent
TIERS = {"DEFAULT", "AVX2", "AVX512", "AVX512_BF16", "AMX", "SVE128", "SVE256"}

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not (shutil.which("nm") and shutil.which("readelf")),
    reason="reads libraries as nm and readelf show them on Linux",
)


def output(*command: object) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def symbols(file: Path, *options: str) -> Iterator[str]:
    """Demangled names of a file's symbols."""
    for line in output("nm", "--demangle", *options, file).splitlines():
        if line.strip():
            yield line.split(maxsplit=2 if line[0] != " " else 1)[-1]


def test_there_is_a_library_of_cpu_kernels() -> None:
    assert "libfastops_cpu.so" in [library.name for library in KERNELS]


@pytest.mark.parametrize("library", KERNELS, ids=lambda library: library.name)
def test_kernels_need_nothing_of_torch(library: Path) -> None:
    of_torch = ("at::", "c10::", "torch::", "caffe2::", "Sleef_")
    undefined = list(symbols(library, "--dynamic", "--undefined-only"))
    assert undefined
    assert not [name for name in undefined if any(part in name for part in of_torch)]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_what_is_shown(library: Path) -> None:
    """What a library shows, others may take for their own, as the loader knows names alone. It is ours, and has the
    version for which a backend is compiled.
    """
    version = f"FASTOPS_{'.'.join(fastops.__version__.split('.')[:2])}"
    shown = set(symbols(library, "--dynamic", "--defined-only", "--extern-only", "--with-symbol-versions"))
    shown -= {version, f"{version}@@{version}"}  # the version's own symbol
    module = {f"PyInit__C@@{version}"}
    assert shown == module if library == MODULE else shown and not shown & module
    assert not [name for name in shown - module if "fastops::" not in name or not name.endswith(f"@@{version}")]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_hardening(library: Path) -> None:
    """What the loader fills in is read-only afterwards, nothing is written and executed, and the stack is checked."""
    segments = {}
    for line in output("readelf", "--wide", "--program-headers", library).splitlines():
        if found := re.match(r"  (\w+) +(?:0x\w+ +){5}([R ][W ][E ]) ", line):
            segments.setdefault(found[1], set()).add(found[2])
    assert "GNU_RELRO" in segments
    assert segments["GNU_STACK"] == {"RW "}
    assert segments["LOAD"] and not [flags for flags in segments["LOAD"] if "W" in flags and "E" in flags]
    dynamic = output("readelf", "--wide", "--dynamic", library)
    assert re.search(r"\(FLAGS\) .*\bBIND_NOW\b", dynamic) and re.search(r"\(FLAGS_1\) .*\bNOW\b", dynamic)
    assert "TEXTREL" not in dynamic
    assert "__stack_chk_fail@GLIBC_2.4" in symbols(library, "--dynamic", "--undefined-only")


def test_nothing_leaves_an_instruction_set() -> None:
    """The linker takes any of several weak functions of one name: one for AVX-512 would be called on every CPU."""
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    objects = sorted((ROOT / "build").glob(f"{version}-*/src/backends/cpu/CMakeFiles/cpu_kernels_*.dir/**/*.o"))
    if not objects:
        pytest.skip("needs the objects of a build in this folder")
    for file in objects:
        (tier,) = (tier for tier in TIERS if re.search(rf"/cpu_kernels_{tier}(_[a-z]+)?\.dir/", str(file)))
        shown = list(symbols(file, "--defined-only", "--extern-only"))
        assert shown, file
        assert not [name for name in shown if f"::{tier}::" not in name], file
