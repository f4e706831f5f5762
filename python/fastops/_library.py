"""Loads the native library, after making sure that it was built for the torch at hand."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import torch

from . import _build, _torch_internal


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


if _minor(torch.__version__) != _minor(_build.torch_version):
    raise ImportError(
        f"This fastops was built for torch {_minor(_build.torch_version)}, but torch {torch.__version__} is installed: "
        "build fastops for it, in a clone of its sources, with `pip install --no-build-isolation .`"
    )


def namesakes() -> list[str]:
    """What other projects whose package is called fastops, too, have installed: "name version", of each.

    There is one on PyPI. Files of one then lie among the other's, and whichever is removed takes files of both.
    """
    found = []
    for distribution in importlib.metadata.distributions():
        files = {str(file) for file in distribution.files or () if file.parts[0] == "fastops"}
        if files and "fastops/_activations.py" not in files:
            found.append(f"{distribution.name} {distribution.version}")
    return found


try:
    from . import _C  # registers the ops
except ImportError as error:
    if others := namesakes():
        error.msg = (
            f"{error.msg}. Another project's package of this name is installed: {', '.join(others)}. "
            "Uninstall both, then install fastops again."
        )
    raise

_C.read_environment()


def op_names() -> list[str]:
    """The ops as registered: "fastops::" with the name and, after a dot, the overload."""
    return [name for name in _torch_internal.op_names() if name.startswith("fastops::")]


def library_path() -> str:
    """Path of ``libfastops``, the library of the ops without Python.

    A C++ program that has loaded it (``dlopen``) runs saved models with ops of fastops; so does
    ``torch.ops.load_library`` in a Python process that does without the package.
    """
    suffix = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
    return str(Path(_C.__file__).with_name(f"libfastops{suffix}"))
