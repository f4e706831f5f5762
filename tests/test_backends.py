"""Backends of other packages: their entry points, and the CMake package that they are built with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fastops

SHOW = "import fastops; print(fastops.info().backends); print(fastops.info())"


@pytest.fixture
def run(tmp_path: Path):
    """Installs packages with entry points of the group, and runs code in a new interpreter that sees them."""

    def install_and_run(
        backends: dict[str, str], code: str = SHOW, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        for name, source in backends.items():
            (tmp_path / f"{name}.py").write_text(source)
            metadata = tmp_path / f"{name}-1.2.dist-info"
            metadata.mkdir()
            (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
            (metadata / "entry_points.txt").write_text(f"[fastops.backends]\n{name} = {name}:load\n")
        inherited = {key: value for key, value in os.environ.items() if key != "FASTOPS_BACKEND_AUTOLOAD"}
        path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.run(
            [sys.executable, "-c", code],
            env=inherited | {"PYTHONPATH": path} | environment,
            capture_output=True,
            text=True,
            check=True,
        )

    return install_and_run


def test_loaded(run) -> None:
    """The function is called once, when the ops are there; info() says so."""
    source = "import torch\ndef load():\n    print('called with', torch.ops.fastops.silu.default)\n"
    result = run({"mydevice": source})
    assert result.stdout.count("called with fastops.silu.default") == 1
    assert "'mydevice': 'loaded from mydevice 1.2'" in result.stdout
    assert "\nbackend mydevice: loaded from mydevice 1.2\n" in result.stdout
    assert not result.stderr


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def load():\n    raise RuntimeError('no driver')\n", "RuntimeError: no driver"),
        ("import missing_module\n", "ModuleNotFoundError: No module named 'missing_module'"),
        ("", "AttributeError: module 'broken' has no attribute 'load'"),
    ],
)
def test_broken(run, source: str, message: str) -> None:
    """A backend that fails is a warning; fastops is imported, and the other backends are loaded."""
    result = run({"broken": source, "fine": "def load(): pass\n"})
    assert "RuntimeWarning: fastops: the backend 'broken' of broken 1.2 could not be loaded" in result.stderr
    assert message in result.stderr
    assert f"backend broken: failed, broken 1.2: {message}" in result.stdout
    assert "backend fine: loaded from fine 1.2" in result.stdout


def test_off(run) -> None:
    """FASTOPS_BACKEND_AUTOLOAD=0 loads none."""
    result = run({"mydevice": "raise SystemExit('loaded')\n"}, FASTOPS_BACKEND_AUTOLOAD="0")
    assert result.stdout.startswith("{}\n")


def test_cmake_package() -> None:
    """find_package(fastops) finds its files, and every header that a public one includes is public too."""
    prefix = Path(fastops.backends.cmake_prefix_path)
    names = {file.name for file in (prefix / "fastops").iterdir()}
    assert {"fastopsConfig.cmake", "fastopsConfigVersion.cmake", "fastops-kernels.cmake", "torch.cmake"} <= names
    include = prefix.parent.parent / "include"
    headers = list(include.rglob("*.h"))
    assert include / "fastops/fastops.h" in headers
    for header in headers:
        for included in re.findall(r'#include "([^"]+)"', header.read_text()):
            assert (include / included).exists(), f"{header} includes {included}"


@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("c++"), reason="needs a C++ compiler, and Linux's torch"
)
def test_find_package(tmp_path: Path) -> None:
    """It has the library for the torch at hand, and none for another, which it says."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    cmake = shutil.which("cmake", path=path)
    if cmake is None:
        pytest.skip("needs CMake")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(user LANGUAGES CXX)\nfind_package(fastops REQUIRED)\n"
        'get_target_property(library fastops::fastops LOCATION)\nmessage(STATUS "is ${library}")\n'
    )

    def configure(build: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [cmake, "-G", "Ninja", "-S", str(tmp_path), "-B", str(tmp_path / build)]
        definitions = {
            "Python_EXECUTABLE": sys.executable,
            "fastops_DIR": f"{fastops.backends.cmake_prefix_path}/fastops",
        }
        command += [f"-D{name}={value}" for name, value in definitions.items()]
        environment = {**os.environ, "PATH": path, **environment}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    found = configure("this")
    assert found.returncode == 0, found.stderr
    assert f"-- is {fastops.library_path()}\n" in found.stdout
    other = tmp_path / "torch"
    other.mkdir()
    (other / "version.py").write_text("__version__ = '2.99.0'\ndebug = False\ncuda = hip = None\n")
    refused = configure("other", FASTOPS_TORCH_ROOT=str(other))
    assert refused.returncode == 1
    built_for = fastops.info().libraries_for_torch
    assert f"it was built for torch {built_for}, but torch 2.99.0 is installed" in " ".join(refused.stderr.split())
