"""Finds the native library for the torch at hand, makes sure that it was built for it, and loads it.

What depends on torch lies in a folder for each minor, ``torch-2.13`` and the like, as C++ code of one does not run with
another. The modules of the right one, ``_C`` and ``_build``, become the package's.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import torch

from . import _distributions, _torch_internal

_package = sys.modules["fastops"]


def folders() -> dict[str, Path]:
    """Where the native libraries are, by the minor version of torch that they were built for: of every one."""
    found = {}
    for folder in (folder for place in _package.__path__ for folder in Path(place).glob("torch-*")):
        if match := re.fullmatch(r"torch-(\d+)\.(\d+)", folder.name):
            found[int(match[1]), int(match[2])] = folder
    return {f"{major}.{minor}": found[major, minor] for major, minor in sorted(found)}


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _choose() -> Path:
    """The folder for the torch at hand, which comes first among those of the package from now on."""
    found = folders()
    folder = found.get(_minor(torch.__version__))
    if folder is None:
        raise ImportError(
            f"This fastops was built for torch {', '.join(found) or 'of no version'}, but torch {torch.__version__} is "
            f"installed. {_how_to_build()}"
        )
    _package.__path__.insert(0, str(folder))
    if sys.platform == "win32":
        os.add_dll_directory(str(folder.parent))  # where the kernels are
    from . import _build

    facts = {
        "version": (_minor(_build.torch_version), _minor(torch.__version__)),
        "debug build": (_build.torch_debug, torch.version.debug),
    }
    if sys.platform == "linux":
        facts["C++11 ABI"] = (_build.torch_cxx11_abi, torch.compiled_with_cxx11_abi())
    for fact, (expected, found_here) in facts.items():
        if expected != found_here:
            raise ImportError(
                f"The library in {folder} was built for a torch with {fact}: {expected}; the torch that is installed, "
                f"{torch.__version__}, has {found_here}. {_how_to_build()}"
            )
    return folder


def _how_to_build() -> str:
    ours = _distributions.installed(_package.__path__)
    requirement = f"{ours[0].name}=={ours[0].version}" if ours else _distributions.ON_PYPI
    name = requirement.partition("==")[0]
    # From its own index where it came from there: on PyPI, that name is another project's.
    index = "" if name == _distributions.ON_PYPI else " --index-url INDEX"
    return (
        "Build it from source for this torch, which needs a C++20 compiler:\n"
        "  pip install scikit-build-core cmake ninja\n"
        "  pip install --no-build-isolation --no-deps --no-cache-dir --force-reinstall --no-binary "
        f"{name}{index} {requirement}\n"
        + (
            f"where INDEX is the index that {name} came from, as on PyPI that is another project's name; "
            if index
            else ""
        )
        + "or, in a clone of its sources, `pip install --no-build-isolation .` after the first"
    )


_distributions.check(_package.__path__)
try:
    folder = _choose()
    from . import _C  # registers the ops
except ImportError as error:
    if others := _distributions.namesakes():
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
