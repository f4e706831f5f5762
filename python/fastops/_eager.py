"""Whether an op may be called through the direct entry points of fastops._C, which save time over torch.ops."""

from __future__ import annotations

from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import _is_torch_function_mode_enabled


def is_plain_eager(input: Tensor) -> bool:
    """Whether nothing is being captured and no Python override wants to see the op."""
    return type(input) is Tensor and not is_compiling() and not _is_torch_function_mode_enabled()
