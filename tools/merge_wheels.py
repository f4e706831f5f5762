"""Makes one wheel of several that were built for different minors of torch, or gives a wheel another name.

    python tools/merge_wheels.py --out FOLDER [--name NAME] WHEEL...

What does not depend on torch must be the same in all of them, byte for byte; each brings its folders torch-X.Y. The
requirement of torch and the list of what is compiled in (sbom.py) follow from these. Everything inside has the time of
the first wheel. Needs the dependency group wheel.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import sbom
from torch_requirement import requirement

OF_ONE_TORCH = re.compile(r"fastops/torch-(\d+\.\d+)/")


def merge(wheels: Sequence[Path], out: Path, name: str | None = None) -> Path:
    """Writes the wheel to the folder ``out``, and returns its path."""
    time = time_of(wheels[0])
    with tempfile.TemporaryDirectory() as temporary:
        first, *others = (unpack(wheel, Path(temporary) / str(i)) for i, wheel in enumerate(wheels))
        for other in others:
            add(other, first)
        found = minors(first)
        if not found:
            raise ValueError(f"{wheels[0]} has no folder fastops/torch-X.Y")
        info = rewrite_metadata(first, requirement(found), name)
        (info / "sboms").mkdir(exist_ok=True)
        (info / "sboms/fastops.cdx.json").write_text(sbom.document(first, time), encoding="utf-8")
        return pack(first, out, time)


def time_of(wheel: Path) -> str:
    """When a wheel's files were written, as SOURCE_DATE_EPOCH; its builder takes it from there."""
    with zipfile.ZipFile(wheel) as archive:
        last = max(member.date_time for member in archive.infolist())
    return str(int(datetime(*last, tzinfo=timezone.utc).timestamp()))


def run_wheel(*arguments: str, **environment: str) -> None:
    command = [sys.executable, "-m", "wheel", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment})


def unpack(wheel: Path, folder: Path) -> Path:
    folder.mkdir(parents=True)
    run_wheel("unpack", "--dest", str(folder), str(wheel))
    (top,) = folder.iterdir()
    return top


def pack(unpacked: Path, out: Path, time: str) -> Path:
    """Writes the wheel to the folder ``out``, and returns its path."""
    with tempfile.TemporaryDirectory() as temporary:
        run_wheel("pack", "--dest-dir", temporary, str(unpacked), SOURCE_DATE_EPOCH=time)
        (wheel,) = Path(temporary).iterdir()
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, out / wheel.name))


def add(other: Path, to: Path) -> None:
    """Moves the folders of one wheel for minors of torch to another, after comparing the rest."""
    if of_both := sorted(minors(other) & minors(to)):
        raise ValueError(f"two wheels have libraries for torch {', '.join(of_both)}")
    theirs, ours = common_files(other), common_files(to)
    if missing := sorted(theirs ^ ours):
        raise ValueError(f"not every wheel has {', '.join(missing)}")
    if differing := sorted(name for name in ours if content(other, name) != content(to, name)):
        raise ValueError(f"the wheels differ in {', '.join(differing)}")
    for minor in minors(other):
        shutil.move(other / f"fastops/torch-{minor}", to / "fastops")


def minors(folder: Path) -> set[str]:
    return {
        found[1] for file in folder.rglob("*") if (found := OF_ONE_TORCH.match(file.relative_to(folder).as_posix()))
    }


def common_files(folder: Path) -> set[str]:
    """Names of what does not depend on torch; RECORD is written anew."""
    names = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    return {name for name in names if not OF_ONE_TORCH.match(name) and not name.endswith(".dist-info/RECORD")}


def content(folder: Path, name: str) -> bytes:
    if name.endswith(".dist-info/METADATA"):
        return with_metadata((folder / name).read_text(encoding="utf-8"), "torch", None).encode()
    return (folder / name).read_bytes()


def rewrite_metadata(folder: Path, torch: str, name: str | None) -> Path:
    """Returns the folder of the metadata, which has the distribution's name."""
    (info,) = folder.glob("*.dist-info")
    file = info / "METADATA"
    file.write_text(with_metadata(file.read_text(encoding="utf-8"), torch, name), encoding="utf-8")
    if name:
        version = info.name.removesuffix(".dist-info").split("-")[1]
        info = info.rename(folder / f"{re.sub('[-_.]+', '_', name).lower()}-{version}.dist-info")
    return info


def with_metadata(text: str, torch: str, name: str | None) -> str:
    """A METADATA file with another requirement of torch and, if given, another name."""
    fields, separator, description = text.partition("\n\n")
    fields, found = re.subn(r"(?m)^Requires-Dist: torch\b(?!.*extra ==).*$", f"Requires-Dist: {torch}", fields)
    if found != 1:
        raise ValueError(f"METADATA requires torch {found} times instead of once")
    if name:
        fields = re.sub(r"(?m)^Name: .*$", f"Name: {name}", fields)
    return fields + separator + description


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the wheel is written")
    parser.add_argument("--name", help="the name of the distribution; by default that of the wheels")
    arguments = parser.parse_args()
    try:
        print(merge(arguments.wheels, arguments.out, arguments.name))
    except ValueError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
