"""Kernels for more devices, from other packages.

A package brings them as a function without arguments, named by an entry point of the group ``fastops.backends``::

    [project.entry-points."fastops.backends"]
    mydevice = "mypackage.fastops_kernels:load"

``import fastops`` calls it once its ops are there; it usually loads a shared library whose kernels are registered with
``TORCH_LIBRARY_IMPL(fastops, PrivateUse1, m)``. Such a library is built with ``find_package(fastops)``, which finds
fastops where CMake's ``CMAKE_PREFIX_PATH`` has :data:`cmake_prefix_path`. Without its kernels a device runs the ops
through PyTorch's, so a backend that fails to load is a warning and a line of :func:`fastops.info`, never an error.
``FASTOPS_BACKEND_AUTOLOAD=0`` loads none.
"""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint, entry_points

from . import _C
from ._warn import warn

__all__ = ["cmake_prefix_path"]


def __dir__() -> list[str]:
    return __all__


cmake_prefix_path: str = os.path.join(os.path.dirname(os.path.dirname(_C.__file__)), "share", "cmake")
"""Where ``fastopsConfig.cmake`` is found."""

state: dict[str, str] = {}
"""What became of each backend, by the name of its entry point."""


def load_all() -> None:
    """Loads the backends that are installed, each by itself."""
    if _C.environment_choice("FASTOPS_BACKEND_AUTOLOAD", ["0", "1"]) == "0":
        return
    for entry_point in entry_points(group="fastops.backends"):
        package = f"{entry_point.dist.name} {entry_point.dist.version}" if entry_point.dist else entry_point.value
        try:
            entry_point.load()()
            state[entry_point.name] = f"loaded from {package}"
        except Exception as error:
            state[entry_point.name] = f"failed, {package}: {type(error).__name__}: {error}"
            warn(_explanation(entry_point, package, error), RuntimeWarning)


def _explanation(entry_point: EntryPoint, package: str, error: Exception) -> str:
    return (
        f"fastops: the backend {entry_point.name!r} of {package} could not be loaded, so its device runs the ops "
        f"through PyTorch's: {entry_point.value} raised {type(error).__name__}: {error}"
    )
