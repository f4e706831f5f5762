"""How many floating-point operations the ops with matrix products take, for torch.utils.flop_counter.

As PyTorch counts: 2 m n k for a product of [m, k] and [k, n]; nothing for biases, activations and other elementwise
work. The counts are those of the equivalent torch.nn modules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from ._steps import linears

Shape = Sequence[int]

_ops = torch.ops.fastops


def _product(input_shape: Shape, weight_shape: Shape) -> int:
    """input @ weight.T, or either of its gradients."""
    return 2 * math.prod(input_shape[:-1]) * math.prod(weight_shape[-2:])  # each row meets one member of an ensemble


@register_flop_formula([_ops.mlp, _ops.mlp_forward])
def _mlp(input_shape: Shape, weight_shapes: list[Shape], *args: Any, **kwargs: Any) -> int:
    return sum(_product(input_shape, weight) for weight in weight_shapes)


@register_flop_formula([_ops.mlp_jet, _ops.mlp_jet_forward])
def _mlp_jet(input_shape: Shape, directions: int, weight_shapes: list[Shape], *args: Any, **kwargs: Any) -> int:
    return _mlp(input_shape, weight_shapes)


@register_flop_formula(_ops.linear_act)
def _linear_act(input_shape: Shape, weight_shape: Shape, *args: Any, **kwargs: Any) -> int:
    return _product(input_shape, weight_shape)


@register_flop_formula(_ops.mlp_backward)
def _mlp_backward(
    grad_output_shape: Shape, input_shape: Shape, weight_shapes: list[Shape], *args: Any, **kwargs: Any
) -> int:
    return _of_mlp_gradients(input_shape, weight_shapes, args[7])


@register_flop_formula(_ops.mlp_jet_backward)
def _mlp_jet_backward(
    grad_output_shape: Shape,
    input_shape: Shape,
    directions: int,
    weight_shapes: list[Shape],
    *args: Any,
    **kwargs: Any,
) -> int:
    return _of_mlp_gradients(input_shape, weight_shapes, args[-1])


def _of_mlp_gradients(input_shape: Shape, weight_shapes: list[Shape], output_mask: Sequence[bool]) -> int:
    """output_mask: input, weights[0], biases[0], weights[1], ..."""
    flops = 0
    for i, weight in enumerate(weight_shapes):
        below = any(output_mask[: 1 + 2 * i])  # whether a gradient is wanted that comes through this layer's input
        flops += _product(input_shape, weight) * (below + output_mask[1 + 2 * i])
    return flops


@register_flop_formula([_ops.gated_mlp, _ops.gated_mlp_forward])
def _gated_mlp(input_shape: Shape, gate: Shape, up: Shape, down: Shape, *args: Any, **kwargs: Any) -> int:
    return sum(_product(input_shape, weight) for weight in (gate, up, down))


@register_flop_formula(_ops.gated_mlp_backward)
def _gated_mlp_backward(
    grad_output_shape: Shape, input_shape: Shape, gate: Shape, up: Shape, down: Shape, *args: Any, **kwargs: Any
) -> int:
    input_wanted, gate_wanted, up_wanted, down_wanted, gate_bias_wanted, up_bias_wanted, _ = args[-1]
    through_gate = input_wanted or gate_wanted or gate_bias_wanted
    through_up = input_wanted or up_wanted or up_bias_wanted
    return (
        _product(input_shape, gate) * (input_wanted + gate_wanted)
        + _product(input_shape, up) * (input_wanted + up_wanted)
        + _product(input_shape, down) * ((through_gate or through_up) + down_wanted)
    )


@register_flop_formula([_ops.sequential, _ops.sequential_forward])
def _sequential(input_shape: Shape, parameter_shapes: list[Shape], steps: str, *args: Any, **kwargs: Any) -> int:
    return sum(_product(input_shape, parameter_shapes[place]) for place, _ in linears(steps))


@register_flop_formula(_ops.sequential_backward)
def _sequential_backward(
    grad_output_shape: Shape,
    input_shape: Shape,
    parameter_shapes: list[Shape],
    saved_shapes: list[Shape],
    steps: str,
    *args: Any,
    **kwargs: Any,
) -> int:
    """output_mask: input, parameters"""
    output_mask = args[-1]
    flops = 0
    for place, first in linears(steps):
        below = any(output_mask[: 1 + first])
        flops += _product(input_shape, parameter_shapes[place]) * (below + output_mask[1 + place])
    return flops
