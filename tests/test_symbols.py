"""The libraries of kernels need nothing of torch, and no function of an instruction set is taken for another's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastops

LIBRARIES = sorted(file for folder in fastops.__path__ for file in Path(folder).glob("libfastops_*.so"))
ROOT = Path(__file__).parent.parent
TIERS = {"DEFAULT", "AVX2", "AVX512"}

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("nm"), reason="reads symbols as Linux's nm shows them"
)


def symbols(file: Path, *options: str) -> Iterator[str]:
    """Demangled names of a file's symbols."""
    listed = subprocess.run(["nm", "--demangle", *options, file], check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        if line.strip():
            yield line.split(maxsplit=2 if line[0] != " " else 1)[-1]


def test_there_is_a_library_of_cpu_kernels() -> None:
    assert "libfastops_cpu.so" in [library.name for library in LIBRARIES]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_kernels_need_nothing_of_torch(library: Path) -> None:
    of_torch = ("at::", "c10::", "torch::", "caffe2::", "Sleef_")
    undefined = list(symbols(library, "--dynamic", "--undefined-only"))
    assert undefined
    assert not [name for name in undefined if any(part in name for part in of_torch)]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_kernels_show_nothing_of_torch(library: Path) -> None:
    """What a library shows, others may take for their own: the loader knows names alone."""
    shown = list(symbols(library, "--dynamic", "--defined-only", "--extern-only"))
    assert shown
    assert not [name for name in shown if "fastops::" not in name]


def test_nothing_leaves_an_instruction_set() -> None:
    """The linker takes any of several weak functions of one name: one for AVX-512 would be called on every CPU."""
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    objects = sorted((ROOT / "build").glob(f"{version}-*/src/backends/cpu/CMakeFiles/cpu_kernels_*.dir/**/*.o"))
    if not objects:
        pytest.skip("needs the objects of a build in this folder")
    for file in objects:
        (tier,) = (tier for tier in TIERS if f"cpu_kernels_{tier}.dir" in str(file))
        shown = list(symbols(file, "--defined-only", "--extern-only"))
        assert shown, file
        assert not [name for name in shown if f"::{tier}::" not in name], file
