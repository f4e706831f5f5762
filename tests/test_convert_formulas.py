"""fastops.nn.convert of classes and methods of others that are an activation or a gated unit by their formula."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastops
from convertible import Block, ReluSquared, assert_same, converted, layers, ops_of
from modules import batch, seeded


class Square(nn.Module):
    def forward(self, x):
        return x.relu().square()


class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class SwishByExp(nn.Module):
    def forward(self, x):
        return x / (1 + torch.exp(-x))


class NewGELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class ErfGELU(nn.Module):
    def forward(self, x):
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class SoftplusTanh(nn.Module):
    def forward(self, x):
        return x * F.softplus(x).tanh()


class Slope(nn.Module):
    def forward(self, x):
        return F.leaky_relu(x, negative_slope=0.3)


class Sine(nn.Module):
    """As in SIREN."""

    def forward(self, x):
        return torch.sin(30 * x)


class ReGLU(nn.Module):
    """As in rtdl."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % 2:
            raise ValueError("The last dimension must be even")
        a, b = x.chunk(2, dim=-1)
        return a * F.relu(b)


class SwiGLU(nn.Module):
    def forward(self, x):
        gate, up = x.chunk(2, dim=-1)
        return gate * torch.sigmoid(gate) * up


class NearlySwish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.5 * x)


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        return F.relu(x) * self.slope


class Checked(nn.Module):
    """With a condition on the values."""

    def forward(self, x):
        if torch.isnan(x).any():
            raise FloatingPointError("NaN")
        return x * torch.sigmoid(x)


class OddReLU(nn.Module):
    """With a condition that is for gated units."""

    def forward(self, x):
        if x.shape[-1] % 2 != 0:
            raise ValueError("odd")
        return F.relu(x) ** 2


class RoundedGELU(nn.Module):
    """Exact for float32, but not for float64."""

    def forward(self, x):
        return 0.5 * x * (1 + torch.erf(x / 1.41421356))


def around(beta: float) -> tuple[type[nn.Module], type[nn.Module], Any]:
    """Modules with a number from around their class, and what changes it."""

    class Activation(nn.Module):
        def forward(self, x):
            return x * torch.sigmoid(beta * x)

    class WithMethod(Block):
        def swish(self, x):
            return x * torch.sigmoid(beta * x)

        def forward(self, x):
            return self.down(self.swish(self.up(x)))

    def change(value: float) -> None:
        nonlocal beta
        beta = value

    return Activation, WithMethod, change


ACTIVATIONS = [ReluSquared, Square, Swish, SwishByExp, NewGELU, ErfGELU, SoftplusTanh, Slope, Sine]


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation(kind: Any, device: Any) -> None:
    """A class that computes the formula of an activation."""
    module, reference, report = converted(lambda: layers(nn.Linear, kind()), device)
    assert not report.left
    assert_same(module, reference, device)
    assert ops_of(module, batch(device)) == ["mlp"]


@pytest.mark.parametrize("kind", [NearlySwish, Learned, Checked, OddReLU, RoundedGELU])
def test_no_activation(kind: Any, device: Any) -> None:
    """What is nearly one, or has parameters of its own, is called."""
    module, reference, report = converted(lambda: layers(nn.Linear, kind()), device)
    assert [row.reason for row in report.left] == [
        f"1, after a linear layer, is a {__name__}.{kind.__name__}, which is not an activation that fastops has"
    ]
    assert_same(module, reference, device)


def test_closure(device: Any) -> None:
    """A number from around a class or a method may change."""
    activation, with_method, change = around(1.702)
    for make in (lambda: layers(nn.Linear, activation()), lambda: with_method().requires_grad_(False)):
        change(1.702)
        module, reference, _ = converted(make, device)
        assert_same(module, reference, device)
        change(5.0)
        assert_same(module, reference, device)


@pytest.mark.parametrize("kind", [ReGLU, SwiGLU])
def test_gated(kind: Any, device: Any) -> None:
    """A class that multiplies one half of the features with an activation of the other; errors are its own."""
    module, reference, report = converted(lambda: layers(nn.Linear, kind(), wide=16), device)
    assert not report.left
    assert_same(module, reference, device)
    assert ops_of(module, batch(device)) == ["gated_mlp"]
    odd = seeded(lambda: nn.Sequential(nn.Linear(6, 7), kind()), device)
    with pytest.raises(Exception) as original:
        odd(batch(device))
    fastops.nn.convert(odd)
    with pytest.raises(type(original.value), match=str(original.value)[:20]):
        odd(batch(device))
