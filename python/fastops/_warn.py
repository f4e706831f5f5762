"""Warnings that point at the line of the program that had to do with it, however deep within fastops they arise."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_IMPORT_MODULE = os.path.join("importlib", "__init__.py")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """``warnings.warn``, at the innermost line that is neither ours nor of Python's import."""
    warnings.warn(message, category, stacklevel=_stacklevel())


def _stacklevel() -> int:
    """That of the program's line, for the function that calls this one."""
    level = 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if "importlib" not in file or "_bootstrap" not in file:  # which Python does not count
            if not file.startswith(_OURS) and not file.endswith(_IMPORT_MODULE):
                return level
            level += 1
        frame = frame.f_back
    return 1
