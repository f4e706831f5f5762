"""The ops in terms of PyTorch's own, for graphs that must not hold ops of fastops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ._library import op_names
from ._torch_internal import OpOverload

_ops = torch.ops.fastops


def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """What each op computes in terms of PyTorch's ops, for ``run_decompositions`` of an exported program.

    ``program.run_decompositions(fastops.decompositions())`` leaves no op of fastops: the program then runs, and
    converts to ONNX, where fastops is not installed. Layers become ``aten.linear``, activations elementwise ops; 16-bit
    activations are computed in float32. For a graph of core ATen ops alone, add PyTorch's own table::

        table = torch.export.default_decompositions()
        table.update(fastops.decompositions())
        program = program.run_decompositions(table)

    Returns:
        A new dictionary from every overload of every op to a function of the op's arguments, to be called under a
        tracing mode, as ``run_decompositions`` and ``make_fx(..., decomposition_table=...)`` do.
    """
    return {op: functools.partial(op._op_dk, _composite_key(op)) for op in map(_overload, op_names())}


def _overload(qualified_name: str) -> OpOverload:
    name, _, overload = qualified_name.removeprefix("fastops::").partition(".")
    op: OpOverload = getattr(getattr(_ops, name), overload or "default")
    return op


def _composite_key(op: OpOverload) -> Any:
    """The key of the kernel that calls PyTorch's ops."""
    from ._torch_internal import DispatchKey, parse_dispatch_key

    # The kernels for any device write into the results of their matrix products, which a graph cannot hold. Those for
    # batched gradients write into nothing.
    if op in (_ops.mlp.default, _ops.mlp_forward.default):
        return parse_dispatch_key("Batched")
    return DispatchKey.CompositeExplicitAutograd
