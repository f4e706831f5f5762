"""Automatic mixed precision: what ``torch.autocast("hostmem")`` asks."""

from __future__ import annotations

import torch


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that autocast may use here; its default is :func:`torch.get_autocast_dtype`."""
    return [torch.bfloat16, torch.float16]
