"""Wheels for several minors of torch: how they are put together, what they require, and what they say is inside."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

WheelFile = pytest.importorskip("wheel.wheelfile").WheelFile
pytest.importorskip("cyclonedx")
ROOT = Path(__file__).parent.parent
TOOLS = ROOT / "tools"
if not TOOLS.exists():
    pytest.skip("needs the sources", allow_module_level=True)
sys.path.append(str(TOOLS))
from check_distributions import check_released  # noqa: E402
from merge_wheels import merge  # noqa: E402
from torch_requirement import requirement, torch_minor  # noqa: E402

TAG = "cp311-cp311-linux_x86_64"
METADATA = """\
Metadata-Version: 2.4
Name: fastops-torch
Version: 1.2
Requires-Dist: torch=={torch}.*
Requires-Dist: torchvision; extra == "bench"
Provides-Extra: bench

# fastops
Name: of the description, and Requires-Dist: torch
"""


BUILD = """\
torch_version = "{minor}.1+cpu"
pybind11_version = "3.0.{minor}"
compiler = "GNU 14.2.1"
"""
SBOM = "fastops_torch-1.2.dist-info/sboms/fastops.cdx.json"


def make_wheel(folder: Path, minor: str, **files: str) -> Path:
    """A wheel for a minor of torch, with a few files, or others in their place."""
    info = "fastops_torch-1.2.dist-info"
    content = {
        "fastops/__init__.py": "import this\n",
        "fastops/libfastops_cpu.so": "kernels",
        f"fastops/torch-{minor}/_build.py": BUILD.format(minor=minor),
        f"fastops/torch-{minor}/libfastops.so": f"for {minor}",
        f"{info}/METADATA": METADATA.format(torch=minor),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: false\nTag: {TAG}\n\n",
        f"{info}/licenses/LICENSE": "free\n",
        **files,
    }
    path = folder / minor / f"fastops_torch-1.2-{TAG}.whl"
    path.parent.mkdir()
    with WheelFile(path, "w") as archive:  # which adds RECORD
        for name, text in content.items():
            if text:
                archive.writestr(name, text)
    return path


def read(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_merge(tmp_path: Path) -> None:
    """The common files once, the folders of all, the requirement of all, and RECORD with the hashes of all."""
    wheels = [make_wheel(tmp_path, minor) for minor in ("2.13", "2.11", "2.12")]
    merged = merge(wheels, tmp_path / "out")
    assert merged == tmp_path / "out" / f"fastops_torch-1.2-{TAG}.whl"
    content = read(merged)
    assert SBOM in content
    assert {name: content.pop(name) for name in list(content) if "dist-info" not in name} == {
        name: text for wheel in wheels for name, text in read(wheel).items() if "dist-info" not in name
    }
    metadata = message_from_bytes(content["fastops_torch-1.2.dist-info/METADATA"])
    assert metadata.get_all("Requires-Dist") == ["torch>=2.11,<2.14", 'torchvision; extra == "bench"']
    assert metadata.get_payload() == "# fastops\nName: of the description, and Requires-Dist: torch\n"
    recorded = content["fastops_torch-1.2.dist-info/RECORD"].decode().splitlines()
    assert {line.split(",")[0] for line in recorded} == set(read(merged))
    assert all(",sha256=" in line for line in recorded if "RECORD" not in line)


def test_rename(tmp_path: Path) -> None:
    """The same wheel under another name."""
    renamed = merge([make_wheel(tmp_path, "2.13")], tmp_path, name="fastops")
    assert renamed.name == f"fastops-1.2-{TAG}.whl"
    content = read(renamed)
    metadata = message_from_bytes(content["fastops-1.2.dist-info/METADATA"])
    assert (metadata["Name"], metadata["Requires-Dist"]) == ("fastops", "torch==2.13.*")
    assert "fastops-1.2.dist-info/licenses/LICENSE" in content
    assert not [name for name in content if name.startswith("fastops_torch")]
    assert b"fastops_torch" not in content["fastops-1.2.dist-info/RECORD"]


@pytest.mark.parametrize(
    ("minor", "files", "error"),
    [
        ("2.12", {"fastops/libfastops_cpu.so": "others"}, "differ in fastops/libfastops_cpu.so"),
        ("2.12", {"fastops/more.py": "x = 1\n"}, "not every wheel has fastops/more.py"),
        ("2.12", {"fastops/__init__.py": ""}, "not every wheel has fastops/__init__.py"),
        ("2.12", {"fastops/torch-2.13/_C.so": "C"}, "two wheels have libraries for torch 2.13"),
        (
            "2.12",
            {"fastops_torch-1.2.dist-info/METADATA": METADATA.replace("Version: 1.2", "Version: 1.3")},
            "differ in fastops_torch-1.2.dist-info/METADATA",
        ),
        (
            "2.12",
            {"fastops_torch-1.2.dist-info/METADATA": METADATA.replace("Requires-Dist: torch=", "Requires-Dist: t=")},
            "METADATA requires torch 0 times",
        ),
    ],
)
def test_what_cannot_be_merged(minor: str, files: dict[str, str], error: str, tmp_path: Path) -> None:
    """Builds that differ in more than torch."""
    first, second = make_wheel(tmp_path, "2.13"), make_wheel(tmp_path, minor, **files)
    with pytest.raises(ValueError, match=error):
        merge([first, second], tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))


def test_the_same_whenever_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte: what is inside has the time of the first wheel."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1800000000")
    wheels = [make_wheel(tmp_path, minor) for minor in ("2.13", "2.11")]
    merged = merge(wheels, tmp_path / "out").read_bytes()
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert merge(wheels, tmp_path / "again").read_bytes() == merged
    with zipfile.ZipFile(tmp_path / "again" / wheels[0].name) as archive:
        assert {member.date_time for member in archive.infolist()} == {(2027, 1, 15, 8, 0, 0)}


def test_what_is_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PEP 770: the wheel itself, and whose headers are compiled in, of which version."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1800000000")
    cuda = {"fastops/libfastops_cuda.so": "kernels"}
    merged = merge([make_wheel(tmp_path, minor, **cuda) for minor in ("2.13", "2.11")], tmp_path / "out")
    sbom = json.loads(read(merged)[SBOM])
    assert sbom["bomFormat"] == "CycloneDX"
    assert sbom["metadata"]["timestamp"] == "2027-01-15T08:00:00+00:00"
    assert sbom["metadata"]["component"]["purl"] == "pkg:pypi/fastops-torch@1.2"
    assert [tool["name"] + tool["version"] for tool in sbom["metadata"]["tools"]["components"]] == ["GNU14.2.1"]
    inside = [
        f"{name}@{version}"
        for name, version in (
            ("pybind11", "3.0.2.11"),
            ("pybind11", "3.0.2.13"),
            ("torch", "2.11.1+cpu"),
            ("torch", "2.13.1+cpu"),
        )
    ]
    assert sorted(f"{one['name']}@{one['version']}" for one in sbom["components"] if "version" in one) == inside
    assert [one["purl"] for one in sbom["components"] if "version" not in one] == ["pkg:generic/cuda-cudart"]


@pytest.mark.parametrize(
    ("platform", "files", "error"),
    [
        ("manylinux_2_27_x86_64.manylinux_2_28_x86_64", ["libfastops_hip.txt", "libfastops_cuda.txt"], None),
        ("manylinux_2_28_aarch64", [], None),
        ("manylinux_2_28_x86_64", ["libfastops_hip.txt"], "lacks fastops/libfastops_cuda.txt"),
        ("manylinux_2_35_x86_64", ["libfastops_hip.txt", "libfastops_cuda.txt"], "is for manylinux_2_35_x86_64"),
    ],
)
def test_what_is_released(platform: str, files: list[str], error: str | None, tmp_path: Path) -> None:
    """For machines with an old glibc, and for x86-64 with the kernels for GPUs."""
    wheel = tmp_path / f"fastops_torch-1.2-cp311-cp311-{platform}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in files:
            archive.writestr(f"fastops/{file}", "")
    if error:
        with pytest.raises(ValueError, match=error):
            check_released(wheel)
    else:
        check_released(wheel)


def test_nothing_else_is_inside() -> None:
    """Of the headers in torch's folder that the compiler has read, torch's and pybind11's alone are somebody's code: of
    sleef.h, declarations (test_symbols.py sees that nothing is called).
    """
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    builds = [file.parent for file in ROOT.glob(f"build/{version}-*/.ninja_deps")]
    ninja = shutil.which("ninja", path=Path(sys.executable).parent)
    if not builds or not ninja:
        pytest.skip("needs a build in this folder")
    for build in builds:
        read_files = subprocess.run(
            [ninja, "-C", build, "-t", "deps"], check=True, capture_output=True, text=True
        ).stdout
        inside = {line.partition("/torch/include/")[2].split("/")[0] for line in read_files.splitlines()}
        assert inside - {""} == {"ATen", "c10", "pybind11", "sleef.h", "torch"}


@pytest.mark.parametrize(
    ("minors", "expected"),
    [
        (["2.13"], "torch==2.13.*"),
        (["2.9", "2.11", "2.10"], "torch>=2.9,<2.12"),
        (["2.15", "2.13", "2.11"], "torch>=2.11,!=2.12.*,!=2.14.*,<2.16"),
    ],
)
def test_requirement(minors: list[str], expected: str) -> None:
    """All minors that there are libraries for, and no others."""
    assert requirement(minors) == expected


def test_torch_that_is_built_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another than the one that can be imported, where its folder is given."""
    (tmp_path / "version.py").write_text("__version__ = '2.99.1+cu132'\n")
    monkeypatch.setenv("FASTOPS_TORCH_ROOT", str(tmp_path))
    assert torch_minor() == "2.99"
