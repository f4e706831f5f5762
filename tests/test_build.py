"""What CMake chooses while fastops is built, and what make builds again."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent.parent
CMAKE = shutil.which("cmake", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
EXTENSIONS = SOURCES / "tools/check_extensions.py"
CHOICE = SOURCES / "src/backends/hip/cuda_architectures.cmake"

TORCH = """
from types import SimpleNamespace
cuda = SimpleNamespace(device_count=lambda: len({gpus}), get_device_capability=lambda i: {gpus}[i])
_C = SimpleNamespace({built_for})
"""


@pytest.mark.skipif(CMAKE is None or sys.platform == "win32", reason="needs CMake and a shell")
@pytest.mark.skipif(not CHOICE.exists(), reason="needs the sources")
@pytest.mark.parametrize(
    ("gpus", "built_for", "environment", "expected"),
    [
        ([], "sm_50 sm_75 sm_80 sm_90a compute_120", "", "75-real;80-real;90-real;120-virtual"),
        ([(9, 0), (8, 0), (9, 0)], "sm_75 sm_80 sm_90", "", "90-real;80-real"),
        ([], "sm_50", "", "all-major"),
        ([], None, "", "all-major"),
        ([(9, 0)], "sm_80", "8.6 9.0a+PTX", "86-real;90a"),
    ],
    ids=["no GPU", "GPUs", "all too old", "CPU build", "TORCH_CUDA_ARCH_LIST"],
)
def test_cuda_architectures(
    gpus: list[tuple[int, int]], built_for: str | None, environment: str, expected: str, tmp_path: Path
) -> None:
    """For the GPUs of the machine; where there is none, for those that torch was built for and nvcc knows."""
    flags = "" if built_for is None else f"_cuda_getArchFlags=lambda: {built_for!r}"
    (tmp_path / "torch.py").write_text(TORCH.format(gpus=gpus, built_for=flags))
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\nprintf 'compute_75\\ncompute_80\\ncompute_90\\ncompute_120\\n'\n")
    nvcc.chmod(0o755)
    script = tmp_path / "script.cmake"
    script.write_text(
        f'cmake_minimum_required(VERSION 3.25)\ninclude({CHOICE})\nmessage(NOTICE "${{CMAKE_CUDA_ARCHITECTURES}}")\n'
    )
    run = subprocess.run(
        [str(CMAKE), f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_CUDA_COMPILER={nvcc}", "-P", str(script)],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TORCH_CUDA_ARCH_LIST": environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "".join(run.stderr.split()) == expected


@pytest.mark.skipif(shutil.which("make") is None or sys.platform == "win32", reason="needs make and a shell")
@pytest.mark.skipif(not (SOURCES / "Makefile").exists(), reason="needs the sources")
def test_sources_that_change_during_a_build(tmp_path: Path) -> None:
    """`make build` builds them again; and once nothing changes, no more."""
    shutil.copy(SOURCES / "Makefile", tmp_path)
    for folder in ("cmake", "src", "tools", "python", ".venv/stamps"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("CMakeLists.txt", "pyproject.toml", "src/changed.cpp", "src/unchanged.cpp"):
        (tmp_path / file).touch()
    for stamp in ("python", "torch---grouptorch", "build"):
        (tmp_path / ".venv/stamps" / stamp).touch()

    def make(*arguments: str) -> int:
        environment = {"PATH": os.environ["PATH"]}
        return subprocess.run(["make", "build", *arguments], cwd=tmp_path, env=environment, check=False).returncode

    assert make("--question") == 1
    assert make("pip=sleep 0.1; touch src/changed.cpp; true") == 0
    assert make("--question") == 1
    assert make("pip=true") == 0
    assert make("--question") == 0
    (tmp_path / "python/changed.py").touch()
    assert make("pip=false") == 2
    assert make("--question") == 1


@pytest.mark.skipif(shutil.which("make") is None or sys.platform == "win32", reason="needs make and a shell")
@pytest.mark.skipif(not (SOURCES / "Makefile").exists(), reason="needs the sources")
def test_a_change_of_sources_alone_needs_no_pip(tmp_path: Path) -> None:
    """`make build` calls CMake, which installs into the same place, unless something else changed or it never ran."""
    sources = tmp_path / "clone"
    for folder in ("cmake", "src", "tools", "python", ".venv/stamps", ".venv/bin", "build/tag"):
        (sources / folder).mkdir(parents=True)
    shutil.copy(SOURCES / "Makefile", sources)
    for file in ("CMakeLists.txt", "pyproject.toml", "src/kernel.cpp", "python/module.py"):
        (sources / file).touch()
    for stamp in ("python", "torch---grouptorch", "build"):
        (sources / ".venv/stamps" / stamp).touch()
    calls = tmp_path / "calls"
    for name, script in {
        "cmake": f'echo "cmake $*" >> {calls}',
        "python": 'case "$*" in *wheel-tag) echo tag;; *sysconfig*) echo site-packages;; *) exit 1;; esac',
    }.items():
        program = sources / ".venv/bin" / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def build() -> list[str]:
        calls.write_text("")
        environment = {"PATH": os.environ["PATH"]}
        subprocess.run(["make", "build", f"pip=echo pip >> {calls};:"], cwd=sources, env=environment, check=True)
        return calls.read_text().splitlines()

    def change(file: str) -> None:
        time.sleep(0.05)  # the clock of a file system has ticks
        (sources / file).touch()

    assert build() == ["pip"]
    assert build() == []
    change("src/kernel.cpp")
    assert build() == ["pip"]  # CMake has not been there
    (sources / "build/tag/CMakeCache.txt").touch()
    change("src/kernel.cpp")
    assert build() == ["cmake --build build/tag", "cmake --install build/tag --strip --prefix site-packages"]
    assert build() == []
    for changed in ("python/module.py", "CMakeLists.txt"):
        change(changed)
        change("src/kernel.cpp")
        assert build() == ["pip"]


@pytest.mark.skipif(not EXTENSIONS.exists(), reason="needs the sources")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("const auto f = [&](int k) __attribute__((always_inline)) { g(k); };", ["__attribute__"]),
        ("__builtin_prefetch(p);", ["__builtin_prefetch"]),
        ("#pragma GCC unroll 4", ["#pragma GCC unroll 4"]),
        ("float* __restrict__ p;", ["__restrict__"]),
        ('asm volatile("");', ["asm"]),
        ("__forceinline int f();", ["__forceinline"]),
        ("#pragma once", []),
        ("[[gnu::const]] int f();  // not __attribute__", []),
        ("FASTOPS_UNROLL(4)", []),
    ],
)
def test_extensions_are_seen(line: str, found: list[str]) -> None:
    """What every compiler spells differently, outside src/compiler.h."""
    check = runpy.run_path(str(EXTENSIONS))
    assert [name for _, name in check["in_cpp"](line)] == found


@pytest.mark.skipif(not EXTENSIONS.exists(), reason="needs the sources")
def test_extensions_are_in_one_place() -> None:
    """No other file has any."""
    assert not list(runpy.run_path(str(EXTENSIONS))["problems"]())
