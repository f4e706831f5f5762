"""Networks with their derivatives along directions of the input, in one forward pass: part of fastops.functional."""

from __future__ import annotations

import torch
from torch import Tensor

from ._eager import call
from ._lists import biases_of, list_of


def mlp_jet(
    input: Tensor,
    directions: Tensor,
    weights: list[Tensor],
    biases: list[Tensor | None] | None = None,
    activation: str = "relu",
    output_activation: str = "identity",
    params: list[float] | None = None,
    output_params: list[float] | None = None,
    order: int = 2,
    trace: bool = False,
    trace_weights: list[float] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
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
    layer_biases = biases_of(weights, biases)
    stacked = torch.cat(rows, dim=-2)
    if torch.jit.is_scripting():
        result = torch.ops.fastops.mlp_jet(
            stacked,
            count,
            weights,
            layer_biases,
            activation,
            output_activation,
            list_of(params),
            list_of(output_params),
            list_of(trace_weights),
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
    weights: list[Tensor],
    biases: list[Tensor | None] | None = None,
    activation: str = "relu",
    output_activation: str = "identity",
    params: list[float] | None = None,
    output_params: list[float] | None = None,
) -> tuple[Tensor, Tensor]:
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
    weights: list[Tensor],
    biases: list[Tensor | None] | None = None,
    activation: str = "relu",
    output_activation: str = "identity",
    params: list[float] | None = None,
    output_params: list[float] | None = None,
    trace_weights: list[float] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
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
