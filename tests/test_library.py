"""Which native library an import loads, and what it says where there is none for the torch at hand."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fastops

MINOR = ".".join(torch.__version__.split(".")[:2])
BEGINNING = """
import sys, torch
sys.meta_path = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, {site!r})
"""

Run = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a copy of the package as it is installed, but for libraries for other torch versions."""
    for place in dict.fromkeys(fastops.__path__):
        if not Path(place).name.startswith("torch-"):
            ignored = shutil.ignore_patterns("__pycache__", "include", "share")
            shutil.copytree(place, tmp_path / "fastops", ignore=ignored, dirs_exist_ok=True)
    for folder in (tmp_path / "fastops").glob("torch-*"):
        if folder.name != f"torch-{MINOR}":
            shutil.rmtree(folder)
    return tmp_path


@pytest.fixture
def run(site: Path) -> Run:
    """Runs code in a new interpreter, whose fastops is that copy."""

    def run_code(code: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", BEGINNING.format(site=str(site)) + code]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run_code


def last_line(run: subprocess.CompletedProcess[str], of: str) -> str:
    assert run.returncode == 1
    return next(line for line in reversed(run.stderr.splitlines()) if line.startswith(of))


def record(site: Path, name: str, version: str, *files: str) -> None:
    """Installs a distribution in name."""
    metadata = site / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (metadata / "RECORD").write_text("".join(f"fastops/{file},,\n" for file in files))


# ---- the torch at hand ----


def test_the_one_for_this_torch(run: Run, site: Path) -> None:
    """Neither that of another minor is loaded, nor one that lies where earlier versions had theirs."""
    package = site / "fastops"
    (package / "torch-2.99").mkdir()
    for folder in ("torch-2.99", "."):
        (package / folder / "_build.py").write_text("raise RuntimeError('not this one')\n")
        shutil.copy(package / "_activations.py", package / folder / "_C.py")
    result = run("import fastops; print(fastops._C.__file__); print(fastops._build.__file__); fastops.nn.MLP(2, 3)")
    assert result.returncode == 0, result.stderr
    assert [Path(line).parent for line in result.stdout.split()] == [package / f"torch-{MINOR}"] * 2


@pytest.mark.parametrize("version", ["1.13.1", "2.100.0.dev20300101+cpu"])
def test_no_library_for_this_torch(version: str, run: Run, site: Path) -> None:
    """The error has the versions that there are, in order, and the commands that build from source."""
    (site / "fastops/torch-2.99").mkdir()
    record(site, "fastops-torch", fastops.__version__, "_activations.py")
    result = run(f"torch.__version__ = {version!r}; import fastops")
    built_for = f"ImportError: This fastops was built for torch {MINOR}, 2.99, but torch {version} is installed."
    assert last_line(result, "ImportError").startswith(built_for)
    assert "\n  pip install scikit-build-core cmake ninja\n" in result.stderr
    options = "--no-build-isolation --no-deps --no-cache-dir --force-reinstall --no-binary fastops-torch"
    assert f"\n  pip install {options} fastops-torch=={fastops.__version__}\n" in result.stderr


def test_built_from_the_index_that_it_came_from(run: Run, site: Path) -> None:
    """On PyPI, the name that our own index has is another project's."""
    record(site, "fastops", fastops.__version__, "_activations.py")
    result = run("torch.__version__ = '2.100.0'; import fastops")
    assert f"--no-binary fastops --index-url INDEX fastops=={fastops.__version__}\n" in result.stderr


@pytest.mark.parametrize(
    ("fact", "change"),
    [
        ("version: 2.99", "torch_version = '2.99.0'"),
        ("debug build: True", "torch_debug = True"),
        pytest.param(
            "C++11 ABI: False",
            "torch_cxx11_abi = False",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="is libstdc++'s"),
        ),
    ],
)
def test_library_of_another_torch(fact: str, change: str, run: Run, site: Path) -> None:
    """A folder whose library was built for another torch than its name says is refused before anything is loaded."""
    folder = site / f"fastops/torch-{MINOR}"
    with (folder / "_build.py").open("a") as file:
        file.write(f"{change}\n")
    result = run(
        "try:\n  import fastops\nfinally:\n  print('fastops._C' in sys.modules, hasattr(torch.ops.fastops, 'mlp'))"
    )
    assert f"The library in {folder} was built for a torch with {fact};" in last_line(result, "ImportError")
    assert result.stdout == "False False\n"


def test_info_of_libraries(run: Run, site: Path) -> None:
    """info() has the versions in order, the distribution, and a library of kernels that nothing has loaded."""
    for minor in ("2.100", "2.99", "2.12.disabled"):
        (site / f"fastops/torch-{minor}").mkdir()
    # Of those that libfastops was built without, unless it has its own for GPUs.
    kind = "hip" if torch.version.cuda and not fastops._gpu.state else "cuda"
    (site / f"fastops/libfastops_{kind}.so").write_text("a GPU's")
    record(site, "fastops-torch", fastops.__version__, "_activations.py")
    output = run("import fastops; print(fastops.info())").stdout.splitlines()
    assert f"libraries_for_torch: {MINOR}, 2.99, 2.100" in output
    assert f"installed_as: fastops-torch {fastops.__version__} in {site}" in output
    states = dict(line.split(": ", 1) for line in output if line.startswith("kernels for "))
    if fastops._gpu.state:  # the library at hand has its own for GPUs, and a word on each
        assert states["kernels for cuda"].startswith("not loaded, as ")
    else:
        unknown = f"not loaded, as libfastops was built without {site}/fastops/libfastops_{kind}.so"
        assert states[f"kernels for {kind}"] == unknown
        if not torch.version.cuda:
            assert states["kernels for hip"] == "none, as this fastops was built without them"


# ---- other distributions ----


def test_two_distributions_in_one_place(run: Run, site: Path) -> None:
    """Another project's, and another version of ours under its other name, are refused: files of both are mixed."""
    record(site, "fastops-torch", fastops.__version__, "_activations.py")
    record(site, "fastops", "0.0.2", "__init__.py", "deploy.py")
    error = last_line(run("import fastops"), "ImportError")
    assert "Another project's package of the name fastops, fastops 0.0.2, is installed in the same place" in error
    assert "pip uninstall fastops-torch fastops" in error
    shutil.rmtree(site / "fastops-0.0.2.dist-info")
    record(site, "fastops", "99.0", "_activations.py")
    error = last_line(run("import fastops"), "ImportError")
    assert f"under two names: fastops 99.0 and fastops-torch {fastops.__version__}, and files" in error


def test_one_version_under_two_names(run: Run, site: Path) -> None:
    """It works, until one of them is uninstalled."""
    for name in ("fastops-torch", "fastops"):
        record(site, name, fastops.__version__, "_activations.py")
    result = run("import fastops")
    assert result.returncode == 0, result.stderr
    version = fastops.__version__
    assert f"RuntimeWarning: fastops is installed under two names: fastops {version} and fastops-torch" in result.stderr


def test_namesake_elsewhere(run: Run, site: Path) -> None:
    """Another project's, in another folder of the path, is a warning: its files and ours are not mixed."""
    record(site / "other", "fastops", "0.0.2", "__init__.py", "deploy.py")
    result = run(f"sys.path.append({str(site / 'other')!r}); import fastops; fastops.nn.MLP(2, 3)")
    assert result.returncode == 0, result.stderr
    assert (
        "RuntimeWarning: fastops: another project's package of this name, fastops 0.0.2, is installed" in result.stderr
    )
