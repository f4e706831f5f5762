"""Classes whose ``forward`` computes a formula with fused ops, for modules of any class.

What is fused is decided anew in every call, from the layers that the module has then: somebody may have replaced one by
an adapter, hooked or pruned it, or switched to training with dropout since.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .. import _C, functional
from .._eager import is_plain_eager, is_untouched
from .._resolve import find
from .formula import Attribute, Formula, Gate, PackedGate, Step, Unreadable, read

IDENTITY: tuple[str, list[float]] = ("identity", [])
DTYPES = {torch.float32, torch.float64, torch.bfloat16, torch.float16}


class Segment(NamedTuple):
    """An op on a tensor and ``arguments``, for the layers up to the one at ``end``."""

    op: Callable[..., Tensor]
    arguments: tuple[Any, ...]
    end: int


class FusedModule:
    """Mixed into the class of a converted module: all of it remains, but for its ``forward``."""

    _fastops_original: type[nn.Module]
    _fastops_formula: Formula | None

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class cannot be imported: it is made again.
        reduced: Any = super().__reduce_ex__(protocol)
        make, arguments, *state = reduced
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]
            make, arguments = _new, (self._fastops_original, self._fastops_formula)
        return (make, arguments, *state)


def fuse(module: nn.Module, formula: Formula | None) -> None:
    """Lets a module compute its formula with fused ops."""
    kind: Any = type(module)
    module.__class__ = _fused_class(kind, kind.forward, formula)


@functools.cache
def _fused_class(original: Any, original_forward: Callable[..., Any], formula: Formula | None) -> type[nn.Module]:
    @functools.wraps(original_forward)  # TorchScript compiles what is wrapped, and its signature is shown
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Other libraries replace the forward of classes, too.
        if original.forward is original_forward and len(args) == 1 and not kwargs:
            layers = _layers_if_formula_holds(self, formula, args[0])
            if layers is not None:
                return _run(layers, args[0])
        return original.forward(self, *args, **kwargs)

    body = {
        "__doc__": original.__doc__,
        "_fastops_formula": formula,
        "_fastops_original": original,
        "forward": forward,
    }
    return type(original)(f"Fused{original.__name__}", (FusedModule, original), body)


def _new(original: Any, formula: Formula | None) -> nn.Module:
    """A converted module without state: for copies, and for pickles, where the class may compute something else now."""
    module: nn.Module = original.__new__(original)
    if formula is not None:
        module.__dict__.update(formula.attributes)
    with contextlib.suppress(Unreadable):
        if read(module) == formula:
            fuse(module, formula)
    return module


def steps_of(module: nn.Module, formula: Formula | None) -> Sequence[Step]:
    """What the module does to its input, one after another."""
    return tuple(module._modules) if formula is None else formula.steps


def layers_of(module: nn.Module, formula: Formula | None) -> list[Any]:
    """What the steps call now."""
    if formula is None:
        return list(module._modules.values())
    return [_layer(module, step) for step in formula.steps]


def _layer(module: nn.Module, step: Step) -> Any:
    if isinstance(step, str):
        return getattr(module, step)
    if isinstance(step, Gate):
        return Gate(*[_layer(module, part) for part in step])
    if isinstance(step, PackedGate):
        return PackedGate(_layer(module, step.activation), step.gate_last)
    if not step.keywords:
        return step.function
    keywords = {
        key: getattr(module, value.name) if isinstance(value, Attribute) else value for key, value in step.keywords
    }
    return functools.partial(step.function, **keywords)


def _layers_if_formula_holds(module: nn.Module, formula: Formula | None, input: Any) -> list[Any] | None:
    layers = layers_of(module, formula)
    if formula is not None:
        for name, value in formula.attributes:
            if getattr(module, name) != value:
                return None
        if formula.cast and not _is_of_one_dtype(layers, input):
            return None
    return layers


def _is_of_one_dtype(layers: list[Any], input: Any) -> bool:
    """Whether nothing changes the input's dtype on the way through the layers."""
    if not isinstance(input, Tensor) or torch.is_autocast_enabled(input.device.type):
        return False
    for layer in itertools.chain(*[step if isinstance(step, Gate) else (step,) for step in layers]):
        has_parameters = isinstance(layer, nn.Module) and (layer._parameters or layer._modules)
        if has_parameters and not (is_linear(layer) and layer.weight.dtype == input.dtype):
            return False
    return True


def _run(layers: list[Any], input: Any) -> Any:
    layers = [layer for layer in layers if not does_nothing(layer)]
    position = 0
    while position < len(layers):
        segment = next_segment(layers, position) if _fits(input) else None
        if segment is None:
            input = _call(layers[position], input)
            position += 1
        else:
            op, arguments, position = segment
            input = op(input, *arguments)
    return input


def _call(layer: Any, input: Any) -> Any:
    """As the original forward does."""
    if isinstance(layer, Gate):
        gate, activation, up = layer
        return activation(gate(input)) * up(input)
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
        activation = activation_of(layer.activation)
        return activation and Segment(functional.gated_act, (*activation, layer.gate_last), start + 1)

    linears: list[Any] = []
    activations: list[tuple[str, list[float]]] = []
    end = start
    # The hidden layers of an mlp have one activation; the last layer may have another or none.
    while end < len(layers) and (not activations or activations[-1] == activations[0] != IDENTITY):
        if not is_linear(layers[end]):
            break
        activation = activation_of(layers[end + 1]) if end + 1 < len(layers) else None
        linears.append(layers[end])
        activations.append(activation or IDENTITY)
        end += 1 if activation is None else 2
    if not activations or activations[0] == IDENTITY:
        return None
    if len(activations) == 1:
        return Segment(linear_act, (linears[0], *activations[0]), end)
    return Segment(mlp, (linears, activations[0], activations[-1]), end)


def _gate(layers: list[Any], start: int) -> Segment | None:
    gate, gate_activation, up = layers[start]
    activation = activation_of(gate_activation)
    if activation is None:
        return None
    projections = [gate, up, *layers[start + 1 : start + 2]]
    if len(projections) < 3 or not all(map(is_linear, projections)):
        return Segment(act_mul, (gate, up, *activation), start + 1)
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


def gated_mlp(input: Tensor, gate: Any, up: Any, down: Any, activation: str, params: list[float]) -> Tensor:
    if is_plain_eager(input):
        output = _C.gated_mlp_of_linears(input, gate, up, down, activation, params, False)
        if output is not None:
            return output
    (gate_weight, gate_bias), (up_weight, up_bias), (down_weight, down_bias) = map(_parameters, (gate, up, down))
    weights, biases = (gate_weight, up_weight, down_weight), (gate_bias, up_bias, down_bias)
    return functional.gated_mlp(input, *weights, *biases, activation, params)


def act_mul(input: Tensor, gate: Any, up: Any, activation: str, params: list[float]) -> Tensor:
    return functional.act_mul(gate(input), up(input), activation, params)


def _fits(tensor: Any) -> bool:
    """Whether the ops take it."""
    return (
        isinstance(tensor, Tensor)
        and tensor.dtype in DTYPES
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and (type(tensor) in (Tensor, nn.Parameter) or not is_traceable_wrapper_subclass(tensor))
    )


def is_linear(layer: Any) -> bool:
    """Whether calling the layer does nothing but multiply with a weight that the ops take, and add a bias."""
    if not isinstance(layer, nn.Module) or not (type(layer).forward is nn.Linear.forward or is_conv1d(layer)):
        return False
    weight = layer._parameters.get("weight")  # found sooner than the attribute, but it may be a computed one
    return is_untouched(layer) and _fits(layer.weight if weight is None else weight)


def _parameters(layer: Any) -> tuple[Tensor, Tensor | None]:
    """Weight, as that of a ``torch.nn.Linear``, and bias."""
    return (layer.weight.t() if is_conv1d(layer) else layer.weight), layer.bias


def is_conv1d(layer: Any) -> bool:
    """Whether it is the layer of transformers that is a Linear with its weight transposed."""
    kind = type(layer)
    return kind is not nn.Linear and (kind.__module__, kind.__qualname__) == ("transformers.pytorch_utils", "Conv1D")


def activation_of(layer: Any) -> tuple[str, list[float]] | None:
    """Name and parameters of an activation that fastops has, where calling the layer does no more."""
    if isinstance(layer, nn.Module) and not is_untouched(layer):
        return None
    return find(layer)


def does_nothing(layer: Any, training: bool = True) -> bool:
    """Whether it gives what it gets: an identity, or a dropout that is off, as all are without ``training``."""
    kind = type(layer)
    if kind is nn.Dropout:
        return not (training and layer.training and layer.p) and is_untouched(layer)
    if kind is functools.partial and layer.func is nn.functional.dropout:
        return not (training and layer.keywords.get("training", True) and layer.keywords.get("p", 0.5))
    return kind is nn.Identity and is_untouched(layer)
