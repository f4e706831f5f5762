"""A user's own elementwise function as one kernel: :func:`fastops.fuse`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from ._torch_internal import in_transform, is_any_autocast_enabled, is_function_mode_enabled


def fuse(function: Callable[..., Any]) -> Callable[..., Any]:
    """An elementwise function of tensors as one kernel, and the derivative of each order as one more.

    ``torch.compile`` makes one forward and one backward kernel of such a function, too, but the backward one cannot be
    differentiated. Nothing but the inputs is kept for the backward pass. Functions that are one of fastops' activations
    are computed by its op.

    Args:
        function: takes tensors and numbers, and gives a tensor, or a tuple, list or dict of tensors. What it computes
            for an element may depend on the same element of its tensors only. It may use Python's numbers and control
            flow over them as it likes, but other tensors only as arguments. Where it asks for their shape, it is called
            as it is, unless they have one dimension; so it is with a tensor without dimensions where dtypes differ or
            it casts.

    Returns:
        A function with the same signature. Its tensors are broadcast against each other, and each result has that
        shape; results are contiguous. It compiles when it is first called with tensors of some dtypes, for any sizes.
        Under ``torch.compile``, ``torch.func``, forward-mode differentiation and autocast it is ``function`` itself,
        and so it is for what is new after a thousand kinds of calls: numbers that change belong into tensors.

    Raises:
        TypeError: ``function`` cannot be called.
        ValueError: in a call, where the function is not elementwise: it reduces, indexes or reshapes, draws random
            numbers, writes to its arguments, or its control flow depends on a tensor's values.

    Example:
        >>> @fastops.fuse
        ... def f(x):
        ...     return torch.sin(x) ** 2 + torch.cos(x) ** 2
    """
    if not callable(function):
        raise TypeError(f"fastops.fuse: function must be a function, but is a {type(function).__qualname__}")

    @functools.cache
    def asks_for_shape() -> bool:
        return _names_any_of(_SHAPE, function, set())

    @functools.cache
    def casts() -> bool:
        return _names_any_of(_CASTS, function, set())

    def has_other_numbers(tensors: list[Tensor]) -> bool:
        # Tensors without dimensions decide less about the dtype than others, and no less once they are flat.
        return any(tensor.dim() == 0 for tensor in tensors) and (
            len({tensor.dtype for tensor in tensors}) > 1 or casts()
        )

    @functools.cache
    def compiled() -> Any:
        from .compile.pointwise import Compiled

        return Compiled(function)

    @functools.wraps(function)
    def fused(*arguments: Any, **keywords: Any) -> Any:
        tensors = [value for value in (*arguments, *keywords.values()) if isinstance(value, Tensor)]
        if not _can_be_compiled(tensors):
            return function(*arguments, **keywords)
        shape = tensors[0].shape
        is_reshaped = len(shape) != 1
        if any(tensor.shape != shape for tensor in tensors):
            shape, is_reshaped = torch.broadcast_shapes(*(tensor.shape for tensor in tensors)), True
        # Sizes 0 and 1 would be graphs of their own.
        if shape.numel() < 2 or (is_reshaped and (asks_for_shape() or has_other_numbers(tensors))):
            return function(*arguments, **keywords)
        values = [_flat(value, shape) for value in (*arguments, *keywords.values())]
        result = compiled()(values, tuple(keywords), is_reshaped)
        if isinstance(result, (tuple, list, dict)):
            from ._torch_internal import tree_map

            return tree_map(functools.partial(_in_shape, shape), result)
        return _in_shape(shape, result)

    return fused


# What tensors are asked about their shape, which is not the same once they are flat.
_SHAPE = {"T", "dim", "grad_fn", "is_contiguous", "is_leaf", "len", "ndim", "ndimension", "nelement", "numel", "shape"}
_SHAPE |= {"size", "storage_offset", "stride", "t"}


# What gives a tensor of another floating dtype.
_CASTS = {"bfloat16", "double", "dtype", "float", "float16", "float32", "float64", "half", "to", "type", "type_as"}


def _names_any_of(wanted: set[str], function: Any, seen: set[Any]) -> bool:
    """Whether a function does, or one that it calls by name; of torch's own, none gives another result for it."""
    from .compile.shortcuts import codes_within

    while isinstance(function, (functools.partial, MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    if not isinstance(function, (FunctionType, type, BuiltinFunctionType)):  # an object that can be called
        function = type(function).forward if isinstance(function, torch.nn.Module) else type(function).__call__
    if not isinstance(function, FunctionType) or function in seen:
        return False
    home = function.__globals__.get("__name__")
    if isinstance(home, str) and home.split(".")[0] == "torch":
        return False
    seen.add(function)
    names = {name for code in codes_within(function.__code__) for name in code.co_names}
    if not wanted.isdisjoint(names):
        return True
    around = [function.__globals__.get(name) for name in names]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty one
            around.append(cell.cell_contents)
    return any(callable(value) and _names_any_of(wanted, value, seen) for value in around)


def _flat(value: Any, shape: torch.Size) -> Any:
    if not isinstance(value, Tensor) or (value.dim() == 1 and value.shape == shape):
        return value
    # Dynamo makes graphs of expanded tensors for one size.
    return value.reshape(-1) if value.shape == shape else value.expand(shape).contiguous().view(-1)


def _in_shape(shape: torch.Size, result: Any) -> Tensor:
    if not isinstance(result, Tensor) or result.numel() != shape.numel():
        raise ValueError(f"fastops.fuse: each result must be a tensor of the inputs' shape, but one is {result!r}")
    return result if len(shape) == 1 else result.view(shape)


def _can_be_compiled(tensors: list[Tensor]) -> bool:
    """Whether there are tensors, and nobody else wants to see what is done to them or to change their dtypes."""
    return (
        len(tensors) > 0  # Dynamo of torch 2.11 traces no bool() of a list
        and not torch.compiler.is_compiling()
        and all(
            type(tensor) in (Tensor, torch.nn.Parameter)
            and not tensor.is_neg()
            and not tensor.is_conj()
            and not tensor.__dict__  # attributes of the program's own
            for tensor in tensors
        )
        and not in_transform()
        and not is_function_mode_enabled()
        and not is_any_autocast_enabled()
    )
