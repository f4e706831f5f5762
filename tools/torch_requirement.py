"""Which torch fastops depends on: any supported one for the sdist, the minors that it was built for in a wheel.

A hook of the build backend, see [[tool.dynamic-metadata]] in pyproject.toml.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterable, Mapping
from typing import Any

OLDEST = "torch>=2.11"
MISSING = f"""\
fastops is built against the torch that you have, but {sys.executable} cannot import torch.
Install torch first, then build without isolation:
  pip install torch scikit-build-core cmake ninja
  pip install --no-build-isolation ."""


class TorchRequirement:
    def __init__(self) -> None:
        self.state = "sdist"

    def build_state(self, state: str) -> None:
        self.state = state

    def dynamic_wheel(self, settings: Mapping[str, Any]) -> dict[str, bool]:
        return {"dependencies": True}

    def dynamic_metadata(self, settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
        return {"dependencies": [OLDEST if self.state == "sdist" else requirement([torch_minor()])]}


def torch_minor() -> str:
    """That of the torch that is built for, as cmake/torch.cmake finds it."""
    if root := os.environ.get("FASTOPS_TORCH_ROOT"):
        version = runpy.run_path(os.path.join(root, "version.py"))["__version__"]
    else:
        try:
            from torch import __version__ as version
        except ImportError:  # said here, before pip fetches a torch that the build would not see
            raise SystemExit(MISSING) from None
    return minor_of(version)


def minor_of(version: str) -> str:
    """2.13 of 2.13.0+cpu."""
    return ".".join(version.split(".")[:2])


def requirement(minors: Iterable[str]) -> str:
    """What a wheel with libraries for these minors requires: no other one, and no change where one of them is there."""
    found = sorted({tuple(int(part) for part in minor.split(".")) for minor in minors})
    if len(found) == 1:
        return "torch=={}.{}.*".format(*found[0])  # development versions, too
    (major, oldest), (last_major, newest) = found[0], found[-1]
    if major != last_major:
        raise ValueError(f"torch {major}.{oldest} and {last_major}.{newest}: what lies between is not known")
    gaps = [f"!={major}.{minor}.*" for minor in range(oldest, newest) if (major, minor) not in found]
    return f"torch{','.join([f'>={major}.{oldest}', *gaps, f'<{major}.{newest + 1}'])}"
