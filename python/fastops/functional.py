"""The ops as functions.

One function for every activation (``softshrink``, ``gelu``, ``silu``, ...), and the fused ops below. An ``activation``
is the name of one of those functions; ``params`` are its parameters in order (``[0.3]`` for ``softshrink`` with
``lambd=0.3``), its defaults where left out. All take float32, float64, bfloat16 and float16 tensors of any strides,
compute 16-bit types in float32, and are differentiable to any order, in reverse and forward mode.
"""

from __future__ import annotations

from typing import List, Optional, Tuple  # noqa: UP035  (TorchScript reads these)

import torch
from torch import Tensor

from . import _activations
from ._activations import *  # noqa: F403
from ._eager import call

__all__ = [
    *_activations.FUNCTIONS,
    "act_mul",
    "bias_act",
    "gated_act",
    "gated_mlp",
    "linear_act",
    "mlp",
    "mlp_jacobian",
    "mlp_jet",
    "mlp_laplacian",
]


def bias_act(
    input: Tensor,
    bias: Optional[Tensor] = None,
    activation: str = "relu",
    params: Optional[List[float]] = None,
) -> Tensor:
    """``activation(input + bias)`` in one pass.

    Args:
        input: [..., features].
        bias: [features], with the dtype and device of ``input``; or None.
        activation: name of the activation.
        params: its parameters; None for the defaults.

    Returns:
        A tensor of ``input``'s shape and dtype.

    Raises:
        TypeError: an argument of another kind, an unsupported dtype, or two of them.
        ValueError: an unknown activation, invalid parameters, or a bias of the wrong shape.
    """
    if not torch.jit.is_scripting():
        return call(torch.ops.fastops.bias_act, input, bias, activation, [] if params is None else params)
    return torch.ops.fastops.bias_act(input, bias, activation, _list(params))


def act_mul(gate: Tensor, up: Tensor, activation: str = "silu", params: Optional[List[float]] = None) -> Tensor:
    """``activation(gate) * up``: a gated linear unit whose halves are two tensors.

    Shazeer, GLU Variants Improve Transformer, 2020: ``sigmoid`` gives GLU, ``relu`` ReGLU, ``gelu`` GeGLU and ``silu``
    SwiGLU.

    Args:
        gate: any shape and strides.
        up: the same shape, dtype and device as ``gate``; nothing is broadcast.
        activation: name of the activation.
        params: its parameters; None for the defaults.

    Returns:
        A contiguous tensor of ``gate``'s shape and dtype.

    Raises:
        TypeError: an argument of another kind, an unsupported dtype, or two of them.
        ValueError: shapes that differ, an unknown activation or invalid parameters.
    """
    if not torch.jit.is_scripting():
        return call(torch.ops.fastops.act_mul, gate, up, activation, [] if params is None else params)
    return torch.ops.fastops.act_mul(gate, up, activation, _list(params))


def gated_act(
    input: Tensor,
    activation: str = "silu",
    params: Optional[List[float]] = None,
    gate_last: bool = False,
) -> Tensor:
    """``activation(gate) * up`` on the two halves of ``input``'s last dimension.

    The gate is the first half, or with ``gate_last`` the second: ``torch.nn.functional.glu(x)`` is
    ``gated_act(x, "sigmoid", gate_last=True)``.

    Args:
        input: [..., 2 * features].
        activation: name of the activation.
        params: its parameters; None for the defaults.
        gate_last: whether the gate is the second half.

    Returns:
        [..., features], contiguous, of ``input``'s dtype.

    Raises:
        TypeError: an argument of another kind, an unsupported dtype.
        ValueError: an odd last dimension, an unknown activation or invalid parameters.
    """
    if not torch.jit.is_scripting():
        return call(torch.ops.fastops.gated_act, input, activation, [] if params is None else params, gate_last)
    return torch.ops.fastops.gated_act(input, activation, _list(params), gate_last)


def linear_act(
    input: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    activation: str = "relu",
    params: Optional[List[float]] = None,
) -> Tensor:
    """``activation(input @ weight.T + bias)``: a linear layer with its activation.

    Args:
        input: [..., in_features].
        weight: [out_features, in_features], as in ``torch.nn.functional.linear``.
        bias: [out_features] or None.
        activation: name of the activation.
        params: its parameters; None for the defaults.

    Returns:
        [..., out_features].

    Raises:
        TypeError: an argument of another kind, an unsupported dtype, or two of them.
        ValueError: shapes that do not fit, an unknown activation or invalid parameters.
    """
    if not torch.jit.is_scripting():
        return call(torch.ops.fastops.linear_act, input, weight, bias, activation, [] if params is None else params)
    return torch.ops.fastops.linear_act(input, weight, bias, activation, _list(params))


@torch.jit.unused
def _traced_layer(
    input: Tensor, weight: Tensor, bias: Optional[Tensor], activation: str, params: Optional[List[float]]
) -> Tensor:
    if weight.dim() == 2:
        return linear_act(input, weight, bias, activation, params)
    rows = input.flatten(1, -2) if input.dim() > 2 else input.unsqueeze(1)
    product = rows @ weight.mT
    output = product if bias is None else product + bias.unsqueeze(1)
    return bias_act(output.reshape(input.shape[:-1] + output.shape[-1:]), None, activation, params)


def mlp(
    input: Tensor,
    weights: List[Tensor],
    biases: Optional[List[Optional[Tensor]]] = None,
    activation: str = "relu",
    output_activation: str = "identity",
    params: Optional[List[float]] = None,
    output_params: Optional[List[float]] = None,
    checkpoint: bool = False,
) -> Tensor:
    """A multi-layer perceptron of any depth in one op.

    Layer i computes ``h[i + 1] = activation(h[i] @ weights[i].T + biases[i])`` from ``h[0] = input``; the last layer
    uses ``output_activation``. For the backward pass one tensor per hidden layer is kept, or none with ``checkpoint``.

    Args:
        input: [..., in_features]; of an ensemble [members, ..., in_features].
        weights: one [out_features, in_features] tensor per layer; each layer's in_features are the outputs of the
            layer before. Or [members, out_features, in_features], an ensemble of networks.
        biases: one [out_features] or [members, out_features] tensor or None per layer; None for no biases at all.
        activation: name of the hidden layers' activation.
        output_activation: name of the last layer's activation.
        params: parameters of ``activation``; None for its defaults.
        output_params: parameters of ``output_activation``; None for its defaults.
        checkpoint: keep nothing but the arguments for the backward pass, which computes the hidden layers again.

    Returns:
        [..., out_features of the last layer], with the members in front where the input has them.

    Raises:
        TypeError: an argument of another kind, an unsupported dtype, or two of them.
        ValueError: no weights, shapes that do not chain, an unknown activation or invalid parameters.
    """
    if not torch.jit.is_scripting():
        if biases is None:
            biases = [None] * (len(weights) if hasattr(weights, "__len__") else 0)
        if torch.jit.is_tracing():  # it has no lists of optional tensors
            last = len(weights) - 1
            for i in range(last):
                input = _traced_layer(input, weights[i], biases[i], activation, params)
            return _traced_layer(input, weights[last], biases[last], output_activation, output_params)
        return call(
            torch.ops.fastops.mlp,
            input,
            weights,
            biases,
            activation,
            output_activation,
            [] if params is None else params,
            [] if output_params is None else output_params,
            checkpoint,
        )
    layer_biases = _biases(weights, biases)
    return torch.ops.fastops.mlp(
        input, weights, layer_biases, activation, output_activation, _list(params), _list(output_params), checkpoint
    )


def mlp_jet(
    input: Tensor,
    directions: Tensor,
    weights: List[Tensor],
    biases: Optional[List[Optional[Tensor]]] = None,
    activation: str = "relu",
    output_activation: str = "identity",
    params: Optional[List[float]] = None,
    output_params: Optional[List[float]] = None,
    order: int = 2,
    trace: bool = False,
    trace_weights: Optional[List[float]] = None,
) -> Tuple[Tensor, Tensor, Tensor]:
    """:func:`mlp` and its derivatives along directions of the input, propagated with the values in one forward pass.

    Each point takes as many rows of the layers' matrix products as it has values: itself, its derivatives along the D
    directions, and the second ones, or with ``trace`` their weighted sum in one row. An activation f makes of
    ``z``, ``z_d`` and ``z_dd`` the values ``f(z)``, ``f'(z) z_d`` and ``f'(z) z_dd + f''(z) z_d**2``. (Li et al., A
    computational framework for neural network-based variational Monte Carlo with Forward Laplacian, 2024.) At kinks
    the derivatives are those that autograd takes. The results are differentiable to any order in all arguments; of
    them, one backward pass is an op, too, and needs ``z`` of each layer with an activation, D + 1 + the second ones as
    many numbers as :func:`mlp` keeps.

    Args:
        input: points [..., in_features].
        directions: [D, in_features], the same for every point, or [..., D, in_features]; D is at least 1.
        weights, biases, activation, output_activation, params, output_params: as of :func:`mlp`.
        order: 2, or 1 for first derivatives alone.
        trace: the sum of the second derivatives alone, which takes D + 2 rows a point instead of 2 D + 1.
        trace_weights: numbers that the terms of that sum are multiplied with; None for ones.

    Returns:
        The values [..., out_features], the first derivatives [..., D, out_features], and the second ones
        [..., D, out_features], with ``trace`` [..., out_features], with order 1 of no direction,
        [..., 0, out_features].

    Raises:
        TypeError: an argument of another kind, an unsupported dtype, or two of them.
        ValueError: shapes that do not fit, an order other than 1 and 2, a trace of first derivatives, weights of no
            trace, or what :func:`mlp` refuses.
    """
    if order != 1 and order != 2:
        raise ValueError(f"fastops.mlp_jet: order must be 1 or 2, but is {order}")
    if trace and order == 1:
        raise ValueError("fastops.mlp_jet: trace is a sum of second derivatives, but order is 1")
    if trace_weights is not None and not trace:
        raise ValueError("fastops.mlp_jet: trace_weights are given, but trace is False")
    if input.dim() < 1 or directions.dim() < 2 or directions.size(-1) != input.size(-1):
        raise ValueError(
            f"fastops.mlp_jet: directions must have shape [D, in_features] or [..., D, in_features], but has shape "
            f"{list(directions.shape)} for an input of shape {list(input.shape)}"
        )
    count = directions.size(-2)
    sizes = list(input.shape[:-1]) + [count, input.size(-1)]
    if directions.dim() > 2 and list(directions.shape) != sizes:
        raise ValueError(
            f"fastops.mlp_jet: directions of each point must have shape {sizes}, but have {list(directions.shape)}"
        )
    seconds = 0 if order == 1 else 1 if trace else count
    rows = [input.unsqueeze(-2), directions.expand(sizes)]
    if seconds > 0:
        rows.append(
            torch.zeros([1, 1], dtype=input.dtype, device=input.device).expand(
                list(input.shape[:-1]) + [seconds, input.size(-1)]
            )
        )
    layer_biases = _biases(weights, biases)
    stacked = torch.cat(rows, dim=-2)
    if torch.jit.is_scripting():
        result = torch.ops.fastops.mlp_jet(
            stacked,
            count,
            weights,
            layer_biases,
            activation,
            output_activation,
            _list(params),
            _list(output_params),
            _list(trace_weights),
        )
    else:
        result = call(
            torch.ops.fastops.mlp_jet,
            stacked,
            count,
            weights,
            layer_biases,
            activation,
            output_activation,
            [] if params is None else params,
            [] if output_params is None else output_params,
            [] if trace_weights is None else trace_weights,
        )
    value, first, second = torch.split_with_sizes(result, [1, count, seconds], -2)
    return value.squeeze(-2), first, second.squeeze(-2) if trace else second


def mlp_jacobian(
    input: Tensor,
    weights: List[Tensor],
    biases: Optional[List[Optional[Tensor]]] = None,
    activation: str = "relu",
    output_activation: str = "identity",
    params: Optional[List[float]] = None,
    output_params: Optional[List[float]] = None,
) -> Tuple[Tensor, Tensor]:
    """:func:`mlp` and the derivatives of all outputs in all inputs, in one forward pass of 1 + in_features rows.

    Args:
        input: points [..., in_features].
        weights, biases, activation, output_activation, params, output_params: as of :func:`mlp`.

    Returns:
        The values [..., out_features] and the Jacobians [..., out_features, in_features].

    Raises:
        TypeError, ValueError: as :func:`mlp`.
    """
    directions = torch.eye(input.size(-1), dtype=input.dtype, device=input.device)
    value, first, _ = mlp_jet(
        input, directions, weights, biases, activation, output_activation, params, output_params, order=1
    )
    return value, first.transpose(-2, -1)


def mlp_laplacian(
    input: Tensor,
    weights: List[Tensor],
    biases: Optional[List[Optional[Tensor]]] = None,
    activation: str = "relu",
    output_activation: str = "identity",
    params: Optional[List[float]] = None,
    output_params: Optional[List[float]] = None,
    trace_weights: Optional[List[float]] = None,
) -> Tuple[Tensor, Tensor, Tensor]:
    """:func:`mlp`, its gradient and its Laplacian, in one forward pass of in_features + 2 rows.

    The Laplacian is ``sum_d w_d u_dd`` with the second derivatives of each output in the input's elements, and weights
    that are 1 unless given: ``[1, 1, -1 / c**2]`` makes it a wave equation's left-hand side.

    Args:
        input: points [..., in_features].
        weights, biases, activation, output_activation, params, output_params: as of :func:`mlp`.
        trace_weights: in_features numbers w_d; None for ones.

    Returns:
        The values [..., out_features], the gradients [..., out_features, in_features] and the Laplacians
        [..., out_features].

    Raises:
        TypeError, ValueError: as :func:`mlp_jet`.
    """
    directions = torch.eye(input.size(-1), dtype=input.dtype, device=input.device)
    value, first, second = mlp_jet(
        input,
        directions,
        weights,
        biases,
        activation,
        output_activation,
        params,
        output_params,
        trace=True,
        trace_weights=trace_weights,
    )
    return value, first.transpose(-2, -1), second


def gated_mlp(
    input: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    gate_bias: Optional[Tensor] = None,
    up_bias: Optional[Tensor] = None,
    down_bias: Optional[Tensor] = None,
    activation: str = "silu",
    params: Optional[List[float]] = None,
    checkpoint: bool = False,
) -> Tensor:
    """The gated feed-forward block of LLaMA and others, in one op.

    ``(activation(input @ gate_weight.T + gate_bias) * (input @ up_weight.T + up_bias)) @ down_weight.T + down_bias``;
    Shazeer, GLU Variants Improve Transformer, 2020.

    Args:
        input: [..., in_features].
        gate_weight, up_weight: [hidden_features, in_features].
        down_weight: [out_features, hidden_features].
        gate_bias, up_bias: [hidden_features] or None.
        down_bias: [out_features] or None.
        activation: name of the activation.
        params: its parameters; None for the defaults.
        checkpoint: keep nothing but the arguments for the backward pass, which computes the projections again.

    Returns:
        [..., out_features].

    Raises:
        TypeError: an argument of another kind, an unsupported dtype, or two of them.
        ValueError: shapes that do not fit, an unknown activation or invalid parameters.
    """
    if not torch.jit.is_scripting():
        return call(
            torch.ops.fastops.gated_mlp,
            input,
            gate_weight,
            up_weight,
            down_weight,
            gate_bias,
            up_bias,
            down_bias,
            activation,
            [] if params is None else params,
            checkpoint,
        )
    return torch.ops.fastops.gated_mlp(
        input, gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias, activation, _list(params), checkpoint
    )


def _list(params: Optional[List[float]]) -> List[float]:
    empty: List[float] = []
    return empty if params is None else params


def _biases(weights: List[Tensor], biases: Optional[List[Optional[Tensor]]]) -> List[Optional[Tensor]]:
    if biases is not None:
        return biases
    none: List[Optional[Tensor]] = []
    for _ in weights:
        none.append(None)  # noqa: PERF401  (TorchScript has no list of None)
    return none
