"""Existing models with fused ops: :func:`fastops.nn.convert`."""

from __future__ import annotations

import dis
import functools
import inspect
import re
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from .._eager import is_linear_unchanged, is_plain_tensor, is_untouched
from .._resolve import PARAMETERS, find
from .classes import known_class
from .formula import Formula, Gate, Inner, PackedGate, Scaled, Step, Unreadable
from .fused import FusedModule, fuse, segments_of, sequentials_of, steps_of
from .inner import has_formula, is_plain_sequential
from .ops import activation_of, does_nothing, is_conv1d_class, is_linear, name_of, next_segment
from .reader import read
from .report import Conversion, Left, Replaced
from .segments import Segments, methods_of, unwrapped
from .source import MOST_KEPT


def convert(model: nn.Module) -> Conversion:
    """Makes the blocks of an existing model compute with fused ops, in place.

    The converted modules remain the same objects, with the same parameters, submodules, hooks and state dict; only
    their class changes, to a subclass with another ``forward``. A block is converted where all that its ``forward``
    does is calling layers one after another, or the two branches of a gated unit, and ``torch.nn.Linear`` and an
    activation that fastops has follow each other: ``torch.nn.Sequential``, and what timm, transformers and others have
    for multi-layer perceptrons and gated feed-forward blocks. Of a ``forward`` that does more, and of the methods that
    it names, calls of two or more linear layers one after another are computed together, as in
    ``torch.nn.TransformerEncoderLayer``. Each call looks at the layers as they are then, and
    at the functions that ``forward`` names: a layer that has hooks, that was replaced (by an adapter, say), or a
    dropout that is on, is called as before. Trouble with one module leaves that module as it is.

    Args:
        model: any module. It is converted itself, too, if it is such a block. Convert before ``torch.compile`` and
            ``torch.jit.script``.

    Returns:
        A :class:`~fastops._convert.Conversion`: what was replaced, what was left and why, and ``revert()``. Print it.

    Raises:
        TypeError: ``model`` is no ``torch.nn.Module``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"fastops.nn.convert: model must be a torch.nn.Module, but is a {type(model).__qualname__}")
    conversion = Conversion(model, [], [])
    places: dict[int, int] = {}
    computed_elsewhere: set[int] = set()  # each Sequential whose layers are computed by a module that has it
    try:
        for name, module in _walk(model, "", places):
            if isinstance(module, FusedModule):
                computed_elsewhere.update(_computed_by(module, module._fastops_formula))
                continue
            original = type(module)
            try:
                ops, formula = _plan(module)
                if ops:
                    fuse(module, formula)
                    computed_elsewhere.update(_computed_by(module, formula))
            except Unreadable as reason:
                conversion.left.append(Left(name, module, str(reason)))
            except Exception as error:  # of somebody else's class: the other modules are converted nevertheless
                conversion.left.append(Left(name, module, f"{type(error).__name__}: {error}"))
            else:
                if ops:
                    conversion.replaced.append(Replaced(name, module, original, ", ".join(ops)))
        conversion._leave_out(computed_elsewhere)
    except BaseException:  # without a report, nothing may stay converted
        conversion.revert()
        raise
    for rows in (conversion.replaced, conversion.left):
        rows.sort(key=lambda row: places[id(row.module)])
    return conversion


def _walk(module: nn.Module, name: str, places: dict[int, int]) -> Iterator[tuple[str, nn.Module]]:
    """The modules that can be converted, each once, behind those in it; ``places`` gets the order from without."""
    if id(module) in places:
        return
    places[id(module)] = len(places)
    if not _is_compiled(module):
        for child_name, child in module._modules.items():
            if child is not None:
                yield from _walk(child, f"{name}.{child_name}" if name else child_name, places)
    yield name, module


def _is_compiled(module: nn.Module) -> bool:
    return (
        isinstance(module, torch.jit.ScriptModule)
        or "_orig_mod" in module._modules  # of torch.compile(module)
        or module._compiled_call_impl is not None  # module.compile()
    )


def _plan(module: nn.Module) -> tuple[list[str], Formula | Segments | None]:
    """The fused ops that a module would be computed with, and its formula; none where there is nothing to consider.

    Raises:
        Unreadable: it has layers to fuse, but they cannot be fused.
    """
    nothing: tuple[list[str], Formula | None] = [], None
    if _is_compiled(module):
        raise Unreadable("it is compiled already; convert the model before it is compiled, scripted or traced")
    if _is_ours(module) or _has_no_forward(module):
        return nothing
    if not (any(_looks_linear(inner) or has_formula(inner) for inner in _inner(module)) or _multiplies(module)):
        return nothing
    if implementation := _experts_implementation(module):
        raise Unreadable(
            f"its experts are computed by {implementation}, all of them at once (config._experts_implementation); "
            "those of the loop in its forward, 'eager', would be one op each"
        )
    own = [layer for child in module._modules.values() for layer in (child, *_of_list(child))]
    has_products = any(map(_looks_linear, own)) or _multiplies(module)
    try:
        formula = read(module)
        if formula and formula.takes_more:  # segments are for any arguments
            segments, ops = segments_of(module)
            if segments is not None:
                return ops, segments
    except Unreadable:
        segments, ops = segments_of(module)
        if segments is not None:
            return ops, segments
        has_activation = any(_is_activation(value) for value in [*own, *module.__dict__.values()])
        if has_products and (has_activation or _calls_activation(module)):
            raise
        if _looks_linear(module) or _products(module, own) < 2:
            return nothing
        if _attends(module, own):
            raise Unreadable("its products are those of attention, which is no feed-forward block") from None
        raise
    steps, layers = _effective(module, formula)
    found = list(_fused_ops(steps, layers))
    if all(map(_is_in_one_sequential, found)):  # which is converted by itself
        if has_products and (reason := _why_not(steps, layers)):
            raise Unreadable(reason)
        if not found and sum(map(_looks_linear, layers)) > 1:
            raise Unreadable("its linear layers have no activation between them")
        return nothing
    return [f"{op}({', '.join(name for step in computed for name in _names(step))})" for op, computed in found], formula


def _has_no_forward(module: nn.Module) -> bool:
    return type(module).forward is nn.Module.forward and "forward" not in module.__dict__


def _is_in_one_sequential(op: tuple[str, list[Step | Inner]]) -> bool:
    owners = {step.owner if isinstance(step, Inner) else None for step in op[1]}
    return len(owners) == 1 and None not in owners


def _computed_by(module: nn.Module, formula: Formula | Segments | None) -> list[int]:
    if isinstance(formula, Segments) or (formula and formula.takes_more):  # which calls it in other calls
        return []
    return [id(inner) for inner in sequentials_of(module, formula)]


def _of_list(module: Any) -> list[nn.Module]:
    """The modules in one that has no forward."""
    return list(module._modules.values()) if type(module) in (nn.ModuleList, nn.ModuleDict) else []


def _inner(module: nn.Module) -> Iterator[Any]:
    """The modules in a module, in lists of it, which have no forward, and in each Sequential of it."""
    for child in module._modules.values():
        yield child
        if child is not None and (_of_list(child) or is_plain_sequential(child)):
            yield from _inner(child)


def _effective(module: nn.Module, formula: Formula | None) -> tuple[list[Step | Inner], list[Any]]:
    """The steps, and what they call, without those that do nothing in evaluation."""
    kept = [(step, layer) for step, layer in steps_of(module, formula) if not does_nothing(layer, training=False)]
    return [step for step, _ in kept], [layer for _, layer in kept]


def _fused_ops(steps: list[Step | Inner], layers: list[Any]) -> Iterator[tuple[str, list[Step | Inner]]]:
    """The ops, and what each computes."""
    position = 0
    while position < len(layers):
        segment = next_segment(layers, position)
        if segment is not None:
            yield name_of(segment.op), steps[position : segment.end]
        position = segment.end if segment else position + 1


def _names(step: Step | Inner) -> Sequence[str]:
    """The attributes that a step calls, in order."""
    if isinstance(step, Inner):
        return [step.named(part) for part in _parts(step.step)]
    return [str(part) for part in _parts(step)]


def _parts(step: Step | Inner) -> Sequence[Any]:
    if isinstance(step, Gate):
        return step[:3]
    return [step.activation] if isinstance(step, PackedGate) else [step]


def _why_not(steps: list[Step | Inner], layers: list[Any]) -> str:
    """What is wrong with the first linear layer that something follows, or with its activation; "" if there is none."""
    for i, (step, layer) in enumerate(zip(steps, layers, strict=True)):
        if isinstance(layer, (Gate, PackedGate)):
            name = _names(step)[isinstance(layer, Gate)]
            if activation_of(layer.activation) is None:
                return _not_an_activation(name, layer.activation)
            return f"the product with {name} is not between two linear layers that can be fused"
        if _looks_linear(layer) and i + 1 < len(layers) and not _looks_linear(after := layers[i + 1]):
            if not is_linear(layer):
                return _not_plain(str(step), layer)
            if not isinstance(after, (Gate, PackedGate)) and activation_of(after) is None:
                return _not_an_activation(str(steps[i + 1]), after)
    return ""


def _not_plain(name: str, layer: nn.Module) -> str:
    if is_parametrized(layer):
        return f"{name} is parametrized"
    kind = type(layer)
    if kind is not nn.Linear and not is_conv1d_class(kind) and not known_class(kind).is_linear:
        return f"{name} is a {_path(layer)}, not a torch.nn.Linear"
    if not is_linear_unchanged():
        return "torch.nn.Linear or torch.nn.functional.linear was replaced"
    if not is_untouched(layer):
        return f"{name} has hooks or a forward of its own"
    tensors = [tensor for tensor in layer._parameters.values() if tensor is not None and not is_plain_tensor(tensor)]
    kinds = [f"{type(x).__name__}{f' of {x.dtype}' if type(x) is nn.Parameter else ''}" for x in tensors]
    return f"{name} has a weight or bias that is no plain tensor of floats: {', '.join(kinds)}"


def _not_an_activation(name: str, layer: Any) -> str:
    if find(layer):
        return f"{name} has hooks or a forward of its own"
    what = _path(layer) if isinstance(layer, nn.Module) else "factor" if isinstance(layer, Scaled) else "function"
    return f"{name}, after a linear layer, is a {what}, which is not an activation that fastops has"


def _path(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _looks_linear(layer: Any) -> bool:
    """Whether it is some kind of linear layer, one that can be fused or not."""
    return (
        isinstance(layer, nn.Linear)
        or is_conv1d_class(type(layer))
        or ("Linear" in type(layer).__name__ and not _is_ours(layer))
        or (isinstance(layer, nn.Module) and known_class(type(layer)).is_linear)
    )


def _is_ours(module: Any) -> bool:
    """Whether it is one of fastops.nn, which is one op already."""
    home = str(type(module).forward.__module__) if isinstance(module, nn.Module) else ""
    return home.startswith("fastops.") and not home.startswith("fastops.bench.")  # which has what others write


def _is_activation(value: Any) -> bool:
    found = activation_of(value)
    return found is not None and found[0] != "identity"


_PRODUCTS = {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "grouped_mm", "_grouped_mm"}
_ATTENTION = {"scaled_dot_product_attention", "multi_head_attention_forward"}


def _multiplies(module: nn.Module) -> bool:
    """Whether a module has matrices of its own, and methods that multiply by ``@`` or call products by name."""
    return _matrices(module) > 0 and (
        not (_PRODUCTS | _ATTENTION).isdisjoint(_names_in_methods(module)) or any(map(_has_matmul, _codes(module)))
    )


@functools.lru_cache(MOST_KEPT)
def _has_matmul(code: types.CodeType) -> bool:
    return any("@" in line.argrepr or line.opname.endswith("MATRIX_MULTIPLY") for line in dis.get_instructions(code))


def _matrices(module: nn.Module) -> int:
    """How many matrices a module has itself or in lists, or what may be one."""
    lists = [child for child in module._modules.values() if isinstance(child, (nn.ParameterList, nn.ParameterDict))]
    # To ask a tensor of another class would run code of that class.
    tensors = [tensor for owner in (module, *lists) for tensor in owner._parameters.values() if tensor is not None]
    return sum(not is_plain_tensor(tensor) or tensor.dim() > 1 for tensor in tensors)


def _products(module: nn.Module, own: list[Any]) -> int:
    """For how many products it has matrices, or layers of its own."""
    return sum(map(_looks_linear, own)) + (_matrices(module) if _multiplies(module) else 0)


def _attends(module: nn.Module, own: list[Any]) -> bool:
    """Whether it seems to be attention."""
    names = _names_in_methods(module)
    return (
        bool(re.search("attention|attn", type(module).__name__, re.IGNORECASE))
        or not names.isdisjoint(_ATTENTION)
        or ("softmax" in names and sum(map(_looks_linear, own)) > 2)
    )


def _experts_implementation(module: nn.Module) -> str | None:
    """What transformers calls in the place of the forward of a mixture's experts."""
    forward: Any = inspect.getattr_static(type(module), "forward", None)
    if getattr(forward, "__globals__", {}).get("__name__") != "transformers.integrations.moe":
        return None
    name = getattr(module.__dict__.get("config"), "_experts_implementation", None)
    return name if isinstance(name, str) and name != "eager" else None


def _calls_activation(module: nn.Module) -> bool:
    """Whether its methods name the function of an activation."""
    names = PARAMETERS.keys() - {"identity", "sigmoid", "tanh"}  # which attention and recurrences have, too
    return not names.isdisjoint(_names_in_methods(module))


def _names_in_methods(module: nn.Module) -> set[str]:
    """The names in its forward, in the methods that are named there, and in what these wrap."""
    return {name for code in _codes(module) for name in code.co_names}


def _codes(module: nn.Module) -> list[types.CodeType]:
    return [inner.__code__ for _, method in methods_of(module) for inner in unwrapped(method)]
