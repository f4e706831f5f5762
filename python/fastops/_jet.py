"""Networks with derivatives along directions of the input, in one forward pass: part of fastops.functional."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ._eager import call, check_dense, check_network, is_autocast_on
from ._lists import NOT_TRACED, biases_of, list_of
from ._torch_internal import in_transform


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
    pairs: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`mlp` and its derivatives along directions of the input, propagated with the values in one forward pass.

    Each point takes as many rows of the layers' matrix products as it has values: itself, its derivatives along the D
    directions, and the second ones, or with ``trace`` their weighted sum in one row. An activation f makes of ``z``,
    ``z_d`` and ``z_dd`` the values ``f(z)``, ``f'(z) z_d`` and ``f'(z) z_dd + f''(z) z_d**2``, and with ``pairs`` of
    ``z_de``, the derivative along d and e, ``f'(z) z_de + f''(z) z_d z_e``. (Li et al., A computational framework for
    neural network-based variational Monte Carlo with Forward Laplacian, 2024.) At kinks the first derivatives are those
    that autograd takes. The results are differentiable to any order in all arguments; of them, one backward pass is an
    op, too, and needs ``z`` of each layer with an activation, D + 1 + the second ones as many numbers as :func:`mlp`
    keeps.

    Args:
        input: points [..., in_features].
        directions: [D, in_features], the same for every point, or [..., D, in_features]; D is at least 1. On
            the device of ``input``, with its dtype or one that it includes.
        weights, biases, activation, output_activation, params, output_params: as of :func:`mlp`.
        order: 2, or 1 for first derivatives alone.
        trace: the sum of the second derivatives alone, which takes D + 2 rows a point instead of 2 D + 1.
        trace_weights: numbers that the terms of that sum are multiplied with; None for ones.
        pairs: the second derivatives along each two directions, D (D + 1) / 2 rows a point for D of them: first those
            along the first direction and each, then those along the second one and each from that on, and so on.

    Returns:
        The values [..., out_features], the first derivatives [..., D, out_features], and the second ones
        [..., D, out_features], with ``pairs`` [..., D (D + 1) / 2, out_features], with ``trace`` [..., out_features],
        with order 1 of no direction, [..., 0, out_features].

    Raises:
        RuntimeError: tensors on different devices, one whose memory was freed, or ``torch.jit.trace``.
        TypeError: an argument of another kind, an unsupported dtype, or two of them.
        ValueError: shapes that do not fit, an order other than 1 and 2, a trace or pairs of first derivatives, a trace
            of pairs, weights of no trace, or what :func:`mlp` refuses.
    """
    check("mlp_jet", input, weights, biases, activation, output_activation, params, output_params)
    if not torch.jit.is_scripting():
        check_directions("mlp_jet", "directions", directions, input)
    if order != 1 and order != 2:
        raise ValueError(f"fastops.mlp_jet: order must be 1 or 2, but is {order}")
    if trace and order == 1:
        raise ValueError("fastops.mlp_jet: trace is a sum of second derivatives, but order is 1")
    if pairs and (trace or order == 1):
        raise ValueError(
            "fastops.mlp_jet: pairs have second derivatives, but "
            + ("trace, which is the sum of those of each direction alone, is True" if trace else "order is 1")
        )
    if trace_weights is not None and not trace:
        raise ValueError("fastops.mlp_jet: trace_weights are given, but trace is False")
    if directions.dim() < 2 or directions.size(-1) != input.size(-1):
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
    seconds = 0 if order == 1 else 1 if trace else count * (count + 1) // 2 if pairs else count
    value, first, second = jet(
        input,
        directions,
        weights,
        biases,
        activation,
        output_activation,
        params,
        output_params,
        seconds,
        trace_weights,
    )
    return value, first, second.squeeze(-2) if trace else second


def jet(
    input: Tensor,
    directions: Tensor,
    weights: list[Tensor],
    biases: list[Tensor | None] | None,
    activation: str,
    output_activation: str,
    params: list[float] | None,
    output_params: list[float] | None,
    seconds: int,
    trace_weights: list[float] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`mlp_jet` of arguments that were checked, with so many rows of second derivatives."""
    if not torch.jit.is_scripting() and torch.jit.is_tracing():
        raise RuntimeError(NOT_TRACED.format("mlp_jet"))
    count = directions.size(-2)
    sizes = list(input.shape[:-1]) + [count, input.size(-1)]
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
    value, first, second = _parts(result, [1, count, seconds])
    return value.squeeze(-2), first, second


def check_directions(owner: str, argument: str, directions: Tensor, input: Tensor) -> None:
    """Raises a TypeError or RuntimeError for what cannot be directions of this input; their shape is not looked at."""
    check_dense(owner, directions, argument)
    if is_compiling():
        return
    if directions.device != input.device:
        raise RuntimeError(
            f"fastops.{owner}: {argument} is on {directions.device}, but input is on {input.device}; they must be on "
            "the same device"
        )
    if torch.promote_types(input.dtype, directions.dtype) != input.dtype and not is_autocast_on(input.device):
        raise TypeError(
            f"fastops.{owner}: {argument} is {directions.dtype}, but input is {input.dtype}; it must have the same "
            "dtype, or one that it includes"
        )


def _parts(rows: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that nothing else has, in three parts that may be written to."""
    if not torch.jit.is_scripting():  # noqa: SIM102  (TorchScript would read the rest, too)
        # Neither vmap nor tensors of other classes have a rule for the other one.
        if is_compiling() or in_transform() or type(rows) is not Tensor:
            value, first, second = torch.split_with_sizes(rows, sizes, -2)
            return value, first, second
    value, first, second = torch.unsafe_split_with_sizes(rows, sizes, -2)
    return value, first, second


def check(
    owner: str,
    input: Tensor,
    weights: list[Tensor],
    biases: list[Tensor | None] | None,
    activation: str,
    output_activation: str,
    params: list[float] | None,
    output_params: list[float] | None,
) -> None:
    """Raises what :func:`mlp` does, in the name of a function that may call others."""
    if not torch.jit.is_scripting() and not is_compiling():
        if isinstance(input, Tensor) and input.is_nested:
            raise TypeError(f"fastops.{owner}: input must be a dense (strided) tensor, but is a nested one")
        check_network(owner, input, weights, biases, activation, output_activation, params, output_params)
    if input.dim() == 0:
        raise ValueError(f"fastops.{owner}: input must have at least one dimension, but is 0-d")
