"""Elementwise functions as one kernel, and each of their derivatives as one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .._resolve import PARAMETERS
from .._torch_internal import FailOnRecompileLimitHit, OpOverload, compile_lock
from .._warn import warn
from .backend import copy_of
from .calls import written
from .facts import same_sizes, storage_of
from .fusion import fuse_graph
from .shortcuts import Shortcuts, of_sizes, record, recorded

Function = Callable[..., Any]

# Kernels for more elements than this use several threads.
_LARGE = 1 << 15
# Of calls with other dtypes, numbers, ..., for each of which there are kernels.
_MOST_KINDS = 1024
# What is elementwise without having the tag.
_ALSO = {f"aten::{name}" for name in "alias detach full_like hardswish ones_like rsub scalar_tensor zeros_like".split()}
_CAST = "aten::_to_copy"


class Compiled:
    """An elementwise function of tensors that have one dimension and one size, and of other values."""

    def __init__(self, function: Function) -> None:
        self._compiled = torch.compile(function, backend=_Backend(), fullgraph=True, dynamic=True)
        self._shortcuts = Shortcuts(function)
        self._function = function
        self._is_full = False

    def __call__(self, values: Sequence[Any], names: Sequence[str], is_reshaped: bool) -> Any:
        """Calls it; the last of the values have these names, and tensors have been reshaped to be such."""
        shortcut = self._shortcuts.find(self._shortcuts.key(values, names))
        if shortcut is not None:
            return shortcut(values)
        count = len(values) - len(names)
        arguments, keywords = values[:count], dict(zip(names, values[count:], strict=True))
        if not self._is_full:
            try:
                with record(is_reshaped) as calls:
                    result = self._call(*arguments, **keywords)
                self._shortcuts.learn(values, names, calls, result)
                return result
            except FailOnRecompileLimitHit:
                self._is_full = True
                name = getattr(self._function, "__qualname__", "the function")
                warn(
                    f"fastops.fuse: {name} was compiled for {_MOST_KINDS} kinds of calls, and is called as it is for "
                    "others; make numbers that change tensors"
                )
        return self._function(*arguments, **keywords)

    def _call(self, *arguments: Any, **keywords: Any) -> Any:
        from .._torch_internal import BackendCompilerFailed, TorchRuntimeError, Unsupported, UserError, dynamo_config

        try:
            limits = {"recompile_limit": _MOST_KINDS, "accumulated_recompile_limit": _MOST_KINDS}
            # With automatic dynamic shapes, tensors that have one size would be captured as having two that are equal.
            numbers = {"specialize_float": True, "specialize_int": True, "automatic_dynamic_shapes": False}
            with compile_lock, dynamo_config.patch(**numbers, **limits):
                return self._compiled(*arguments, **keywords)
        except BackendCompilerFailed as error:
            if isinstance(error.inner_exception, ValueError):
                raise error.inner_exception from None
            raise
        except (TorchRuntimeError, Unsupported, UserError) as error:
            raise ValueError(f"fastops.fuse: the function cannot be captured: {str(error).splitlines()[0]}") from error


class _Backend:
    """For Dynamo: makes kernels of the graphs of one elementwise function, whose tensors have one dimension."""

    def __init__(self) -> None:
        self._kernels: dict[Any, Pointwise] = {}

    def __call__(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Function:
        whole = copy_of(graph)
        fuse_graph(whole, faster=tuple(PARAMETERS))
        calls = [node for node in whole.graph.nodes if node.op not in ("placeholder", "output")]
        placeholders = graph.graph.find_nodes(op="placeholder")
        if any(node.users and not isinstance(_value(node), Tensor) for node in placeholders):
            raise ValueError("fastops.fuse: the function depends on the sizes of its tensors")
        given = {storage_of(node) for node in placeholders}
        if any(storage_of(tensor) in given for node in graph.graph.nodes for tensor in written(node)):
            raise ValueError("fastops.fuse: the function writes to its arguments")
        tensors = [i for i, node in enumerate(placeholders) if node.users]

        def call(forward: Function, *inputs: Tensor) -> tuple[Tensor, ...]:
            arguments: list[Any] = [None] * len(placeholders)  # sizes are not used
            for i, tensor in zip(tensors, inputs, strict=True):
                arguments[i] = tensor
            return forward(*arguments)

        kernel: Function
        if len(calls) == 1 and getattr(calls[0].target, "namespace", None) == "fastops":
            kernel = functools.partial(call, whole.forward)  # one of our ops, with its derivatives
        else:
            kernel = self._pointwise(
                functools.partial(call, graph.forward), graph.code, [example_inputs[i] for i in tensors]
            )
        kernel = of_sizes(kernel) if _depends_on_sizes(graph) else recorded(kernel)
        return lambda *inputs: kernel(*(inputs[i] for i in tensors))

    def _pointwise(self, function: Function, code: str, examples: Sequence[Tensor]) -> Pointwise:
        # Dynamo captures again for tensors that have or need no gradient, are views, ...
        key = code, torch.get_default_dtype()
        if key not in self._kernels:
            kernel = Pointwise(function)
            _check(kernel.trace(examples, _LARGE))
            self._kernels[key] = kernel
        return self._kernels[key]


class Pointwise:
    """A function of flat tensors that have one size: compiled, and differentiable to any order.

    What is compiled is so under Dynamo's own lock: tracing changes what other threads would trace with.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self._kernels: dict[Any, Function] = {}
        self._derivatives: dict[Any, Pointwise] = {}
        self._have_gradients: dict[tuple[bool, ...], tuple[bool, ...]] = {}
        self._is_for_one_size = False  # as second derivatives of abs are: PyTorch's asks for the sizes

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            apply: Any = _Differentiable.apply
            return apply(self, *tensors)
        return self.run(tensors)

    def have_gradients(self, tensors: Sequence[Tensor], needed: tuple[bool, ...]) -> tuple[bool, ...]:
        """Which of the results have gradients where these tensors need some: not what is detached, or of the others."""
        if needed not in self._have_gradients:
            with torch.enable_grad():
                few = [
                    torch.ones(2, dtype=tensor.dtype, device=tensor.device, requires_grad=needs)
                    for tensor, needs in zip(tensors, needed, strict=True)
                ]
                self._have_gradients[needed] = tuple(result.requires_grad for result in self.function(*few))
        return self._have_gradients[needed]

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """One kernel, without autograd."""
        count = tensors[0].numel()
        size = count if self._is_for_one_size else 64 * _LARGE if count > _LARGE else _LARGE // 16
        key = size, torch.get_num_threads(), *((tensor.dtype, tensor.device) for tensor in tensors)
        kernel = self._kernels.get(key)
        if kernel is None:
            with compile_lock:
                kernel = self._kernels.get(key) or self._compiled(tensors, size, key)
            if kernel is None:
                return self.run(tensors)
        # Gradients come with any strides.
        return tuple(kernel([tensor.contiguous() for tensor in tensors]))

    def _compiled(self, tensors: Sequence[Tensor], size: int, key: Any) -> Function | None:
        """A kernel for the size; None if it would be for no other, and the tensors have another."""
        graph = self.trace(tensors, size)
        self._is_for_one_size = same_sizes(_size_of(graph), [size])
        if self._is_for_one_size and size != tensors[0].numel():
            return None
        if len(self._kernels) >= _MOST_KINDS:
            self._kernels.clear()
        self._kernels[key] = kernel = _compile(graph, tensors, size)
        return kernel

    def derivative(self, count: int, wanted: tuple[int, ...], given: tuple[int, ...]) -> Pointwise:
        """Of the ``count`` inputs and gradients of the given outputs: the gradients of the inputs that are wanted."""
        key = wanted, given
        if key not in self._derivatives:
            self._derivatives[key] = Pointwise(functools.partial(_gradients, self.function, count, wanted, given))
        return self._derivatives[key]

    def trace(self, tensors: Sequence[Tensor], size: int) -> fx.GraphModule:
        """The function as a graph of ATen ops for any size; kernels are made for sizes like this one."""
        with torch.enable_grad():
            return _trace(self.function, tensors, size)


def _compile(graph: fx.GraphModule, tensors: Sequence[Tensor], size: int) -> Function:
    from .._torch_internal import compile_fx_inner, select_decomp_table

    # Without AOTAutograd, which takes longer than a small kernel at every call and has nothing to do here.
    with torch.no_grad():
        functional = torch.func.functionalize(graph)
        decomposed = _trace(functional, tensors, size, decomposition_table=select_decomp_table())
        inputs = [node.meta["val"] for node in decomposed.graph.find_nodes(op="placeholder")]
        compiled: Any = compile_fx_inner(decomposed, inputs)
    return compiled


def _trace(function: Function, tensors: Sequence[Tensor], size: int, **options: Any) -> fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    examples = [
        torch.empty(size, dtype=tensor.dtype, device=tensor.device, requires_grad=_is_differentiable(tensor))
        for tensor in tensors
    ]
    return make_fx(function, tracing_mode="symbolic", **options)(*examples)


class _Differentiable(torch.autograd.Function):
    """Keeps nothing but the inputs: the backward kernel computes the rest again."""

    @staticmethod
    def forward(ctx: Any, pointwise: Pointwise, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.pointwise = pointwise
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        outputs: list[Tensor] = []
        for output in pointwise.run(tensors):  # autograd knows results by their identity
            outputs.append(output.clone() if any(output is other for other in outputs) else output)
        flags = pointwise.have_gradients(tensors, ctx.needs_input_grad[1:])
        ctx.mark_non_differentiable(*(output for output, flag in zip(outputs, flags, strict=True) if not flag))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        wanted = tuple(i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed)
        given = {i: gradient for i, gradient in enumerate(gradients) if gradient is not None}
        if not given:
            return (None,) * (1 + len(tensors))
        results = ctx.pointwise.derivative(len(tensors), wanted, tuple(given))(*tensors, *given.values())
        found = dict(zip(wanted, results, strict=True))
        return None, *(found.get(i) for i in range(len(tensors)))


def _gradients(
    function: Function, count: int, wanted: tuple[int, ...], given: tuple[int, ...], *tensors: Tensor
) -> tuple[Tensor, ...]:
    inputs, gradients = tensors[:count], tensors[count:]
    outputs = function(*inputs)
    pairs = [(outputs[i], gradient) for i, gradient in zip(given, gradients, strict=True) if outputs[i].requires_grad]
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


def _depends_on_sizes(graph: fx.GraphModule) -> bool:
    """Whether the graph is for some sizes only."""
    values = [_value(node) for node in graph.graph.find_nodes(op="placeholder")]
    sizes = [size for value in values if isinstance(value, Tensor) for size in value.shape]
    return any(not isinstance(size, torch.SymInt) or size.node.shape_env.guards for size in sizes)


def _size_of(graph: fx.GraphModule) -> torch.Size:
    """The tensors' one size; a number where the graph is for no other."""
    size: torch.Size = graph.graph.find_nodes(op="placeholder")[0].meta["val"].shape
    return size


def _check(graph: fx.GraphModule) -> None:
    """Raises ValueError if the function is not elementwise."""
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            raise ValueError("fastops.fuse: the function uses a tensor that it is not given; make it an argument")
        if node.op != "call_function":
            continue
        op: Any = node.target
        is_op = isinstance(op, OpOverload)
        name = op._schema.name if is_op else ""
        is_cast = name == _CAST and node.kwargs.get("device") in (None, node.args[0].meta["val"].device)
        is_elementwise = is_op and (torch.Tag.pointwise in op.tags or name in _ALSO or is_cast)
        if not is_elementwise or torch.Tag.nondeterministic_seeded in op.tags:
            raise ValueError(f"fastops.fuse: {op} is not an elementwise function of its tensors that fuse knows")
    size = _size_of(graph)
    outputs: Any = graph.graph.output_node().args[0]
    for output in outputs if isinstance(outputs, (tuple, list)) else [outputs]:
        if not isinstance(output, fx.Node) or not same_sizes(output.meta["val"].shape, size):
            raise ValueError("fastops.fuse: each result must be a tensor of the inputs' shape")
