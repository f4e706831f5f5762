"""Classes whose ``forward`` computes a formula with fused ops, for modules of any class.

What is fused is decided anew in every call, from the layers that the module has then: somebody may have replaced one by
an adapter, hooked or pruned it, or switched to training with dropout since.
"""

from __future__ import annotations

import abc
import contextlib
import copyreg
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from .. import _C, functional
from .._eager import is_norm_class, is_plain_eager, is_plain_linear, is_plain_tensor, is_untouched, plain_norm
from .._network import as_steps
from .._resolve import find
from .formula import Formula, Gate, PackedGate, Step, Unreadable
from .lookup import lookup
from .reader import Length
from .source import read_class

IDENTITY: tuple[str, list[float]] = ("identity", [])
# What the ops raise for arguments that they refuse. PyTorch takes some of them, such as a bias of one element, and has
# its own errors for others.
REFUSALS = (ValueError, TypeError)
DROPOUT = nn.functional.dropout  # others may put something else in its place


class Segment(NamedTuple):
    """An op on a tensor and ``arguments``, for the layers up to the one at ``end``."""

    op: Callable[..., Tensor]
    arguments: tuple[Any, ...]
    end: int


class FusedModule:
    """Mixed into the class of a converted module: all of it remains, but for its ``forward``."""

    _fastops_original: Any
    _fastops_formula: Formula | None
    _fastops_forward: Callable[..., Any]  # the original's, when it was read

    def __init_subclass__(cls, **arguments: Any) -> None:
        # A class that this package makes is nobody else's concern: of registries, or of checks of its name.
        if "_fastops_original" not in cls.__dict__:
            super().__init_subclass__(**arguments)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class cannot be imported: it is made again.
        reduced: Any = super().__reduce_ex__(max(protocol, 2))
        make, arguments, *state = reduced
        original = self._fastops_original
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]
            make, arguments = _new, (original, self._fastops_formula, arguments[1:], {})
        elif make is copyreg.__newobj_ex__:  # type: ignore[attr-defined]
            make, arguments = _new, (original, self._fastops_formula, *arguments[1:])
        elif make is type(self):
            make = original
        return (make, arguments, *state)


def fuse(module: nn.Module, formula: Formula | None) -> None:
    """Lets a module compute its formula with fused ops."""
    # Past a __setattr__ of the module's own.
    object.__setattr__(module, "__class__", _fused_class(type(module), formula))


def _fused_class(original: Any, formula: Formula | None) -> type[nn.Module]:
    original_forward = original.forward
    for kind in type.__subclasses__(original):  # it may exist already
        known = kind.__dict__
        if known.get("_fastops_forward") is original_forward and known.get("_fastops_formula", ()) == formula:
            return kind
    metaclass = type(original)
    if metaclass.__init__ is not type.__init__ or metaclass.__new__ not in (type.__new__, abc.ABCMeta.__new__):
        raise Unreadable(f"its class has a metaclass of its own, {metaclass.__qualname__}")
    code = original_forward.__code__
    layers = lookup(formula, original_forward) if formula else _sequential_layers

    @functools.wraps(original_forward)  # TorchScript compiles what is wrapped, and its signature is shown
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Other libraries replace the forward of classes, too, or its code.
        as_read = original.forward is original_forward and original_forward.__code__ is code
        if as_read and len(args) == 1 and not kwargs and _holds(self, formula):
            current = layers(self)
            if formula is None or not formula.cast or _is_of_one_dtype(current.values(), args[0]):
                return _run(current, args[0])
        return original.forward(self, *args, **kwargs)

    body = {
        "__doc__": original.__doc__,
        "_fastops_formula": formula,
        "_fastops_forward": original_forward,
        "_fastops_original": original,
        "forward": forward,
    }
    make = abc.ABCMeta.__new__ if issubclass(metaclass, abc.ABCMeta) else type.__new__  # past its __call__
    return make(metaclass, f"Fused{original.__name__}", (FusedModule, original), body)


def _new(original: Any, formula: Formula | None, arguments: Any, keywords: Any) -> nn.Module:
    """A converted module without state: for copies, and for pickles, where the class may compute something else now."""
    module: nn.Module = original.__new__(original, *arguments, **keywords)
    with contextlib.suppress(Exception):
        known: dict[str, Any] = {}
        if formula is not None:
            known = dict.fromkeys(formula.present, object()) | dict(formula.attributes)
            known |= {name: Length(number) for name, number in formula.lengths}
        if read_class(original, known.get) == formula:
            fuse(module, formula)
    return module


def steps_of(module: nn.Module, formula: Formula | None) -> Sequence[Step]:
    """What the module does to its input, one after another."""
    return tuple(module._modules) if formula is None else formula.steps


def layers_of(module: nn.Module, formula: Formula | None) -> list[Any]:
    """What the steps call now.

    Raises:
        Unreadable: a function is not there.
    """
    if formula is None:
        return [*_sequential_layers(module).values()]
    forward: Any = inspect.getattr_static(type(module), "forward")
    try:
        return [*lookup(formula, forward)(module).values()]
    except (NameError, AttributeError) as error:
        raise Unreadable(f"its forward needs what it does not have: {error}") from None


def _sequential_layers(module: nn.Module) -> dict[str, Any]:
    return module._modules


def _holds(module: nn.Module, formula: Formula | None) -> bool:
    """Whether the attributes are those that the formula was read with."""
    if formula is not None:
        for name, value in formula.attributes:
            now = getattr(module, name)
            if type(now) is not type(value) or now != value:
                return False
        for name, length in formula.lengths:
            modules = getattr(module, name)
            if type(modules) is not nn.ModuleList or len(modules) != length:
                return False
        return all(getattr(module, name) is not None for name in formula.present)
    return True


def _is_of_one_dtype(layers: Iterable[Any], input: Any) -> bool:
    """Whether nothing changes the input's dtype on the way through the layers."""
    if not isinstance(input, Tensor) or torch.is_autocast_enabled(input.device.type):
        return False
    for step in layers:
        for layer in step[:3] if isinstance(step, Gate) else (step[0],) if isinstance(step, PackedGate) else (step,):
            if is_linear(layer):
                if layer.weight.dtype != input.dtype:
                    return False
            elif activation_of(layer) is None and not does_nothing(layer, training=False):
                return False
    return True


def _run(modules: dict[Any, Any], input: Any) -> Any:
    if not is_compiling():
        with contextlib.suppress(*REFUSALS):
            # Where one op computes them all, this is the quickest way to it. What PyTorch would drop is for PyTorch.
            output = _C.network_of_modules(input, modules, residual=False, checkpoint=False, may_drop=False)
            if output is not None:
                return output
    everything = list(modules.values())
    kept = [i for i, layer in enumerate(everything) if not does_nothing(layer)]
    layers = [everything[i] for i in kept]
    done = position = 0  # how many of everything, and of what is kept
    while done < len(everything):
        if not is_plain_tensor(input):  # which may want to see even what does nothing
            position += done in kept
            input = _call(everything[done], input)
            done += 1
            continue
        if position == len(layers):
            break
        segment = next_segment(layers, position)
        end = segment.end if segment else position + 1
        input = _compute(segment, layers[position:end], input)
        position, done = end, kept[end - 1] + 1
    return input


def _compute(segment: Segment | None, layers: list[Any], input: Any) -> Any:
    if segment is not None:
        # What act_mul calls may raise such errors, too, and must not be called twice.
        with contextlib.suppress(*REFUSALS) if segment.op is not act_mul else contextlib.nullcontext():
            return segment.op(input, *segment.arguments)
    for layer in layers:
        input = _call(layer, input)
    return input


def _call(layer: Any, input: Any) -> Any:
    """As the original forward does."""
    if isinstance(layer, Gate):
        gate, activation, up, before_up = layer
        other = up(input) if before_up == 0 else None
        gated = gate(input)
        other = up(input) if before_up == 1 else other
        gated = activation(gated)
        other = up(input) if before_up == 2 else other
        return gated * other
    if isinstance(layer, PackedGate):
        first, second = input.chunk(2, dim=-1)
        return first * layer.activation(second) if layer.gate_last else layer.activation(first) * second
    return layer(input)


def next_segment(layers: list[Any], start: int) -> Segment | None:
    """As many layers as one op computes, from the one at ``start``; None where that one is to be called."""
    layer = layers[start]
    if isinstance(layer, Gate):
        return _gate(layers, start)
    if isinstance(layer, PackedGate):
        activation = None if _is_inplace(layer.activation) else activation_of(layer.activation)
        return activation and Segment(functional.gated_act, (*activation, layer.gate_last), start + 1)

    with_norms = _with_norms(layers, start)
    if with_norms is not None:
        return with_norms
    linears: list[Any] = []
    activations: list[tuple[str, list[float]]] = []
    end = start
    # The hidden layers of an mlp have one activation; the last layer may have another or none.
    while end < len(layers) and (not activations or activations[-1] == activations[0] != IDENTITY):
        if not is_linear(layers[end]):
            break
        activation = activation_of(layers[end + 1]) if end + 1 < len(layers) else None
        if activation and end + 2 < len(layers) and _is_inplace(layers[end + 2]):
            activation = None  # the op may keep its result for the backward pass where PyTorch keeps the input
        linears.append(layers[end])
        activations.append(activation or IDENTITY)
        end += 1 if activation is None else 2
    if not activations or activations[0] == IDENTITY:
        return None
    if len(activations) == 1:
        return Segment(linear_act, (linears[0], *activations[0]), end)
    return Segment(mlp, (linears, activations[0], activations[-1]), end)


def _with_norms(layers: list[Any], start: int) -> Segment | None:
    """Linear layers, norms and activations from the one at ``start``, where all of these are there."""
    end, has_linear, has_norm, has_activation = start, False, False, False
    while end < len(layers):
        layer = layers[end]
        is_norm = plain_norm(layer, getattr(layer.weight, "dtype", None)) if is_norm_class(layer) else None
        if is_norm:
            has_norm = True
        elif is_plain_linear(layer):
            has_linear = True
        elif end == start or not isinstance(layer, nn.Module) or activation_of(layer) is None:
            break
        else:
            has_activation = True
        end += 1
    return Segment(sequential, (layers[start:end],), end) if has_linear and has_norm and has_activation else None


def _gate(layers: list[Any], start: int) -> Segment | None:
    gate, gate_activation, up, _ = layers[start]
    activation = activation_of(gate_activation)
    if activation is None or (_is_inplace(gate_activation) and not is_linear(gate)):
        return None
    projections = [gate, up, *layers[start + 1 : start + 2]]
    if len(projections) < 3 or not all(map(is_linear, projections)):
        return Segment(act_mul, (layers[start], *activation), start + 1)
    return Segment(gated_mlp, (*projections, *activation), start + 2)


# The ops of layers, by the quickest way to them.


def linear_act(input: Tensor, linear: Any, activation: str, params: list[float]) -> Tensor:
    weight, bias = _parameters(linear)
    op = _C.linear_act if is_plain_eager(input) else functional.linear_act
    return op(input, weight, bias, activation, params)


def mlp(input: Tensor, linears: list[Any], hidden: tuple[str, list[float]], last: tuple[str, list[float]]) -> Tensor:
    (activation, params), (output_activation, output_params) = hidden, last
    if is_plain_eager(input) and not torch.jit.is_tracing():
        layers = dict(enumerate(linears))
        output = _C.mlp_of_linears(input, layers, activation, output_activation, params, output_params, False)
        if output is not None:
            return output
    weights, biases = zip(*map(_parameters, linears), strict=True)
    return functional.mlp(input, list(weights), list(biases), activation, output_activation, params, output_params)


def sequential(input: Tensor, layers: list[Any]) -> Tensor:
    steps = None if torch.jit.is_tracing() else as_steps(layers, input)
    if steps is None:
        raise ValueError("the layers are to be called one by one")  # as what the op refuses
    return steps(input)


def gated_mlp(input: Tensor, gate: Any, up: Any, down: Any, activation: str, params: list[float]) -> Tensor:
    if is_plain_eager(input):
        output = _C.gated_mlp_of_linears(input, gate, up, down, activation, params, False)
        if output is not None:
            return output
    (gate_weight, gate_bias), (up_weight, up_bias), (down_weight, down_bias) = map(_parameters, (gate, up, down))
    weights, biases = (gate_weight, up_weight, down_weight), (gate_bias, up_bias, down_bias)
    return functional.gated_mlp(input, *weights, *biases, activation, params)


def act_mul(input: Tensor, layers: Gate, activation: str, params: list[float]) -> Any:
    other: Any = layers.up(input) if layers.before_up == 0 else None
    gate = layers.gate(input)
    if layers.before_up == 2 and not is_plain_tensor(gate):  # which may want to see the activation first
        return layers.activation(gate) * layers.up(input)
    other = layers.up(input) if layers.before_up > 0 else other
    with contextlib.suppress(*REFUSALS):
        if is_plain_tensor(gate) and is_plain_tensor(other):
            return functional.act_mul(gate, other, activation, params)
    return layers.activation(gate) * other


def is_linear(layer: Any) -> bool:
    """Whether calling the layer does nothing but multiply with a weight that the ops take, and add a bias."""
    if is_conv1d_class(type(layer)):
        own_forward = type(layer).forward.__globals__["__name__"] == "transformers.pytorch_utils"
        return own_forward and is_untouched(layer) and all(map(is_plain_tensor, layer._parameters.values()))
    return is_plain_linear(layer)


def _parameters(layer: Any) -> tuple[Tensor, Tensor | None]:
    """Weight, as that of a ``torch.nn.Linear``, and bias."""
    return (layer.weight.t() if is_conv1d_class(type(layer)) else layer.weight), layer.bias


def is_conv1d_class(kind: Any) -> bool:
    """Whether it is the class of transformers that is a Linear with its weight transposed."""
    return kind is not nn.Linear and (kind.__module__, kind.__qualname__) == ("transformers.pytorch_utils", "Conv1D")


def activation_of(layer: Any) -> tuple[str, list[float]] | None:
    """Name and parameters of an activation that fastops has, where calling the layer does no more."""
    if isinstance(layer, nn.Module) and not is_untouched(layer):
        return None
    return find(layer)


def _is_inplace(layer: Any) -> bool:
    if isinstance(layer, functools.partial):
        return bool(layer.keywords.get("inplace"))
    return isinstance(layer, nn.Module) and bool(layer.__dict__.get("inplace"))


def does_nothing(layer: Any, training: bool = True) -> bool:
    """Whether it gives what it gets: an identity, or a dropout that is off, as all are without ``training``."""
    kind = type(layer)
    if kind is nn.Dropout:
        return not (training and layer.training and layer.p) and is_untouched(layer)
    if kind is functools.partial and layer.func is DROPOUT and not layer.args:
        return not (training and layer.keywords.get("training", True) and layer.keywords.get("p", 0.5))
    return kind is nn.Identity and is_untouched(layer)
