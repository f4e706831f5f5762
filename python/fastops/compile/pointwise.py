"""Elementwise functions as one kernel, and each of their derivatives as one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .._resolve import PARAMETERS
from .backend import copy_of
from .calls import written
from .facts import same_sizes, storage_of
from .fusion import fuse_graph

Function = Callable[..., Any]

# Kernels for more elements than this use several threads.
_LARGE = 1 << 15
# What is elementwise without having the tag.
_ALSO = {
    torch.ops.aten.detach,
    torch.ops.aten.full_like,
    torch.ops.aten.ones_like,
    torch.ops.aten.scalar_tensor,
    torch.ops.aten.zeros_like,
}


class Backend:
    """For Dynamo: makes kernels of the graphs of one elementwise function, whose tensors have one dimension."""

    def __init__(self) -> None:
        self._kernels: dict[str, Pointwise] = {}

    def __call__(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Function:
        _specialize_numbers(graph)
        whole = copy_of(graph)
        fuse_graph(whole, faster=tuple(PARAMETERS))
        calls = [node for node in whole.graph.nodes if node.op not in ("placeholder", "output")]
        if len(calls) == 1 and getattr(calls[0].target, "namespace", None) == "fastops":
            return whole.forward  # one of our ops, with its derivatives

        placeholders = graph.graph.find_nodes(op="placeholder")
        if any(node.users and not isinstance(_value(node), Tensor) for node in placeholders):
            raise ValueError("fastops.fuse: the function depends on the sizes of its tensors")
        given = {storage_of(node) for node in placeholders}
        if any(storage_of(tensor) in given for node in graph.graph.nodes for tensor in written(node)):
            raise ValueError("fastops.fuse: the function writes to its arguments")
        tensors = [i for i, node in enumerate(placeholders) if node.users]

        def function(*inputs: Tensor) -> tuple[Tensor, ...]:
            arguments: list[Any] = [None] * len(placeholders)  # sizes are not used
            for i, tensor in zip(tensors, inputs, strict=True):
                arguments[i] = tensor
            return graph.forward(*arguments)

        # Dynamo captures again for tensors that have or need no gradient, are views, ...
        kernel = self._kernels.get(graph.code)
        if kernel is None:
            kernel = Pointwise(function)
            _check(kernel.trace([example_inputs[i] for i in tensors], _LARGE))
            self._kernels[graph.code] = kernel
        return lambda *inputs: kernel(*(inputs[i] for i in tensors))


class Pointwise:
    """A function of flat tensors that have one size: compiled, and differentiable to any order."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._kernels: dict[Any, Function] = {}
        self._derivatives: dict[Any, Pointwise] = {}

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            apply: Any = _Differentiable.apply
            return apply(self, *tensors)
        return self.run(tensors)

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """One kernel, without autograd."""
        is_large = tensors[0].numel() > _LARGE
        key = is_large, torch.get_num_threads(), *((tensor.dtype, tensor.device) for tensor in tensors)
        if key not in self._kernels:
            self._kernels[key] = self._compile(tensors, 64 * _LARGE if is_large else _LARGE // 16)
        # Gradients come with any strides.
        return tuple(self._kernels[key](*(tensor.contiguous() for tensor in tensors)))

    def derivative(self, count: int, wanted: tuple[int, ...]) -> Pointwise:
        """Of the ``count`` inputs and the outputs' gradients: the gradients of the inputs that are wanted."""
        if wanted not in self._derivatives:
            self._derivatives[wanted] = Pointwise(functools.partial(_gradients, self.function, count, wanted))
        return self._derivatives[wanted]

    def trace(self, tensors: Sequence[Tensor], size: int) -> fx.GraphModule:
        """The function as a graph of ATen ops for any size; kernels are made for sizes like this one."""
        from torch.fx.experimental.proxy_tensor import make_fx

        examples = [
            torch.empty(size, dtype=tensor.dtype, device=tensor.device, requires_grad=_is_differentiable(tensor))
            for tensor in tensors
        ]
        with torch.enable_grad():
            return make_fx(self.function, tracing_mode="symbolic")(*examples)

    def _compile(self, tensors: Sequence[Tensor], size: int) -> Function:
        from torch._inductor.compile_fx import compile_fx

        graph = self.trace(tensors, size)
        inputs = [node.meta["val"].detach() for node in graph.graph.find_nodes(op="placeholder")]
        with torch.no_grad():
            compiled: Any = compile_fx(graph, inputs)
        return compiled


class _Differentiable(torch.autograd.Function):
    """Keeps nothing but the inputs: the backward kernel computes the rest again."""

    @staticmethod
    def forward(ctx: Any, pointwise: Pointwise, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.pointwise = pointwise
        ctx.save_for_backward(*tensors)
        outputs = pointwise.run(tensors)
        ctx.differentiable = [_is_differentiable(output) for output in outputs]
        ctx.mark_non_differentiable(*(output for output in outputs if not _is_differentiable(output)))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        wanted = tuple(i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed)
        given = [gradient for gradient, is_one in zip(gradients, ctx.differentiable, strict=True) if is_one]
        results = ctx.pointwise.derivative(len(tensors), wanted)(*tensors, *given)
        found = dict(zip(wanted, results, strict=True))
        return None, *(found.get(i) for i in range(len(tensors)))


def _gradients(function: Function, count: int, wanted: tuple[int, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
    inputs, gradients = tensors[:count], tensors[count:]
    outputs = [output for output in function(*inputs) if _is_differentiable(output)]
    pairs = [pair for pair in zip(outputs, gradients, strict=True) if pair[0].requires_grad]
    if not pairs:
        return tuple(torch.zeros_like(inputs[i]) for i in wanted)
    return torch.autograd.grad(
        [output for output, _ in pairs],
        [inputs[i] for i in wanted],
        [gradient for _, gradient in pairs],
        create_graph=True,
        materialize_grads=True,
    )


def _is_differentiable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _value(node: fx.Node) -> Any:
    return node.meta.get("example_value")


def _specialize_numbers(graph: fx.GraphModule) -> None:
    """Puts the values of numbers in the place of symbols; Dynamo then compiles again for others."""
    for node in list(graph.graph.nodes):
        value = _value(node)
        if node.op != "placeholder" and isinstance(value, torch.SymFloat):
            node.replace_all_uses_with(float(value))
            graph.graph.erase_node(node)
    graph.recompile()


def _check(graph: fx.GraphModule) -> None:
    """Raises ValueError if the function is not elementwise."""
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            raise ValueError("fastops.fuse: the function uses a tensor that it is not given; make it an argument")
        if node.op != "call_function":
            continue
        op: Any = node.target
        is_op = isinstance(op, torch._ops.OpOverload)
        is_elementwise = is_op and (torch.Tag.pointwise in op.tags or op.overloadpacket in _ALSO)
        if not is_elementwise or torch.Tag.nondeterministic_seeded in op.tags:
            raise ValueError(f"fastops.fuse: {op} is not an elementwise function of its tensors")
    size = graph.graph.find_nodes(op="placeholder")[0].meta["val"].shape
    outputs: Any = graph.graph.output_node().args[0]
    for output in outputs if isinstance(outputs, (tuple, list)) else [outputs]:
        if not isinstance(output, fx.Node) or not same_sizes(output.meta["val"].shape, size):
            raise ValueError("fastops.fuse: each result must be a tensor of the inputs' shape")
