"""The package index of a release: pages that pip reads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOL = ROOT / "tools/package_index.py"
pytestmark = pytest.mark.skipif(not TOOL.exists(), reason="needs the sources")


def make_index(out: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--out", str(out), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def download(index: Path, requirement: str, to: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--isolated", "download", "--no-deps", "--only-binary=:all:"]
    return subprocess.run(
        [*command, "--index-url", index.as_uri(), "--dest", str(to), requirement],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def make_wheel(folder: Path, name: str, version: str) -> Path:
    from wheel.wheelfile import WheelFile

    path = folder / f"{name}-{version}-py3-none-any.whl"
    with WheelFile(path, "w") as archive:
        info = f"{name}-{version}.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    return path


def test_pip_takes_the_newest(tmp_path: Path) -> None:
    """By the name as people write it, and no file that is not what the page says."""
    pytest.importorskip("wheel")
    pytest.importorskip("pip")
    files = [make_wheel(tmp_path, "fastops_torch", version) for version in ("0.9", "0.10")]
    index = tmp_path / "simple"
    assert make_index(index, *files, make_wheel(tmp_path, "fastops", "0.10")).returncode == 0
    got = download(index, "Fastops_Torch", tmp_path / "got")
    assert got.returncode == 0, got.stderr
    assert [file.name for file in (tmp_path / "got").iterdir()] == [files[1].name]
    assert download(index, "other", tmp_path / "got").returncode == 1
    with (index / "fastops-torch" / files[1].name).open("ab") as file:
        file.write(b"more")
    assert "DO NOT MATCH THE HASHES" in download(index, "fastops-torch", tmp_path / "again").stderr


def test_files_of_releases(tmp_path: Path) -> None:
    """Those that are attached to releases on GitHub, but to no draft; what is no distribution is left out."""

    def asset(name: str, digest: str | None = f"sha256:{'ab' * 32}") -> dict[str, str | None]:
        return {"name": name, "browser_download_url": f"https://example.org/{name}?a=1&b=2", "digest": digest}

    wheel = "fastops-0.2.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    releases = [
        {"draft": False, "assets": [asset(wheel), asset("notes.txt"), asset("fastops-0.2.0.tar.gz")]},
        {"draft": True, "assets": [asset("fastops-0.3.0.tar.gz")]},
    ]
    given = tmp_path / "releases.json"
    given.write_text(json.dumps([releases[:1], releases[1:]]))
    assert make_index(tmp_path / "simple", "--releases", given).returncode == 0
    page = (tmp_path / "simple/fastops/index.html").read_text()
    assert re.findall(r">([^<\n]+)</a>", page) == [wheel, "fastops-0.2.0.tar.gz"]
    assert f'href="https://example.org/{wheel}?a=1&amp;b=2#sha256={"ab" * 32}"' in page
    assert 'href="fastops/"' in (tmp_path / "simple/index.html").read_text()

    given.write_text(json.dumps([[{"draft": False, "assets": [asset(wheel, None)]}]]))
    assert f"GitHub has no SHA-256 of {wheel}" in make_index(tmp_path / "simple", "--releases", given).stderr
