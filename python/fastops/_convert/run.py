"""Layers one after another, in as few ops as compute them.

Which ops these are follows from the kinds of the layers: classes, functions, and whether dropouts are on. It is planned
once for layers of the same kinds, and the plan is kept. Whether a layer does no more than its class says is asked in
each call, mostly by the ops' own entry points; where one says no, those layers are looked at one by one.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.compiler import is_compiling

from .._C import gated_mlp_of_modules, network_of_modules, packed_mlp_of_modules
from .._eager import is_norm_class, is_plain_linear, is_plain_tensor, is_untouched, knows, plain_norm
from .._network import module_of
from .._resolve import CLASSES_OF_ACTIVATIONS, TensorMethod
from .formula import Gate, PackedGate, Scaled
from .inner import flattened, has_formula
from .methods import activation_of_forward, has_numbers
from .ops import (
    LINEAR,
    REFUSALS,
    Segment,
    act_mul,
    activation_of,
    does_nothing,
    gated_mlp,
    gated_of,
    is_conv1d_class,
    is_linear,
    linear_act,
    mlp,
    next_segment,
    number_of,
    packed_mlp,
    packed_segment,
    scaled,
    sequential,
)
from .source import keep

Compute = Callable[[Any, list[Any]], Any]


class _Part(NamedTuple):
    """Layers from ``start`` to ``end``, and what computes them, or has None where they are to be looked at one by one.

    One layer that is called as it is has no ``compute``.
    """

    compute: Compute | None
    start: int
    end: int


class _Form(NamedTuple):
    """Layers of the same classes: the positions of those with more to them than the class, and the plans for that."""

    positions: list[int]
    plans: dict[tuple[Any, ...], tuple[_Part, ...]]


_forms: dict[tuple[type, ...], _Form] = {}


def run(modules: dict[Any, Any], input: Any) -> Any:
    """What the layers, each called with the result of the one before, make of the input."""
    if is_compiling():
        return one_by_one([*flattened(modules).values()], input)
    layers = [*modules.values()]
    classes = tuple(map(type, layers))
    form = _forms.get(classes)
    if form is None:
        form = _Form([i for i, layer in enumerate(layers) if _has_details(layer)], {})
        keep(_forms, classes, form)
    details = tuple([_details(layers[i]) for i in form.positions])
    parts = form.plans.get(details)
    if parts is None:
        inner = flattened(modules)
        if inner is not modules:
            return run(inner, input)
        parts = _plan(layers)
        if parts is None:
            return one_by_one(layers, input)
        keep(form.plans, details, parts)
    for compute, start, end in parts:
        if compute is None:
            input = layers[start](input)
            continue
        chosen = layers[start:end]
        output = compute(input, chosen)
        input = one_by_one(chosen, input) if output is None else output
    return input


def _has_details(layer: Any) -> bool:
    kind = type(layer)
    return kind is nn.Dropout or not isinstance(layer, nn.Module) or "inplace" in layer.__dict__ or has_numbers(kind)


def _details(layer: Any) -> Any:
    """What a plan depends on besides the class: it holds for all layers that do no more than that says."""
    kind = type(layer)
    if kind is nn.Dropout:
        return layer.training and bool(layer.p)
    if kind in _FUNCTIONS:
        return layer
    if kind is partial:
        if layer.func is LINEAR or layer.args:
            return None
        details = (layer.func, *layer.keywords.items())
        try:
            hash(details)
        except TypeError:
            return None
        return details
    if kind is Gate:
        return tuple([(type(part), _details(part)) for part in layer[:3]])
    if kind is types.MethodType:
        found = activation_of(layer)
        return found and (found[0], *found[1])
    if kind is Scaled:
        return number_of(layer)
    if kind is PackedGate:
        halves = layer.halves if layer.halves.is_known() else None  # which may have no hash
        return type(layer.activation), _details(layer.activation), layer.gate_last, halves
    if not isinstance(layer, nn.Module):
        return None
    if kind in _LOOKED_AT:
        return bool(layer.__dict__.get("inplace"))
    found = activation_of_forward(layer) if has_numbers(kind) else None
    return bool(layer.__dict__.get("inplace")), found and (found[0], *found[1])


_FUNCTIONS = {types.FunctionType, types.BuiltinFunctionType, TensorMethod}


def _plan(layers: list[Any]) -> tuple[_Part, ...] | None:
    """The parts; None where a layer is more than others of its kind, for which the same plan would be taken."""
    if not all(map(_is_like_its_kind, layers)):
        return None
    kept = [i for i, layer in enumerate(layers) if not does_nothing(layer)]
    effective = [layers[i] for i in kept]
    parts: list[_Part] = []
    done = position = 0  # how many of the layers, and of what is kept
    while position < len(effective):
        start, segment = kept[position], next_segment(effective, position)
        position = segment.end if segment else position + 1
        if segment is None:
            continue
        end = kept[position - 1] + 1
        compute = _compute_of(segment, layers[start:end])
        if isinstance(compute, _Network):  # it leaves out what drops nothing
            while end < len(layers) and type(layers[end]) is nn.Dropout and does_nothing(layers[end]):
                end += 1
            compute = _Network(layers[start:end])
        parts += [_Part(None, i, i + 1) for i in range(done, start)]
        parts.append(_Part(compute, start, end))
        done = end
    parts += [_Part(None, i, i + 1) for i in range(done, len(layers))]
    if any(isinstance(part.compute, _Network) for part in parts):
        # The code of PyTorch's products is cold between ops that have their own: two kinds cost more than either.
        parts = [_product(layers[part.start], part) for part in parts]
    return tuple(parts)


def _product(layer: Any, part: _Part) -> _Part:
    """A linear layer by itself as an op, too."""
    return part._replace(compute=_Network([layer])) if part.compute is None and is_plain_linear(layer) else part


def _is_like_its_kind(layer: Any) -> bool:
    """Whether nothing is with this layer that is not with others of its kind: hooks, unusual weights or numbers."""
    if isinstance(layer, (Gate, PackedGate)):
        return all(map(_is_like_its_kind, layer[:3] if isinstance(layer, Gate) else layer[:1]))
    if not isinstance(layer, nn.Module):
        is_linear_call = isinstance(layer, partial) and layer.func is LINEAR
        return is_linear(layer) if is_linear_call else type(layer) is not TensorMethod or bool(activation_of(layer))
    if has_formula(layer) or not is_untouched(layer):
        return False
    if is_norm_class(layer):
        shape: Any = layer.normalized_shape
        return len(shape) != 1 or plain_norm(layer, torch.float32) is not None
    return (
        type(layer) in (nn.Dropout, nn.Identity)
        or not knows(type(layer))
        or is_linear(layer)
        or activation_of(layer) is not None
        or gated_of(layer) is not None
    )


def _compute_of(segment: Segment, layers: list[Any]) -> Compute:
    """The quickest way to an op for layers: one that looks at them itself, if there is one."""
    if segment.op in (linear_act, mlp, sequential):
        network = _Network(layers)
        if network.is_known:
            return network
    if segment.op is gated_mlp and _as_module(layers[0].activation) and type(layers[-1]) is nn.Linear:
        return _gated
    if segment.op is packed_mlp:
        is_looked_at = all(type(layer) is nn.Linear for layer in segment.arguments[:2])
        return (_Packed if is_looked_at else _PackedProducts)(layers)
    return _nothing


def _nothing(input: Any, layers: list[Any]) -> None:
    """Where no op looks at the layers itself."""


class _Network:
    """An mlp or a sequential; what no op looks at has modules of torch.nn in its place."""

    def __init__(self, layers: list[Any]) -> None:
        # In the place of functions, which are as they were when it was planned, and of what is to be asked again.
        self.fixed: dict[int, nn.Module] = {}
        self.asked: dict[int, float] = {}  # with the number that what comes to it is multiplied with
        self.is_known = True
        factor = 1.0
        for i, layer in enumerate(layers):
            number = number_of(layer)
            if number is not None:
                self.fixed[i] = _NOTHING
                factor *= number
                continue
            module = _as_module(layer, factor)
            if module is not layer and (isinstance(layer, nn.Module) or type(layer) is TensorMethod or module is None):
                self.asked[i] = factor
            elif module is not layer:
                self.fixed[i] = module
            if module is not _NOTHING:
                factor = 1.0
            self.is_known = self.is_known and module is not None

    def __call__(self, input: Any, layers: list[Any]) -> Any:
        modules: dict[int, Any] = dict(enumerate(layers))
        if self.fixed:
            modules.update(self.fixed)
        for i, factor in self.asked.items():
            modules[i] = _as_module(layers[i], factor)
        try:
            # What PyTorch would drop is for PyTorch.
            return network_of_modules(input, modules, False, False, False)
        except REFUSALS:
            return None


def _gated(input: Any, layers: list[Any]) -> Any:
    gate, activation, up, _ = layers[0]
    if len(layers) > 2 and not all([does_nothing(layer) for layer in layers[1:-1]]):
        return None
    modules = {"gate_proj": gate, "act_fn": _as_module(activation), "up_proj": up, "down_proj": layers[-1]}
    try:
        return gated_mlp_of_modules(input, modules, False)
    except REFUSALS:
        return None


_AS_PLANNED = types.FunctionType, types.BuiltinFunctionType, types.MethodType


class _Packed:
    """A gated_mlp with both halves of one layer."""

    def __init__(self, layers: list[Any]) -> None:
        self.both, self.unit, self.down = [i for i, layer in enumerate(layers) if not does_nothing(layer)]
        unit = layers[self.unit]
        self.activation: nn.Module | None = None  # of a function, which is as it was when it was planned
        if isinstance(unit, PackedGate) and type(unit.activation) in _AS_PLANNED:
            self.activation = _as_module(unit.activation)
        self.is_plain = all(type(layers[i]) in _LOOKED_AT for i in range(len(layers)) if i != self.unit)

    def __call__(self, input: Any, layers: list[Any]) -> Any:
        half = 0
        unit, rest = layers[self.unit], layers[: self.unit] + layers[self.unit + 1 :]
        if isinstance(unit, PackedGate):
            activation, gate_last = self.activation or _as_module(unit.activation), unit.gate_last
            half = unit.halves.size or 0
        elif gated := gated_of(unit):
            activation, gate_last = _module_of(gated[0], tuple(gated[1])), gated[2]
        else:
            return None
        try:
            modules = rest if self.is_plain else [*map(_as_module, rest)]
            return packed_mlp_of_modules(input, modules, activation, gate_last, half)
        except REFUSALS:
            return None


class _PackedProducts(_Packed):
    """The same where no op looks at the layers: of other classes, or calls of functions with weights."""

    def __call__(self, input: Any, layers: list[Any]) -> Any:
        kept = self.both, self.unit, self.down
        between = [layer for i, layer in enumerate(layers) if i not in kept]
        if not is_plain_tensor(input) or not all(map(does_nothing, between)):
            return None
        segment = packed_segment([layers[i] for i in kept], 0)
        if segment is None:
            return None
        try:
            return packed_mlp(input, *segment.arguments)
        except REFUSALS:
            return None


_NOTHING = nn.Dropout(0.0)  # an op leaves it out


def _as_module(layer: Any, factor: float = 1.0) -> nn.Module | None:
    """A module of torch.nn or fastops.nn that is the same as the layer; an op looks at it, for hooks and the like.

    Where the layer is another, which no op looks at, it is looked at here. None where there is no such module, as for
    most of what has to multiply its input with a factor first.
    """
    if factor == 1.0 and (type(layer) in _LOOKED_AT or is_conv1d_class(type(layer))):
        return layer
    if does_nothing(layer):
        return _NOTHING
    found = activation_of(layer)
    if factor != 1.0:
        found = scaled(found, factor)
    return _module_of(found[0], tuple(found[1])) if found else None


_LOOKED_AT = {nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Dropout, *CLASSES_OF_ACTIVATIONS}


@lru_cache(maxsize=1024)
def _module_of(activation: str, params: tuple[float, ...]) -> nn.Module:
    return module_of(activation, params)


def one_by_one(everything: list[Any], input: Any) -> Any:
    """The same, looking at every layer. What does nothing is left out by the ops only: it may make a new tensor."""
    kept = [i for i, layer in enumerate(everything) if not does_nothing(layer)]
    layers = [everything[i] for i in kept]
    done = position = 0  # how many of everything, and of what is kept
    while done < len(everything):
        is_kept = done in kept
        segment = next_segment(layers, position) if is_kept and is_plain_tensor(input) else None
        position = segment.end if segment else position + is_kept
        end = kept[position - 1] + 1 if segment else done + 1
        input = _compute(segment, everything[done:end], input)
        done = end
    return input


def _compute(segment: Segment | None, layers: list[Any], input: Any) -> Any:
    if segment is not None:
        # What act_mul calls may raise such errors, too, and must not be called twice.
        with contextlib.suppress(*REFUSALS) if segment.op is not act_mul else contextlib.nullcontext():
            return segment.op(input, *segment.arguments)
    for layer in layers:
        input = layer(input)
    return input
