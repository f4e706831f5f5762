"""Which layers, one after another, one op computes, and the ops of layers."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from .. import _C, functional
from .._eager import (
    is_autocast_on,
    is_norm_class,
    is_plain_eager,
    is_plain_linear,
    is_plain_or_none,
    is_plain_tensor,
    is_untouched,
    know,
    knows,
    plain_norm,
    stored_tensor,
)
from .._network import plan_for, steps_of
from .._resolve import find
from .classes import known_class
from .formula import Gate, PackedGate, Scaled
from .methods import activation_of_forward, activation_of_method

IDENTITY: tuple[str, list[float]] = ("identity", [])
# What the ops raise for arguments that they refuse. PyTorch takes some of them, such as a bias of one element, and has
# its own errors for others.
REFUSALS = (ValueError, TypeError)
DROPOUT, LINEAR = nn.functional.dropout, nn.functional.linear  # others may put something else in their place


class Segment(NamedTuple):
    """An op on a tensor and ``arguments``, for the layers up to the one at ``end``."""

    op: Callable[..., Tensor]
    arguments: tuple[Any, ...]
    end: int


def next_segment(layers: list[Any], start: int) -> Segment | None:
    """As many layers as one op computes, from the one at ``start``; None where that one is to be called."""
    layer = layers[start]
    if isinstance(layer, Gate):
        return _gate(layers, start)
    if isinstance(layer, PackedGate):
        is_chunk = layer.halves.kind == "chunk" and layer.halves.is_known()
        activation = activation_of(layer.activation) if is_chunk and not _is_inplace(layer.activation) else None
        return activation and Segment(functional.gated_act, (*activation, layer.gate_last), start + 1)

    gated = gated_of(layer)
    if gated is not None:
        return Segment(functional.gated_act, gated, start + 1)
    packed = packed_segment(layers, start)
    if packed is not None:
        return packed
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
        activation, next_end = _activation_at(layers, end + 1)
        if activation and next_end < len(layers) and _is_inplace(layers[next_end]):
            # The op may keep its result for the backward pass where PyTorch keeps the input.
            activation, next_end = None, end + 1
        linears.append(layers[end])
        activations.append(activation or IDENTITY)
        end = next_end
    if not activations or activations[0] == IDENTITY:
        return None
    if len(activations) == 1:
        return Segment(linear_act, (linears[0], *activations[0]), end)
    return Segment(mlp, (linears, activations[0], activations[-1]), end)


def _activation_at(layers: list[Any], start: int) -> tuple[tuple[str, list[float]] | None, int]:
    """The activation that layers begin with, if it is one, and where it ends."""
    layer = layers[start] if start < len(layers) else None
    factor = number_of(layer)
    if factor is not None and start + 1 < len(layers):
        activation = scaled(activation_of(layers[start + 1]), factor)
        return activation, start + 2 if activation else start
    activation = None if layer is None else activation_of(layer)
    return activation, start + 1 if activation else start


def number_of(layer: Any) -> float | None:
    """The number that a step multiplies with, if that is all that it does."""
    return layer.factor if type(layer) is Scaled and type(layer.factor) in (int, float) else None


def scaled(activation: tuple[str, list[float]] | None, factor: float) -> tuple[str, list[float]] | None:
    """The activation of what is multiplied with a number before; None where fastops has no such."""
    match activation:
        case "sin", params:
            return "sin", [factor * (params[0] if params else 1.0)]
    return None


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


def packed_segment(layers: list[Any], start: int) -> Segment | None:
    """A layer that has both halves of a gated unit, the unit, and the layer after it."""
    if start + 2 >= len(layers):
        return None
    both, unit, down = layers[start : start + 3]
    if isinstance(unit, PackedGate):
        # In place, it writes into the layer's result, which nobody sees; into what chunk and split give, an error.
        may_write = unit.halves.kind == "slices" or not _is_inplace(unit.activation)
        activation = activation_of(unit.activation) if may_write else None
        gated = activation and (*activation, unit.gate_last)
    else:
        gated = gated_of(unit)
    if not gated or not is_linear(both) or not is_linear(down):
        return None
    if isinstance(unit, PackedGate):
        size = unit.halves.size
        if not unit.halves.is_known() or (size is not None and _out_features(both) != 2 * size):
            return None
    return Segment(packed_mlp, (both, down, *gated), start + 3)


# The ops of layers, by the quickest way to them.


def linear_act(input: Tensor, linear: Any, activation: str, params: list[float]) -> Tensor:
    return functional.linear_act(input, *weight_and_bias(linear), activation, params)


def mlp(input: Tensor, linears: list[Any], hidden: tuple[str, list[float]], last: tuple[str, list[float]]) -> Tensor:
    (activation, params), (output_activation, output_params) = hidden, last
    if is_plain_eager(input) and not torch.jit.is_tracing():
        layers = dict(enumerate(linears))
        output = _C.mlp_of_linears(input, layers, activation, output_activation, params, output_params, False)
        if output is not None:
            return output
    weights, biases = zip(*map(weight_and_bias, linears), strict=True)
    return functional.mlp(input, list(weights), list(biases), activation, output_activation, params, output_params)


def sequential(input: Tensor, layers: list[Any]) -> Tensor:
    plan = None if torch.jit.is_tracing() else plan_for(layers, input)
    if plan is None:
        raise ValueError("the layers are to be called one by one")  # as what the op refuses
    return steps_of(layers, plan)(input)


def gated_mlp(input: Tensor, gate: Any, up: Any, down: Any, activation: str, params: list[float]) -> Tensor:
    if is_plain_eager(input):
        output = _C.gated_mlp_of_linears(input, gate, up, down, activation, params, False)
        if output is not None:
            return output
    (gate_weight, gate_bias), (up_weight, up_bias), (down_weight, down_bias) = map(weight_and_bias, (gate, up, down))
    weights, biases = (gate_weight, up_weight, down_weight), (gate_bias, up_bias, down_bias)
    return functional.gated_mlp(input, *weights, *biases, activation, params)


def packed_mlp(input: Tensor, both: Any, down: Any, activation: str, params: list[float], gate_last: bool) -> Tensor:
    weight, bias = weight_and_bias(both)
    weights, biases = weight.chunk(2), (None, None) if bias is None else bias.chunk(2)
    (gate_weight, up_weight), (gate_bias, up_bias) = (weights[::-1], biases[::-1]) if gate_last else (weights, biases)
    down_weight, down_bias = weight_and_bias(down)
    projections = gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias
    if is_plain_eager(input):
        return torch.ops.fastops.gated_mlp.default(input, *projections, activation, params, False)
    return functional.gated_mlp(input, *projections, activation, params)


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


def name_of(op: Callable[..., Any]) -> str:
    """The name of the op of fastops that computes it."""
    return "gated_mlp" if op is packed_mlp else op.__name__


def is_linear(layer: Any) -> bool:
    """Whether calling the layer does nothing but multiply with a weight that the ops take, and add a bias."""
    if is_conv1d_class(type(layer)):
        own_forward = type(layer).forward.__globals__["__name__"] == "transformers.pytorch_utils"
        if not (knows(type(layer)) or is_compiling()):
            know(type(layer), transposed=True)
        is_plain = is_plain_tensor(stored_tensor(layer, "weight")) and is_plain_tensor(stored_tensor(layer, "bias"))
        return own_forward and is_untouched(layer) and is_plain
    if isinstance(layer, functools.partial):
        values = layer.keywords
        is_product = (
            layer.func is LINEAR and not layer.args and values.keys() <= {"weight", "bias"} and "weight" in values
        )
        return is_product and all(map(is_plain_or_none, values.values()))
    if type(layer) is nn.Linear or not isinstance(layer, nn.Module):
        return is_plain_linear(layer)
    known = known_class(type(layer))
    return known.is_linear and is_untouched(layer) and _has_plain_parameters(layer, known.adds_bias)


def _has_plain_parameters(layer: nn.Module, adds_bias: bool) -> bool:
    weight, bias = stored_tensor(layer, "weight"), stored_tensor(layer, "bias")
    if not is_plain_tensor(weight):
        return False
    is_cast = adds_bias and is_autocast_on(weight.device)  # the product, but not the sum
    return bias is None or (is_plain_tensor(bias) and not is_cast)


def weight_and_bias(layer: Any) -> tuple[Tensor, Tensor | None]:
    """Weight, as that of a ``torch.nn.Linear``, and bias."""
    if isinstance(layer, functools.partial):
        return layer.keywords["weight"], layer.keywords.get("bias")
    return (layer.weight.t() if is_conv1d_class(type(layer)) else layer.weight), layer.bias


def _out_features(layer: Any) -> int:
    """Those of a linear layer, also while torch.fx records and the attribute is something else."""
    if isinstance(layer, functools.partial):
        return layer.keywords["weight"].size(0)
    return stored_tensor(layer, "weight").size(1 if is_conv1d_class(type(layer)) else 0)


def is_conv1d_class(kind: Any) -> bool:
    """Whether it is the class of transformers that is a Linear with its weight transposed."""
    return kind is not nn.Linear and (kind.__module__, kind.__qualname__) == ("transformers.pytorch_utils", "Conv1D")


def activation_of(layer: Any) -> tuple[str, list[float]] | None:
    """Name and parameters of an activation that fastops has, where calling the layer does no more."""
    if isinstance(layer, nn.Module) and not is_untouched(layer):
        return None
    if type(layer) is types.MethodType:
        return activation_of_method(layer)
    found = find(layer)
    if found or not isinstance(layer, nn.Module):
        return found
    return known_class(type(layer)).activation or activation_of_forward(layer)


def gated_of(layer: Any) -> tuple[str, list[float], bool] | None:
    """Of a module that multiplies one half of its input with an activation of the other, as ``gated_act`` takes it."""
    if not isinstance(layer, nn.Module) or not known_class(type(layer)).gated or not is_untouched(layer):
        return None
    return known_class(type(layer)).gated


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
    if kind is Scaled:
        return number_of(layer) == 1
    return kind is nn.Identity and is_untouched(layer)


def drops(layer: Any) -> bool:
    """Whether it is a dropout that is on in training."""
    if type(layer) is functools.partial:
        return layer.func is DROPOUT and not layer.args and bool(layer.keywords.get("p", 0.5))
    return type(layer) is nn.Dropout and bool(layer.p)


def saves_little(segment: Segment) -> bool:
    """Whether an op is one product with a ReLU: what is left, in training, of two with a dropout between.

    Between products of PyTorch, as those of attention, it costs more than it saves: the code of either pushes that of
    the other out of the caches.
    """
    return segment.op is linear_act and segment.arguments[1] == "relu"
