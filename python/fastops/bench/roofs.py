"""What the hardware can do at most: multiply-adds, and bytes of a copy."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch

import fastops

from .. import _torch_internal
from .workloads import Workload, dtype_name

_SECONDS = 0.3
_DEVICE_COPY_BYTES = 2**28


class Roofs:
    """The roofs of a device with the threads that PyTorch has; each is measured when it is first asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._measured: dict[str, float] = {}
        self.flops: Callable[[torch.dtype], tuple[float, str] | None] = cache(self._flops)
        self.copy: Callable[[int], tuple[float, str]] = cache(self._copy)

    def of(self, workload: Workload, mode: str) -> tuple[float, float, str] | None:
        """The work of a case, how much of such work the device does in a second, and what that is; or None."""
        flops, bytes_moved = workload.flops(mode), workload.bytes_moved(mode)
        if flops is not None:
            peak = self.flops(workload.dtype)
            return None if peak is None else (flops, *peak)
        if bytes_moved is not None:
            return (bytes_moved, *self.copy(workload.size * workload.dtype.itemsize))
        return None

    def measured(self) -> dict[str, float]:
        """Those measured so far, each under its description, in operations or bytes per second."""
        return dict(self._measured)

    def _flops(self, dtype: torch.dtype) -> tuple[float, str] | None:
        if self._device.type != "cpu" or (dtype == torch.bfloat16 and _has_bfloat16_matrices()):
            return None
        # bfloat16 is computed with in float32 where that is faster, or there is nothing else.
        numbers = [torch.bfloat16, torch.float32] if dtype == torch.bfloat16 else [dtype]
        peaks = [(fastops._C.peak_flops(dtype_name(number), _SECONDS) or 0.0, number) for number in numbers]
        peak, arithmetic = max(peaks, key=lambda found: found[0])
        return self._note(peak, f"{dtype_name(arithmetic)} multiply-adds")

    def _copy(self, size: int) -> tuple[float, str]:
        if self._device.type != "cpu":
            return self._note(_device_copy_bandwidth(self._device), f"copy of {_size(_DEVICE_COPY_BYTES)}")
        both = [fastops._C.copy_bandwidth(size, nontemporal, _SECONDS / 2) for nontemporal in (False, True)]
        return self._note(max(both), f"copy of {_size(size)}")

    def _note(self, rate: float, what: str) -> tuple[float, str]:
        self._measured[what] = rate
        return rate, what


def _has_bfloat16_matrices() -> bool:
    """Whether the CPU has AMX, whose peak no loop here measures."""
    return bool(_torch_internal.has_amx())


def _device_copy_bandwidth(device: torch.device) -> float:
    source = torch.ones(_DEVICE_COPY_BYTES, dtype=torch.uint8, device=device)
    destination = source.clone()
    best = 0.0
    synchronize = getattr(torch, device.type).synchronize
    for _ in range(10):
        synchronize()
        start = time.perf_counter()
        destination.copy_(source)
        synchronize()
        best = max(best, 2 * _DEVICE_COPY_BYTES / (time.perf_counter() - start))
    return best


def _size(size: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:g} {unit}"
        size //= 1024
    return f"{size:g} GiB"
