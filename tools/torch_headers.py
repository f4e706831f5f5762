"""Gets the headers of releases of torch, which is all that it takes to compile for them on Linux (macOS's and Windows'
linker wants the libraries, too), and prints their folders.

    python tools/torch_headers.py [--platform win_amd64] [2.11.0 2.15.0]

By default of the release that everything is built with, that of the dependency group torch. From the wheel for this
Python and platform, or another platform, which is downloaded (about half a gigabyte) and not installed. What was got is
kept in build/torch.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WANTED = ("torch/include/", "torch/version.py")


def version_of_group() -> str:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (version,) = re.findall(r'(?m)^torch = \["torch==([\d.]+)"\]$', settings)
    return str(version)


def headers(version: str, platform: str | None = None) -> Path:
    """The folder torch, with version.py and include/, of a release; with lib/ where that is linked with."""
    links = platform.startswith("macosx") if platform else sys.platform != "linux"  # none links for Windows elsewhere
    kinds = (*WANTED, "torch/lib/") if links else WANTED
    kept = ROOT / "build/torch" / (f"{version}-{platform}" if platform else version)
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as temporary:
            download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            of_platform = ["--platform", platform] if platform else []
            command = [*download, *of_platform, "--only-binary=:all:", "--dest", temporary, f"torch=={version}"]
            subprocess.run(command, check=True, stdout=sys.stderr)
            (wheel,) = Path(temporary).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                wanted = [name for name in archive.namelist() if name.startswith(kinds)]
                archive.extractall(Path(temporary) / "wanted", wanted)
            (Path(temporary) / "wanted").rename(kept)
    return kept / "torch"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", metavar="VERSION")
    parser.add_argument("--platform", help="as pip calls it, for example win_amd64")
    arguments = parser.parse_args()
    for release in arguments.releases or [version_of_group()]:
        print(headers(release, arguments.platform))
