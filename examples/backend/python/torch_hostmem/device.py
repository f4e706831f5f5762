"""Devices: how many, which is current."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from . import _C


class Properties(NamedTuple):
    """What is known of a device."""

    name: str
    total_memory: int


_initialized = True
"""Checkpointing reads it before it saves the states of the generators."""


def init() -> None:
    """Nothing to do: the library is loaded."""


def is_initialized() -> bool:
    """Whether :func:`init` has nothing left to do."""
    return _initialized


def is_available() -> bool:
    """Whether there is a device."""
    return True


def is_bf16_supported() -> bool:
    """Whether tensors may be bfloat16."""
    return True


def device_count() -> int:
    """The number of devices."""
    return _C.device_count


def current_device() -> int:
    """The device that a tensor of device ``"hostmem"`` is made on."""
    return _C.current_device()


def index_of(device: Any = None) -> int:
    """The index of a device, given as one, as a name or as an index; of the current one for None."""
    if isinstance(device, int) and not isinstance(device, bool):
        return device if device >= 0 else current_device()
    if device is None:
        return current_device()
    device = torch.device(device)
    if device.type != "hostmem":
        raise ValueError(f"torch.hostmem: device is {device}, but must be a hostmem device")
    return current_device() if device.index is None else device.index


def set_device(device: Any) -> None:
    """Makes a device the current one; one with index -1 changes nothing."""
    _C.set_device(index_of(device))


class device:  # noqa: N801  (as torch.cuda.device)
    """A context in which a device is the current one."""

    def __init__(self, device: Any) -> None:
        self.index = index_of(device)

    def __enter__(self) -> None:
        self.before = current_device()
        _C.set_device(self.index)

    def __exit__(self, *exception: object) -> None:
        _C.set_device(self.before)


def get_device_properties(device: Any = None) -> Properties:
    """What is known of a device."""
    return Properties("host memory", torch.accelerator.get_memory_info(index_of(device))[1])


def synchronize(device: Any = None) -> None:
    """Waits for what runs on a device."""
    torch.accelerator.synchronize(index_of(device))
