"""The functions that the ops must equal, in plain PyTorch and differentiable."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
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
            left, right = range(directions), range(directions)
            if seconds.size(-2) > directions:
                left, right = zip(*itertools.combinations_with_replacement(range(directions), 2), strict=True)
            factors = torch.tensor(trace_weights or [1.0] * len(left), dtype=z.dtype, device=z.device)
            products = tangents[..., list(left), :] * tangents[..., list(right), :]
            bends = products * derivative(function, 2)(value) * factors.unsqueeze(-1)
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


def dropout_factors(like: Tensor, seed: int, stream: int, p: float) -> Tensor:
    """What dropout multiplies a tensor [..., features] with, by Philox4x32-10 in numpy's integers."""
    features = like.size(-1)
    rows = like.numel() // max(1, features)
    row, c = np.arange(rows, dtype=np.uint64)[:, None], np.arange(features, dtype=np.uint64)
    words = philox((c // 64 * 16 + c % 16, row & 0xFFFFFFFF, row >> 32, stream), seed)
    kept = np.choose((c % 64 // 16).astype(int), words) >= round(p * 2**32)
    return torch.from_numpy(kept * (1 / (1 - p) if p < 1 else 0.0)).to(like).reshape(like.shape)


def philox(counter: Sequence[Any], key: int) -> Sequence[Any]:
    """Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011: four words from a counter of four."""
    word = 0xFFFFFFFF
    low, high = key & word, key >> 32 & word
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = second >> 32 ^ counter[1] ^ low, second & word, first >> 32 ^ counter[3] ^ high, first & word
        low, high = low + 0x9E3779B9 & word, high + 0xBB67AE85 & word
    return counter


def normalized(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """With a mean square of 1 over the last dimension, times the weight."""
    x = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    return x if weight is None else x * weight


def sequential_reference(steps: str, params: Sequence[float], seed: int = 0) -> Function:
    """The network of an input and the parameters that its steps take, None where there is none."""

    def compute(x: Tensor, *parameters: Tensor | None) -> Tensor:
        tensors, numbers, kept, stream = iter(parameters), iter(params), [], 0
        gate = up = None
        for step in steps.split():
            if step == "linear":
                x = linear(x, next(tensors), next(tensors))
            elif step == "gated_linear":
                weight, bias = next(tensors), next(tensors)
                up, gate = linear(x, next(tensors), next(tensors)), linear(x, weight, bias)
            elif up is not None:  # the activation after it
                x = activation(step, [next(numbers) for _ in reference.ACTIVATIONS[step]["parameters"]])(gate) * up
                up = None
            elif step == "layer_norm":
                # PyTorch's layer_norm has no right third derivative.
                centered = x - x.mean(-1, keepdim=True)
                x = normalized(centered, next(tensors), next(numbers))
                bias = next(tensors)
                x = x if bias is None else x + bias
            elif step == "rms_norm":
                x = normalized(x, next(tensors), next(numbers))
            elif step == "scale":
                x = x * next(tensors)
            elif step == "dropout":
                x = x * dropout_factors(x, seed, stream, next(numbers))
                stream += 1
            elif step == "residual":
                kept.append(x)
            elif step == "add":
                x = x + kept.pop()
            else:
                own = [next(numbers) for _ in reference.ACTIVATIONS[step]["parameters"]]
                x = activation(step, own)(x)
        return x

    return compute
