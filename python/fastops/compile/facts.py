"""What must hold for nodes of a captured graph to be computed together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .._eager import DTYPES, is_autocast_on
from .._resolve import PARAMETERS
from .._torch_internal import FakeTensor
from .calls import ELEMENTWISE, FRESH, call_of, written

# Calls after which everything runs under other circumstances.
_SWITCH = re.compile("autocast|grad_enabled|grad_mode|inference_mode|_nesting|saved_tensors_hooks|functorch")
# The ends of the names of those between which nothing is fused.
_REGION = {"enter_autocast": 1, "exit_autocast": -1, "increment_nesting": 1, "decrement_nesting": -1}


class Facts:
    """A graph, looked through once.

    Attributes:
        order: the position of each node.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.order: dict[fx.Node, int] = {node: position for position, node in enumerate(graph.nodes)}
        self._section: dict[fx.Node, int] = {}
        self._in_region: set[fx.Node] = set()
        self._written: set[int] = set()
        self._writes: list[int] = []
        section = depth = 0
        for node in graph.nodes:
            name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
            if _SWITCH.search(name):
                section += 1
                depth += next((step for end, step in _REGION.items() if name.endswith(end)), 0)
            self._section[node] = section
            if depth:
                self._in_region.add(node)
            if tensors := [tensor for tensor in written(node) if not _is_one_more_step(node, tensor)]:
                self._written.update(map(storage_of, tensors))
                self._writes.append(self.order[node])

    def obstacle(self, node: fx.Node) -> str | None:
        """Why the tensor that a node gives cannot be part of a fused op; None if it can."""
        value = node.meta.get("example_value")
        if not isinstance(value, Tensor):
            return "it is no tensor"
        if type(value) not in (FakeTensor, torch.nn.Parameter) or value.layout is not torch.strided or value.is_nested:
            return f"it is a {_kind(value)}"
        if value.dtype not in DTYPES and value.dtype is not torch.bool:
            return f"it is of {value.dtype}"
        if storage_of(node) in self._written:
            return "it is changed in place"
        if node in self._in_region or is_autocast_on(value.device):
            return "it is under autocast or a transform of torch.func"
        return None

    def fits(self, *nodes: fx.Node) -> bool:
        """Whether nothing stands in the way of any of them."""
        return not any(map(self.obstacle, nodes))

    def alike(self, *nodes: fx.Node) -> bool:
        """Whether they have one shape and device, and one dtype, except for conditions."""
        values = [value_of(node) for node in nodes]
        return (
            all(same_sizes(value.shape, values[0].shape) and value.device == values[0].device for value in values)
            and len({value.dtype for value in values} - {torch.bool}) == 1
        )

    def nothing_written(self, nodes: Iterable[fx.Node]) -> bool:
        """Whether nothing is written to from the first of them to the last: inputs may share memory unknown to us."""
        positions = [self.order[node] for node in nodes]
        return not any(min(positions) <= position <= max(positions) for position in self._writes)

    def one_section(self, nodes: Iterable[fx.Node]) -> bool:
        """Whether all of them run with gradients on, or all with gradients off, and so on."""
        return len({self._section[node] for node in nodes}) == 1


def value_of(node: fx.Node) -> Any:
    """The fake tensor, or the number, that Dynamo noted for a node."""
    return node.meta["example_value"]


def same_sizes(a: Iterable[Any], b: Iterable[Any]) -> bool:
    """Whether two shapes are equal for all sizes that the graph is for."""
    a, b = list(a), list(b)
    return len(a) == len(b) and all(statically_known_true(x == y) for x, y in zip(a, b, strict=True))


def _is_one_more_step(node: fx.Node, tensor: fx.Node) -> bool:
    """Whether the node, which writes to the tensor, may as well give a new one: nobody else sees the tensor."""
    call, maker = call_of(node), call_of(tensor)
    if call is None or maker is None or call.name not in (*ELEMENTWISE, *PARAMETERS) or maker.name not in FRESH:
        return False
    return tensor is node.args[0] and list(tensor.users) == [node]


def storage_of(node: fx.Node) -> int:
    """A number for the memory that a node's tensor is in; 0 for what is no tensor."""
    value = node.meta.get("example_value")
    try:
        return value.untyped_storage()._cdata if isinstance(value, Tensor) else 0
    except NotImplementedError:  # sparse tensors have none
        return 0


def _kind(value: Tensor) -> str:
    return f"{type(value).__name__} with layout {value.layout}"
