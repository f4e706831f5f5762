"""Makes the wheel that is released: for several minors of torch, and fit for other machines.

    python tools/build_wheel.py --out FOLDER [--name NAME] [--torch VERSION...] [WHEEL]
    python tools/build_wheel.py --headers

WHEEL is for one torch and brings the kernels; if there is none, it is built first, for the torch of this environment.
For each of the other releases of torch, by default those of pyproject.toml, come the libraries that depend on it; its
headers are enough for them (outside of Linux, with its libraries). `pip wheel` has further options of BUILD_OPTIONS.
--headers gets those for WHEEL, of the torch of the dependency group, where something else builds it: cibuildwheel, with
FASTOPS_TORCH_ROOT=build/torch/first/torch. Needs the dependency groups build and wheel.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from packaging.requirements import Requirement

from merge_wheels import merge, minors, time_of, unpack
from torch_headers import headers
from torch_requirement import minor_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/wheel"


SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def versions(requirements: list[str]) -> list[str]:
    """Of the releases that are required, those that there are for this Python."""
    wanted = map(Requirement, requirements)
    return [str(one.specifier).removeprefix("==") for one in wanted if one.marker is None or one.marker.evaluate()]


def first_headers() -> None:
    (version,) = versions(SETTINGS["dependency-groups"]["torch"])
    shutil.copytree(headers(version), ROOT / "build/torch/first/torch", dirs_exist_ok=True)


def build(folder: Path, *settings: str) -> Path:
    """A wheel for the torch at hand, or for the one in FASTOPS_TORCH_ROOT."""
    shutil.rmtree(folder, ignore_errors=True)
    options = [*os.environ.get("BUILD_OPTIONS", "").split(), *(f"--config-settings={setting}" for setting in settings)]
    pip = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-build-isolation", "--no-deps"]
    subprocess.run([*pip, *options, "--wheel-dir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def build_for(version: str, kernels: Path) -> Path:
    """A wheel for a release of torch, of which there are headers alone."""
    print(f"=== for torch {version}", flush=True)
    os.environ["FASTOPS_TORCH_ROOT"] = str(headers(version))
    return build(
        BUILD / version,
        f"build-dir=build/torch-{version}/{{wheel_tag}}",
        f"cmake.define.FASTOPS_KERNELS={kernels.as_posix()}",
    )


def repair(wheel: Path, out: Path) -> Path:
    """Gives the wheel the tag of the platforms where it runs, which the name has afterwards.

    torch's libraries stay where they are, in the package next to fastops. There delocate does not find them, which it
    takes for an error even of those that it excludes.
    """
    commands = {
        "linux": "auditwheel repair --exclude libtorch*.so* --exclude libc10*.so* --exclude libgomp*.so* --wheel-dir",
        "darwin": "delocate-wheel --require-archs arm64 --ignore-missing-dependencies "
        "--exclude libtorch --exclude libc10 --exclude libomp -v -w",
        "win32": "delvewheel repair --ignore-existing --exclude torch*.dll;c10*.dll;libiomp*.dll -v -w",
    }
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    before = set(out.glob("*.whl"))
    command = [*commands[sys.platform].split(), str(out), str(wheel)]
    subprocess.run(command, check=True, env={**os.environ, "PATH": path})
    (repaired,) = set(out.glob("*.whl")) - before
    return repaired


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", nargs="?", type=Path, metavar="WHEEL")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="FOLDER", help="where the wheel is written")
    what.add_argument("--headers", action="store_true", help="only get the headers for WHEEL")
    parser.add_argument("--name", help="the name of the distribution; by default that of pyproject.toml")
    parser.add_argument("--torch", nargs="*", metavar="VERSION", help="other releases of torch")
    arguments = parser.parse_args()
    if arguments.headers:
        return first_headers()
    first = arguments.wheel or build(BUILD / "first")
    shutil.rmtree(BUILD / "unpacked", ignore_errors=True)
    unpacked = unpack(first, BUILD / "unpacked")
    wanted = versions(SETTINGS["tool"]["fastops"]["torch"]) if arguments.torch is None else arguments.torch
    others = [version for version in wanted if minor_of(version) not in minors(unpacked)]
    os.environ["SOURCE_DATE_EPOCH"] = time_of(first)
    wheels = [first, *(build_for(version, unpacked / "fastops") for version in others)]
    shutil.rmtree(BUILD / "merged", ignore_errors=True)
    merged = merge(wheels, BUILD / "merged", arguments.name)
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(repair(merged, arguments.out))


if __name__ == "__main__":
    main()
