"""The memory that autograd keeps between the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def bytes_kept_for_backward(forward: Callable[[], Tensor], given: Iterable[Tensor]) -> int:
    """Bytes that autograd keeps from ``forward()`` for the backward pass, beyond the ``given`` tensors.

    Storages are counted, each once: two views of one tensor cost nothing more.
    """
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()  # kept alive until the end: a freed storage's address could be used again
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    del result
    return sum(size for address, size in storages.items() if address not in known)
