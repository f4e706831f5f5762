"""Which distributions are installed that bring a package called fastops: ours, of either name, or another project's.

On PyPI that name is another project's, and ours is ``fastops-torch``; an index of our own has it as ``fastops``. Where
two lie in one place, files of one are among the other's, and whichever is removed takes files of both.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path

from ._warn import warn

ON_PYPI = "fastops-torch"
NAMES = (ON_PYPI, "fastops")


def is_ours(distribution: Distribution) -> bool:
    return any(str(file) == "fastops/_activations.py" for file in distribution.files or ())


def label(distribution: Distribution) -> str:
    return f"{distribution.name} {distribution.version}"


def installed(places: Iterable[str]) -> list[Distribution]:
    """Ours that have brought the package in these folders: one, unless something is wrong, or it was only copied."""
    folders = [Path(place) for place in places]
    return [one for one in _of_our_names() if is_ours(one) and Path(str(one.locate_file("fastops"))) in folders]


def namesakes() -> list[str]:
    """What other projects whose package is called fastops, too, have installed: "name version", of each."""
    found = []
    for distribution in distributions():
        has_package = any(file.parts[0] == "fastops" for file in distribution.files or ())
        if has_package and not is_ours(distribution):
            found.append(label(distribution))
    return found


def check(places: Iterable[str]) -> None:
    """Refuses to import the package from these folders where another distribution's files are among ours.

    Raises:
        ImportError: there are another project's, or those of another version of ours.
    """
    folders = [Path(place) for place in places]
    ours = installed(places)
    for other in _of_our_names():
        if is_ours(other):
            continue
        if Path(str(other.locate_file("fastops"))) in folders:
            raise ImportError(
                f"Another project's package of the name fastops, {label(other)}, is installed in the same place, and "
                f"files of one lie among the other's. {_uninstall_both()}"
            )
        warn(
            f"fastops: another project's package of this name, {label(other)}, is installed in "
            f"{other.locate_file('')}: which one is imported depends on the order of sys.path",
            RuntimeWarning,
        )
    if len(ours) > 1:
        message = f"fastops is installed under two names: {' and '.join(sorted(map(label, ours)))}"
        if len({one.version for one in ours}) > 1:
            raise ImportError(f"{message}, and files of one lie among the other's. {_uninstall_both()}")
        warn(f"{message}. Uninstalling one breaks the other. {_uninstall_both()}", RuntimeWarning)


def _uninstall_both() -> str:
    return f"Uninstall both with `pip uninstall {' '.join(NAMES)}`, then install one of them again."


def _of_our_names() -> list[Distribution]:
    found: dict[tuple[str, str], Distribution] = {}
    for name in NAMES:
        for distribution in distributions(name=name):
            found.setdefault((name, str(distribution.locate_file(""))), distribution)
    return list(found.values())
