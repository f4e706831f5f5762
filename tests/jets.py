"""Networks and comparisons that the tests of derivatives along directions and of what is made of them share."""

import itertools
import math

import torch
from hypothesis import settings
from torch import nn
from torch.nn.functional import linear

import fastops
from strategies import ONCE, WIDEST, random_tensor

once = settings(max_examples=2 * ONCE * settings().max_examples)
SMOOTH = ["gelu", "gelu_tanh", "mish", "sigmoid", "silu", "sin", "softplus", "tanh"]
# Of the sums of products that a result is made of; the largest number of a result stands for those.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.1, torch.float16: 0.02}


def random_network(sizes, dtype, device, seed=0, biased=True):
    """Weights and biases."""
    weights, biases = [], []
    for i, (k, n) in enumerate(itertools.pairwise(sizes)):
        weights.append(random_tensor((n, k), dtype, device, seed + i, 1 / math.sqrt(max(1, k))))
        biases.append(random_tensor((n,), dtype, device, seed + 50 + i) if biased else None)
    return weights, biases


def interleaved(weights, biases):
    """In the order of output_mask, without absent biases."""
    return [tensor for layer in zip(weights, biases, strict=True) for tensor in layer if tensor is not None]


def assert_close(actual, expected, dtype, what, summands=()):
    """Where the numbers of a result cancel, other tensors may stand for them."""
    assert actual.dtype == dtype, what
    assert actual.shape == expected.shape, what
    if expected.numel():
        scale = 1 + max(tensor.abs().max().item() for tensor in (expected, *summands) if tensor.numel())
        worst = (actual.double().cpu() - expected.double().cpu()).abs().max().item()
        assert worst <= TOLERANCE[dtype] * scale, f"{what}: off by {worst:.3g} of {scale:.3g}"


def wide(tensor):
    return None if tensor is None else tensor.detach().cpu().double()


def model(device, *sizes, activation="tanh", dtype=WIDEST):
    torch.manual_seed(0)
    return fastops.nn.MLP(sizes[0], list(sizes[1:-1]), sizes[-1], activation=activation).to(device, dtype)


def plain(mlp, x):
    """The network in PyTorch's ops."""
    for module in mlp:
        x = linear(x, module.weight, module.bias) if isinstance(module, nn.Linear) else torch.tanh(x)
    return x
