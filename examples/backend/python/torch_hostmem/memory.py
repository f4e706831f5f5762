"""Memory: what ``torch.accelerator`` knows, which asks the allocator."""

from __future__ import annotations

from typing import Any

import torch

from .device import index_of


def memory_allocated(device: Any = None) -> int:
    """The bytes in tensors on a device."""
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes there were in tensors on a device since :func:`reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: Any = None) -> int:
    """The bytes in tensors on a device and kept for others."""
    return torch.accelerator.memory_reserved(index_of(device))


def reset_peak_memory_stats(device: Any = None) -> None:
    """Starts counting :func:`max_memory_allocated` anew."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def empty_cache() -> None:
    """Gives the memory that no tensor uses back to the system."""
    torch.accelerator.empty_cache()
