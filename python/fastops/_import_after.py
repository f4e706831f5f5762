"""Imports a module of ours right after one of somebody else's, whoever imports that and when."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from ._warn import warn


def import_after(name: str, companion: str) -> None:
    """Imports ``companion`` when ``name`` has been imported: now if it is, otherwise at the end of its import.

    A companion that does not work is a warning: neither import must fail for it.
    """
    if name in sys.modules:
        _import(name, companion)
    else:
        sys.meta_path.insert(0, _Finder(name, companion))


def _import(name: str, companion: str) -> None:
    try:
        importlib.import_module(companion)
    except Exception as error:
        warn(f"fastops: {companion} does not work with this {name}: {error}")


class _Finder(MetaPathFinder):
    """Finds one module as the other finders do, and imports its companion once it has been executed."""

    def __init__(self, name: str, companion: str) -> None:
        self._name = name
        self._companion = companion

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_import(module: ModuleType) -> None:
            execute(module)
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            _import(self._name, self._companion)

        # On the loader rather than a loader of our own around it, which would hide what else it can do.
        spec.loader.exec_module = execute_and_import  # type: ignore[method-assign]
        return spec
