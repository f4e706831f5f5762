"""The memory that fastops keeps on the CPU for its next results and workspaces.

Of what is freed, up to 64 MiB are kept in a process, for all threads together: results of 256 KiB and more, and what
calls need while they run. ``set_limit`` changes that, as the environment variable ``FASTOPS_CPU_KEPT_MIB`` (in MiB)
does from the start. Over the limit the oldest goes first, and what has not been used for 10 seconds goes when fastops
next allocates or frees such memory. All of it comes from PyTorch's CPU allocator and goes back there: everything at
once when an allocation fails, when PyTorch is given another allocator, and before the process forks.
"""

from __future__ import annotations

import operator
from typing import NamedTuple

from . import _C

__all__ = ["Stats", "empty_cache", "set_limit", "stats"]


def __dir__() -> list[str]:
    return __all__


class Stats(NamedTuple):
    """What is kept, in bytes, and how often that served, in blocks since the process began."""

    limit: int
    """The most bytes that are kept."""
    kept: int
    """The bytes that are kept now, with 256 KiB for each call that is running on a small network."""
    reused: int
    """Blocks that were taken from what was kept. Small networks are not counted."""
    allocated: int
    """Blocks that had to be allocated."""
    released: int
    """Blocks that were given back to PyTorch's allocator."""


def stats() -> Stats:
    """What is kept now, and how often it served."""
    return Stats(*_C.memory_stats())


def empty_cache(*, unused_for: float = 0) -> None:
    """Gives what is kept back to PyTorch's allocator.

    Args:
        unused_for: only what has not been used for so many seconds. A program that is idle for long may call this from
            a timer: fastops has no thread of its own to do so.

    Raises:
        ValueError: if ``unused_for`` is negative or NaN.
    """
    if not unused_for >= 0:
        raise ValueError(f"fastops.memory.empty_cache: unused_for is {unused_for}, but must be 0 or more seconds")
    _C.empty_memory(unused_for)


def set_limit(limit: int) -> None:
    """Sets how much is kept at most; what is over it goes at once.

    Args:
        limit: bytes, for results and workspaces of all threads together; 0 keeps nothing.

    Raises:
        TypeError: if ``limit`` is no integer.
        ValueError: if ``limit`` is negative.
    """
    limit = operator.index(limit)
    if limit < 0:
        raise ValueError(f"fastops.memory.set_limit: limit is {limit}, but must be 0 or more bytes")
    _C.set_memory_limit(min(limit, 2**63 - 1))
