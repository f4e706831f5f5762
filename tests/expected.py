"""The functions that the ops must equal, in plain PyTorch and differentiable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

import reference
from reference import GRADIENT_FROM_OUTPUT, parameter_sets

Function = Callable[..., Any]


def activation(name: str, params: Sequence[float] = ()) -> Function:
    """The activation in plain PyTorch, differentiable to any order; no parameters for the defaults."""
    if name in reference._TWICE_DIFFERENTIABLE:
        return reference._TWICE_DIFFERENTIABLE[name]
    return lambda x: reference.activation(name, x, params)


def slope_from_output(name: str) -> Function:
    """The derivative of the activation as a function of its output."""
    return lambda y: GRADIENT_FROM_OUTPUT[name](y, *parameter_sets(name)[0])


def derivative(function: Function, order: int) -> Function:
    """The derivative of an elementwise function, differentiable in turn."""
    if order == 0:
        return function
    lower = derivative(function, order - 1)

    def differentiated(x: Tensor) -> Tensor:
        value, pull_back = torch.func.vjp(lower, x)
        return pull_back(torch.ones_like(value))[0]

    return differentiated


def masked(grads: Sequence[Tensor], mask: Sequence[bool]) -> list[Tensor]:
    """The gradients that the mask asks for."""
    return [grad for grad, wanted in zip(grads, mask, strict=True) if wanted]


def vector_jacobian(function: Function, mask: Sequence[bool]) -> Function:
    """Of grad_output and the function's inputs: the gradients of the inputs that the mask asks for."""
    return lambda grad_output, *inputs: masked(torch.func.vjp(function, *inputs)[1](grad_output), mask)


def mlp_reference(biased: Sequence[bool], hidden: Function, last: Function) -> Function:
    """A multi-layer perceptron of input, W0, b0, W1, ...; a layer that is not biased has no b."""

    def compute(x: Tensor, *parameters: Tensor) -> Tensor:
        weights, biases = split_layers(parameters, biased)
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            x = (hidden if i + 1 < len(weights) else last)(linear(x, weight, bias))
        return x

    return compute


def of_members(function: Function) -> Function:
    """The same function of an ensemble: of each member by itself."""
    return lambda *tensors: torch.stack([function(*member) for member in zip(*tensors, strict=True)])


def mlp_jet_reference(
    directions: int, biased: Sequence[bool], hidden: Function, last: Function, trace_weights: Sequence[float] = ()
) -> Function:
    """The same of points with tangents and second derivatives, in the rows that mlp_jet takes."""

    def activate(z: Tensor, function: Function) -> Tensor:
        value, tangents, seconds = z[..., :1, :], z[..., 1 : 1 + directions, :], z[..., 1 + directions :, :]
        slope = derivative(function, 1)(value)
        rows = [function(value), tangents * slope]
        if seconds.size(-2):
            factors = torch.tensor(trace_weights or [1.0] * directions, dtype=z.dtype, device=z.device)
            bends = tangents.square() * derivative(function, 2)(value) * factors.unsqueeze(-1)
            is_sum = seconds.size(-2) < directions
            rows.append(seconds * slope + (bends.sum(-2, keepdim=True) if is_sum else bends))
        return torch.cat(rows, -2)

    def compute(x: Tensor, *parameters: Tensor) -> Tensor:
        weights, biases = split_layers(parameters, biased)
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            z = linear(x, weight)
            if bias is not None:
                z = torch.cat([z[..., :1, :] + bias, z[..., 1:, :]], -2)
            x = activate(z, hidden if i + 1 < len(weights) else last)
        return x

    return compute


def split_layers(parameters: Sequence[Tensor], biased: Sequence[bool]) -> tuple[list[Tensor], list[Tensor | None]]:
    """W0, b0, W1, ... as weights and biases, None where a layer has no bias."""
    rest = iter(parameters)
    layers = [(next(rest), next(rest) if has_bias else None) for has_bias in biased]
    return [weight for weight, _ in layers], [bias for _, bias in layers]


def gated_mlp_reference(name: str) -> Function:
    """The gated feed-forward block of input, three weights and up to three biases."""

    def compute(x: Tensor, gate_weight: Tensor, up_weight: Tensor, down_weight: Tensor, *biases: Tensor) -> Tensor:
        gate_bias, up_bias, down_bias = biases or (None, None, None)
        gate = activation(name)(linear(x, gate_weight, gate_bias))
        return linear(gate * linear(x, up_weight, up_bias), down_weight, down_bias)

    return compute
