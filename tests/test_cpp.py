"""Saved models in a process without Python: TorchScript files and AOTInductor packages, run by examples/cpp.

The program is built as its CMakeLists.txt says; it is linked with libtorch alone and loads libfastops by its path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fastops
from modules import MODULES, batch, seeded, value_and_gradients
from sample import close
from test_export import EVERY_OP, Calls, doubled, exported, inputs

SOURCE = Path(__file__).parents[1] / "examples" / "cpp"
Run = Callable[[Path, list[Tensor]], list[Tensor]]

pytestmark = pytest.mark.skipif(not shutil.which("c++"), reason="needs a C++ compiler")


def call(*command: object) -> subprocess.CompletedProcess[str]:
    """Runs a command; programs of this Python's environment come first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, env={**os.environ, "PATH": path}
    )


def check(*command: object) -> str:
    """The output of a command, which must succeed."""
    result = call(*command)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: Any) -> Path:
    """The example, built."""
    build = tmp_path_factory.mktemp("cpp")
    prefix = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    configured = call("cmake", "-S", SOURCE, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", prefix)
    if torch.version.cuda and "I cannot find the CUDA" in configured.stderr:
        pytest.skip("needs CUDA's toolkit, which the CMake files of this torch ask for")
    assert configured.returncode == 0, configured.stdout + configured.stderr
    check("cmake", "--build", build)
    return build / "run_model"


@pytest.fixture
def run(program: Path, tmp_path: Path) -> Run:
    """Runs a saved model in the program."""

    def results(model: Path, tensors: list[Tensor]) -> list[Tensor]:
        torch.save(tensors, tmp_path / "inputs.pt")
        check(program, fastops.library_path(), model, tmp_path / "inputs.pt", tmp_path / "outputs.pt")
        return list(torch.load(tmp_path / "outputs.pt"))

    return results


@pytest.fixture(scope="module")
def package(tmp_path_factory: Any) -> Path:
    """An AOTInductor package that calls every op."""
    path = tmp_path_factory.mktemp("aotinductor") / "every_op.pt2"
    program = exported(EVERY_OP, inputs(EVERY_OP, "cpu"))
    quickly = {"aot_inductor.compile_wrapper_opt_level": "O0"}
    torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=quickly)
    return path


def trace(module: torch.nn.Module) -> torch.jit.ScriptModule:
    return torch.jit.trace(module, batch("cpu"))


def test_library_is_the_one_in_use() -> None:
    """library_path() is the library that has registered the ops of this process."""
    path = fastops.library_path()
    assert Path(path).is_file()
    torch.ops.load_library(path)  # a second library with these ops would fail to register them


@pytest.mark.skipif(sys.platform != "linux", reason="the libraries have other names elsewhere")
def test_deployed(tmp_path: Path) -> None:
    """The library and those of kernels, copied into one folder, are all that it takes beside torch."""
    library = Path(fastops.library_path())
    for file in (library, *library.parent.glob("libfastops_*.so"), *library.parent.parent.glob("libfastops_*.so")):
        shutil.copy(file, tmp_path)
    load = f"import torch; torch.ops.load_library('{tmp_path / library.name}')"
    assert check(sys.executable, "-c", f"{load}; print(torch.ops.fastops.relu(-torch.ones(1)))") == "tensor([0.])\n"


@pytest.mark.skipif(sys.platform != "linux", reason="ldd is Linux's")
def test_linked_with_libtorch_alone(program: Path) -> None:
    """Neither fastops nor Python is linked."""
    libraries = {line.split()[0] for line in check("ldd", program).splitlines()}
    assert "libtorch_cpu.so" in libraries
    assert not any(name.startswith(("libfastops", "libpython", "libtorch_python")) for name in libraries)


@pytest.mark.parametrize("kind", ["MLP", "MLP without bias", "GatedMLP with bias", "LinearAct", "Softshrink"])
@pytest.mark.parametrize("make", [torch.jit.script, trace])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript(kind: str, make: Any, run: Run, tmp_path: Path) -> None:
    """Outputs and gradients of a TorchScript file."""
    module = seeded(MODULES[kind], "cpu").eval()
    make(module).save(str(tmp_path / "model.pt"))
    x = batch("cpu", 3, 6)
    close(run(tmp_path / "model.pt", [x]), value_and_gradients(module, module.parameters(), x))


@pytest.mark.feature("AOTInductor", ops=EVERY_OP)
def test_aotinductor(package: Path, run: Run) -> None:
    """Every op in an AOTInductor package, in Python and in C++, for the sizes of the export and for others."""
    loaded = torch._inductor.aoti_load_package(str(package))
    for calls in (EVERY_OP, doubled(EVERY_OP)):
        tensors = inputs(calls, "cpu")
        expected = Calls(calls)(*tensors)
        close(loaded(*tensors), expected)
        close(run(package, list(tensors)), [value for values in expected for value in values])


def test_error_without_library(program: Path, tmp_path: Path) -> None:
    """Where the library is not found, the program says so."""
    result = subprocess.run([program, tmp_path / "missing", "m.pt", "i.pt", "o.pt"], capture_output=True, text=True)
    assert result.returncode == 1
    assert str(tmp_path / "missing") in result.stderr
