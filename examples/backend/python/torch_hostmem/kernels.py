"""The kernels of this device for fastops' ops."""

from __future__ import annotations

from pathlib import Path

import torch

from . import _C


def load() -> None:
    """Called by ``import fastops``, through the entry point ``fastops.backends``."""
    torch.ops.load_library(str(Path(_C.__file__).with_name("libhostmem_fastops.so")))
