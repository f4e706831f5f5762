"""Streams and events: PyTorch's own classes, bound to this device."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from .device import index_of


class Stream(torch.Stream):
    """A stream of a device, by default of the current one."""

    def __new__(cls, device: Any = None, priority: int = 0) -> Stream:
        return super().__new__(cls, torch.device("hostmem", index_of(device)), priority=priority)


def Event(enable_timing: bool = False) -> torch.Event:  # noqa: N802  (a class for other devices)
    """An event of the current device. Not a class of its own: ``elapsed_time`` takes none but ``torch.Event``."""
    return torch.Event("hostmem", enable_timing=enable_timing)


def current_stream(device: Any = None) -> torch.Stream:
    """The stream that ops on a device run in."""
    return torch.accelerator.current_stream(index_of(device))


def default_stream(device: Any = None) -> torch.Stream:
    """The stream that is current at first."""
    return torch.Stream(stream_id=0, device_index=index_of(device), device_type=current_stream(device).device_type)


def set_stream(stream: torch.Stream) -> None:
    """Makes a stream the current one of its device, and its device the current one."""
    torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream | None) -> Any:
    """A context in which a stream is the current one; with None it changes nothing."""
    return nullcontext() if stream is None else stream
