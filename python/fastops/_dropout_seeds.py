"""Compiled graphs keep the seed of a dropout for the backward pass.

Where AOTAutograd computes again what the backward pass needs (``activation_memory_budget`` below 1), its partitioner
takes a number that was drawn for one that it may draw once more: the backward pass would drop other elements than the
forward pass did. Imported right after ``torch.fx.experimental.proxy_tensor``, whose mode records the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, get_proxy_slot
from torch.utils.checkpoint import CheckpointPolicy


def _record(mode: Any, op: Any, types: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Any:
    """Records the op as ever, and that its seed is to be kept, unless a checkpoint has said what becomes of it."""
    given = dict(zip((argument.name for argument in op._schema.arguments), args, strict=False)) | dict(kwargs or {})
    if isinstance(seed := given.get("seed"), Tensor):
        recorded = get_proxy_slot(seed, mode.tracer, None)
        if recorded is not None:
            recorded.proxy.node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
    return mode.__torch_dispatch__(op, types, args, kwargs)


for _op in ("sequential_forward", "sequential_backward"):
    torch.library.register_torch_dispatch(f"fastops::{_op}", ProxyTorchDispatchMode, _record)
