"""Backends of other packages: their entry points, and the CMake package that they are built with."""

from __future__ import annotations

import os
import re
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
    assert {"fastopsConfig.cmake", "fastopsConfigVersion.cmake", "fastops-targets.cmake", "torch.cmake"} <= names
    include = prefix.parent.parent / "include"
    headers = list(include.rglob("*.h"))
    assert include / "fastops/fastops.h" in headers
    for header in headers:
        for included in re.findall(r'#include "([^"]+)"', header.read_text()):
            assert (include / included).exists(), f"{header} includes {included}"
