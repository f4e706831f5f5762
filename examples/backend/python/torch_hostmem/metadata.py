"""Flags of tensors on this device, which ``torch.save`` keeps."""

from __future__ import annotations

import torch

from . import _C


def set_flag(tensor: torch.Tensor, name: str) -> None:
    """Sets a flag."""
    if tensor.device.type != "hostmem":
        raise ValueError(f"torch.hostmem.set_flag: tensor is on {tensor.device}, but must be on a hostmem device")
    _C.set_flag(tensor, name)


def has_flag(tensor: torch.Tensor, name: str) -> bool:
    """Whether a flag is set."""
    return _C.has_flag(tensor, name)
