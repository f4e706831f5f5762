"""Rehearses a release: what will be uploaded, from a package index of this machine, in fresh environments.

    python tools/release_check.py [--torch VERSION...] [--rebuild] SDIST WHEEL

Metadata, contents and the list of what is inside are checked as PyPI and others would. Beside each release of torch,
pip then installs the version before, upgrades it, has two versions in two environments, and uninstalls; torch must stay
as it was, and nothing be left. The version before is made of this wheel, with another number and a file more. The same
wheel is installed under the name that the project's own index has, too. --rebuild unpacks the source distribution
elsewhere and builds both again, without ccache, with BUILD_OPTIONS and SOURCE_DATE_EPOCH as they were: every byte must
be the same, which takes as long as a first build. Needs the dependency groups wheel and release.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import package_index
from environments import Environment, output
from merge_wheels import merge, pack, time_of, unpack

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build/release-check"
BEFORE = "0.0.1"  # before every version that there will be
OURS = "fastops"  # the name that an index of our own has


def step(what: str) -> None:
    print(f"=== release: {what}", flush=True)


def check_metadata(sdist: Path, wheel: Path) -> None:
    for command in (["twine", "check", "--strict", str(sdist), str(wheel)], ["check-wheel-contents", str(wheel)]):
        subprocess.run([Path(sysconfig.get_path("scripts")) / command[0], *command[1:]], check=True, cwd=ROOT)
    with zipfile.ZipFile(wheel) as archive:
        (sbom,) = (name for name in archive.namelist() if name.endswith(".dist-info/sboms/fastops.cdx.json"))
        if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(archive.read(sbom).decode()):
            raise RuntimeError(f"{sbom} is not CycloneDX: {error}")


def name_and_version(wheel: Path) -> tuple[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        fields = message_from_bytes(archive.read(metadata))
    return fields["Name"], fields["Version"]


def version_before(wheel: Path) -> Path:
    """The wheel as an earlier version, with a module that has gone since."""
    unpacked = unpack(wheel, OUT / "unpacked")
    (info,) = unpacked.glob("*.dist-info")
    name, version = info.name.removesuffix(".dist-info").split("-")
    for file in (info / "METADATA", *unpacked.glob("fastops/torch-*/_build.py")):
        text = re.sub(rf'(?m)^(Version: |version = "){re.escape(version)}', rf"\g<1>{BEFORE}", file.read_text("utf-8"))
        file.write_text(text, encoding="utf-8")
    info.rename(unpacked / f"{name}-{BEFORE}.dist-info")
    (unpacked / "fastops/gone.py").write_text("")
    return pack(unpacked, OUT / "before", time_of(wheel))


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise RuntimeError(what)


def smoke_test(environment: Environment, version: str) -> Callable[[], None]:
    """Starts it; what is returned waits for its end."""
    process = environment.start("tools/smoke_test.py")

    def finish() -> None:
        expect(f"fastops {version} in {environment.site}" in output(process), f"is not fastops {version}")

    return finish


def rehearse(torch: str, name: str, version: str, index: str) -> None:
    """Install, upgrade, two versions, uninstall, and the other name, beside a release of torch."""
    step(f"an environment with torch {torch}")
    base = Environment(OUT / f"torch-{torch}", f"torch=={torch}", "numpy")
    first, second = (Environment(OUT / place, beside=base) for place in ("first", "second"))
    torch_before, nothing = base.files(), first.files()
    from_index = ("--isolated", "--index-url", index)  # and from no other that the environment names

    step(f"{name} {BEFORE}, and an upgrade to {version}")
    first.install(*from_index, f"{name}=={BEFORE}")
    smoke_test(first, BEFORE)()
    expect((first.site / "fastops/gone.py").exists(), f"{BEFORE} is another wheel")
    first.install(*from_index, "--upgrade", name)
    smoke_test(first, version)()
    expect(not (first.site / "fastops/gone.py").exists(), "a file of the version before is left")
    first.pip("check")

    step(f"{BEFORE} and {version} at once")
    second.install(*from_index, f"{name}=={BEFORE}")
    both = [smoke_test(first, version), smoke_test(second, BEFORE)]
    for finish in both:
        finish()

    step("nothing is left of it, and the same under the name of our index")
    first.pip("uninstall", "--yes", name)
    expect(first.files() == nothing and not (first.site / "fastops").exists(), "uninstalling leaves files")
    first.install(*from_index, OURS)
    smoke_test(first, version)()
    first.pip("uninstall", "--yes", OURS)
    expect(first.files() == nothing, "uninstalling leaves files")
    expect(base.files() == torch_before, "torch is not what it was")
    shutil.rmtree(base.folder)


def rebuild(sdist: Path, wheel: Path) -> None:
    """Both again, from the source distribution, in another folder and without ccache."""
    place, out = OUT / "again", OUT / "rebuilt"
    shutil.rmtree(place, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    (sources,) = place.iterdir()
    if (ROOT / "build/torch").exists():  # the headers, which are large
        shutil.copytree(ROOT / "build/torch", sources / "build/torch", copy_function=os.link)
    with zipfile.ZipFile(wheel) as archive:
        builds = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/_build.py"))
        releases = re.findall(r'torch_version = "([\d.]+)', "".join(builds))
    environment = {**os.environ, "CCACHE_DISABLE": "1"}
    build = [sys.executable, "tools/build_wheel.py", "--out", str(out), "--name", name_and_version(wheel)[0], "--torch"]
    subprocess.run([*build, *releases], check=True, cwd=sources, env=environment)
    (sources / "PKG-INFO").unlink()  # which a source distribution has beside the sources
    pack_sources = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(out)]
    subprocess.run(pack_sources, check=True, cwd=sources, env=environment)
    for file in (wheel, sdist):
        again = out / file.name
        expect(again.exists(), f"{file.name} is not what a second build is called")
        expect(again.read_bytes() == file.read_bytes(), f"{file} and {again} differ{differences(file, again)}")
        print(f"{file.name}: two builds are equal, byte for byte")


def differences(one: Path, other: Path) -> str:
    """Names of what differs in two wheels."""
    if one.suffix != ".whl":
        return ""
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        names = first.namelist()
        if names != second.namelist():
            return " in which files there are, or in their order"
        return f" in {', '.join(name for name in names if first.read(name) != second.read(name)) or 'their times'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdist", type=Path, metavar="SDIST")
    parser.add_argument("wheel", type=Path, metavar="WHEEL")
    parser.add_argument("--torch", nargs="*", default=[], metavar="VERSION", help="beside which it is installed")
    parser.add_argument("--rebuild", action="store_true", help="whether a second build is the same, too")
    arguments = parser.parse_args()
    sdist, wheel = arguments.sdist.resolve(), arguments.wheel.resolve()
    shutil.rmtree(OUT, ignore_errors=True)
    step("metadata and contents")
    check_metadata(sdist, wheel)
    step("a package index")
    name, version = name_and_version(wheel)
    files = [sdist, wheel, version_before(wheel), merge([wheel], OUT / "ours", OURS)]
    command = [sys.executable, package_index.__file__, "--out", str(OUT / "simple"), *map(str, files)]
    subprocess.run(command, check=True)
    for torch in arguments.torch:
        rehearse(torch, name, version, (OUT / "simple").as_uri())
    if arguments.rebuild:
        step("a second build")
        rebuild(sdist, wheel)
    step("passed")


if __name__ == "__main__":
    main()
