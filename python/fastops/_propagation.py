"""Jacobians, divergences, Laplacians and Hessians of networks: part of fastops.functional."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_compiling

from . import _C
from ._eager import is_autocast_on
from ._jet import check, jet
from ._lists import biases_of, list_of

_MOST_WEIGHTS_BY_JET = _C.most_weights_by_jet()


def mlp_jacobian(
    input: Tensor,
    weights: list[Tensor],
    biases: list[Tensor | None] | None = None,
    activation: str = "relu",
    output_activation: str = "identity",
    params: list[float] | None = None,
    output_params: list[float] | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`mlp` and the derivatives of all outputs in all inputs.

    In forward mode, with 1 + in_features rows of each point in one pass; or in reverse mode, with a row for each output
    on the way back through the layers, where the inputs are three or more and at least twice as many.

    Args:
        input: points [..., in_features].
        weights, biases, activation, output_activation, params, output_params: as of :func:`mlp`.

    Returns:
        The values [..., out_features] and the Jacobians [..., out_features, in_features].

    Raises:
        RuntimeError, TypeError, ValueError: as :func:`mlp`.
    """
    check("mlp_jacobian", input, weights, biases, activation, output_activation, params, output_params)
    features = _features(input, weights)
    if features[0] > 2 and features[-1] > 0 and features[0] >= 2 * features[-1]:
        return _jacobian_in_reverse(
            input,
            weights,
            biases_of(weights, biases),
            activation,
            output_activation,
            list_of(params),
            list_of(output_params),
        )
    directions = torch.eye(input.size(-1), dtype=input.dtype, device=input.device)
    value, first, _ = jet(
        input, directions, weights, biases, activation, output_activation, params, output_params, seconds=0
    )
    return value, first.transpose(-2, -1)


def _features(input: Tensor, weights: list[Tensor]) -> list[int]:
    """Those of the input and of each layer; -1 from where on one does not fit, as the ops say."""
    features = [input.size(-1)]
    for weight in weights:
        fits = weight.dim() > 1 and weight.size(-1) == features[-1]
        features.append(weight.size(-2) if fits else -1)
    return features


def check_square(owner: str, features: int, outputs: int) -> None:
    """Raises a ValueError where the network is no field: its outputs are not as many as its inputs."""
    if outputs != features:
        raise ValueError(
            f"{owner}: it needs as many outputs as inputs, but has {outputs} outputs and {features} inputs"
        )


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer, or those of an ensemble."""
    if weight.dim() == 2:
        return torch.ops.fastops.linear_act(input, weight, bias, "identity")
    return torch.ops.fastops.mlp(input, [weight], [bias], "identity")


def _value_and_sums(
    input: Tensor,
    weights: list[Tensor],
    biases: list[Tensor | None],
    activation: str,
    output_activation: str,
    params: list[float],
    output_params: list[float],
) -> tuple[Tensor, list[Tensor]]:
    """The outputs, and what the activation of each layer is applied to."""
    value = input
    sums: list[Tensor] = []
    for i in range(len(weights)):
        if i > 0:
            value = torch.ops.fastops.bias_act(value, None, activation, params)
        value = _linear(value, weights[i], biases[i])
        sums.append(value)
    if output_activation != "identity":
        value = torch.ops.fastops.bias_act(value, None, output_activation, output_params)
    return value, sums


def _of_points(matrix: Tensor, input: Tensor) -> Tensor:
    """The same matrix, or that of an ensemble's member, for all points, in one dimension of 1 for each of theirs."""
    members = list(matrix.shape[:-2])
    return matrix.reshape(members + [1] * (input.dim() - 1 - len(members)) + list(matrix.shape[-2:]))


def _slope(z: Tensor, activation: str, params: list[float], order: int = 1) -> Tensor:
    """The activation's derivative, of some order."""
    return torch.ops.fastops.activation_backward(torch.ones_like(z), z, activation, params, False, order)


def _jacobian_in_reverse(
    input: Tensor,
    weights: list[Tensor],
    biases: list[Tensor | None],
    activation: str,
    output_activation: str,
    params: list[float],
    output_params: list[float],
) -> tuple[Tensor, Tensor]:
    elements = 0
    for weight in weights:
        elements += weight.numel()
    # The second derivatives of the network's own backward pass are fused up to so many weights.
    most_elements = 64 * 1024
    is_traced = False
    if not torch.jit.is_scripting():
        most_elements = _MOST_WEIGHTS_BY_JET
        # The trace has no lists of optional tensors, and these ops are beneath autocast.
        is_traced = torch.jit.is_tracing() or is_autocast_on(input.device)
    is_fused = elements <= most_elements or not torch.is_grad_enabled()
    by_backward_pass = weights[-1].size(-2) == 1 and is_fused and not is_traced
    if by_backward_pass:
        value, saved = torch.ops.fastops.mlp_forward(
            input, weights, biases, activation, output_activation, params, output_params
        )
        gradients = torch.ops.fastops.mlp_backward(
            torch.ones_like(value),
            input,
            weights,
            biases,
            value,
            saved,
            activation,
            output_activation,
            params,
            output_params,
            [True] + [False] * (2 * len(weights)),
        )
        if not torch.jit.is_scripting() and not is_compiling():
            # One backward pass gives the gradients of both.
            _C.leave_gradients(value, gradients[0])
        return value, gradients[0].unsqueeze(-2)
    value, sums = _value_and_sums(input, weights, biases, activation, output_activation, params, output_params)
    last = weights[-1].to(value.dtype)  # another one under autocast
    rows = _of_points(last, input).expand(list(input.shape[:-1]) + list(last.shape[-2:]))
    if output_activation != "identity":
        rows = rows * _slope(sums[-1], output_activation, output_params).unsqueeze(-1)
    elif len(weights) == 1:
        rows = rows.clone(memory_format=torch.contiguous_format)  # not the weight itself
    for i in range(len(weights) - 2, -1, -1):
        if last.size(-2) == 1:
            z = sums[i].unsqueeze(-2)
            rows = torch.ops.fastops.activation_backward(rows.contiguous(), z, activation, params)
        else:
            rows = rows * _slope(sums[i], activation, params).unsqueeze(-2)
        rows = _linear(rows, weights[i].mT, None)
    return value, rows


def mlp_divergence(
    input: Tensor,
    weights: list[Tensor],
    biases: list[Tensor | None] | None = None,
    activation: str = "relu",
    output_activation: str = "identity",
    params: list[float] | None = None,
    output_params: list[float] | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`mlp` with as many outputs as inputs, and its divergence, the trace of its Jacobian.

    The Jacobian is a product of the weights ``W`` and of diagonal matrices with the activations' derivatives
    ``d = f'(z)``. With one or two of these, its trace is a linear or a bilinear form of them, whose matrix is made once
    for all points: ``d2 @ (W2 * (W1 @ W3).T) @ d1`` for two hidden layers, which is as much work as the values are. (Of
    a network with one hidden layer: Onken et al., OT-Flow: Fast and Accurate Continuous Normalizing Flows via Optimal
    Transport, 2021.) With more, it is the sum of the Jacobian's diagonal, from 1 + in_features rows a point.

    Args:
        input: points [..., features].
        weights, biases, activation, output_activation, params, output_params: as of :func:`mlp`.

    Returns:
        The values [..., features] and the divergence [...].

    Raises:
        RuntimeError, TypeError: as :func:`mlp`.
        ValueError: the outputs are not as many as the inputs, or as :func:`mlp`.
    """
    check("mlp_divergence", input, weights, biases, activation, output_activation, params, output_params)
    count = len(weights)
    features = _features(input, weights)
    if count > 0 and features[-1] >= 0:
        check_square("fastops.mlp_divergence", features[0], features[-1])
    activates_output = output_activation != "identity"
    activations = count if activates_output else count - 1
    if features[-1] < 0 or activations < 1 or activations > 2:
        value, jacobian = mlp_jacobian(input, weights, biases, activation, output_activation, params, output_params)
        return value, jacobian.diagonal(dim1=-2, dim2=-1).sum(-1)
    hidden_params, last_params = list_of(params), list_of(output_params)
    value, sums = _value_and_sums(
        input, weights, biases_of(weights, biases), activation, output_activation, hidden_params, last_params
    )
    derivatives = [_slope(z, activation, hidden_params) for z in sums[:-1]]
    if activates_output:
        derivatives.append(_slope(sums[-1], output_activation, last_params))
    if activations == 1:
        diagonal = (weights[0] * weights[1].mT).sum(-1) if count == 2 else weights[0].diagonal(dim1=-2, dim2=-1)
        return value, _linear(derivatives[0], diagonal.unsqueeze(-2), None).squeeze(-1)
    # What lies between the second activation and the first one, around the trace.
    around = weights[0] if activates_output else _linear(weights[0], weights[2].mT, None)
    return value, (_linear(derivatives[0], weights[1] * around.mT, None) * derivatives[1]).sum(-1)


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
        RuntimeError, TypeError, ValueError: as :func:`mlp_jet`.
    """
    check("mlp_laplacian", input, weights, biases, activation, output_activation, params, output_params)
    directions = torch.eye(input.size(-1), dtype=input.dtype, device=input.device)
    value, first, second = jet(
        input,
        directions,
        weights,
        biases,
        activation,
        output_activation,
        params,
        output_params,
        seconds=1,
        trace_weights=trace_weights,
    )
    return value, first.transpose(-2, -1), second.squeeze(-2)


def has_rows_of_pairs(inputs: int, outputs: int) -> bool:
    """Whether a Hessian has a row for each pair of inputs. The rows of the other way are fewer, but take longer."""
    return 1 + inputs + inputs * (inputs + 1) // 2 <= 3 * (1 + inputs + outputs)  # measured


def mlp_hessian(
    input: Tensor,
    weights: list[Tensor],
    biases: list[Tensor | None] | None = None,
    activation: str = "relu",
    output_activation: str = "identity",
    params: list[float] | None = None,
    output_params: list[float] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`mlp`, its Jacobian, and the matrix of second derivatives of each output.

    In one forward pass with a row for each of them, 1 + n + n (n + 1) / 2 rows a point for n inputs
    (:func:`mlp_jet`). Where these are many, from the layers: with ``z`` what the activations ``f`` are applied to,
    ``J = dz/dx``, and ``g`` the derivatives of an output in ``f(z)``, its Hessian is the sum over the layers of
    ``J.T @ diag(g f''(z)) @ J``, from 1 + n rows a point on the way up and one for each output on the way down.
    :func:`mlp_laplacian` has the trace alone, from n + 2 rows.

    Args:
        input: points [..., in_features].
        weights, biases, activation, output_activation, params, output_params: as of :func:`mlp`.

    Returns:
        The values [..., out_features], the Jacobians [..., out_features, in_features] and the Hessians
        [..., out_features, in_features, in_features].

    Raises:
        RuntimeError, TypeError, ValueError: as :func:`mlp_jet`.
    """
    check("mlp_hessian", input, weights, biases, activation, output_activation, params, output_params)
    features = _features(input, weights)
    count = features[0]
    if len(weights) > 0 and features[-1] >= 0 and not has_rows_of_pairs(count, features[-1]):
        return _hessian_from_layers(
            input,
            weights,
            biases_of(weights, biases),
            activation,
            output_activation,
            list_of(params),
            list_of(output_params),
        )
    directions = torch.eye(input.size(-1), dtype=input.dtype, device=input.device)
    pairs = count * (count + 1) // 2
    value, first, second = jet(
        input, directions, weights, biases, activation, output_activation, params, output_params, seconds=pairs
    )
    # Where the pair (i, j) is in the order of pairs.
    all_inputs = torch.arange(count, device=input.device)
    low = torch.minimum(all_inputs.unsqueeze(-1), all_inputs)
    high = torch.maximum(all_inputs.unsqueeze(-1), all_inputs)
    places = low * count - low * (low - 1) // 2 + high - low
    hessian = second.transpose(-2, -1).index_select(-1, places.flatten()).unflatten(-1, [count, count])
    return value, first.transpose(-2, -1), hessian


def _hessian_from_layers(
    input: Tensor,
    weights: list[Tensor],
    biases: list[Tensor | None],
    activation: str,
    output_activation: str,
    params: list[float],
    output_params: list[float],
) -> tuple[Tensor, Tensor, Tensor]:
    value, sums = _value_and_sums(input, weights, biases, activation, output_activation, params, output_params)
    slopes = [_slope(z, activation, params).unsqueeze(-2) for z in sums[:-1]]
    first = weights[0].to(value.dtype)  # another one under autocast
    # What the activations are applied to, in all inputs, [..., in_features, features].
    jacobians = [_of_points(first.mT, input)]
    for i in range(1, len(weights)):
        jacobians.append(_linear(jacobians[-1] * slopes[i - 1], weights[i], None))
    jacobian = jacobians[-1].transpose(-2, -1)
    rows = _of_points(weights[-1].to(value.dtype), input)
    terms: list[Tensor] = []
    if output_activation != "identity":
        slope = _slope(sums[-1], output_activation, output_params).unsqueeze(-1)
        bends = _slope(sums[-1], output_activation, output_params, 2).unsqueeze(-1).unsqueeze(-1)
        terms.append(bends * jacobian.unsqueeze(-1) * jacobian.unsqueeze(-2))
        jacobian = jacobian * slope
        rows = rows * slope
    for i in range(len(weights) - 2, -1, -1):
        bends = (rows * _slope(sums[i], activation, params, 2).unsqueeze(-2)).unsqueeze(-2)
        up = jacobians[i].unsqueeze(-3)
        # Of the first layer, the same matrix for all.
        down = first if i == 0 and first.dim() == 2 else up.transpose(-2, -1)
        terms.append(torch.matmul(up * bends, down))
        if i > 0:
            rows = _linear(rows * slopes[i], weights[i].mT, None)
    sizes = list(value.shape) + [input.size(-1), input.size(-1)]
    if len(terms) == 0:
        zeros = value.masked_fill(torch.ones([], dtype=torch.bool, device=value.device), 0.0)  # with a graph
        jacobian = jacobian.expand(sizes[:-1]).clone(memory_format=torch.contiguous_format)  # not the weight itself
        return value, jacobian, zeros.unsqueeze(-1).unsqueeze(-1).repeat([1] * value.dim() + sizes[-2:])
    hessian = terms[0]
    for term in terms[1:]:
        hessian = hessian + term
    return value, jacobian, hessian
