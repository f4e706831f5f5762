"""Which spelled-out formulas torch.compile(backend="fastops") takes for which activation."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from compiled import assert_same, rand
from fastops import functional
from fastops._resolve import PARAMETERS
from fastops.compile.formulas import CLAMP_PASSES_BOUNDS, FORMULAS

W = rand(5, 6, seed=1)

aten = torch.ops.aten
ROOT = math.sqrt(2)
SPELLINGS = {
    "gelu": [
        lambda x: F.gelu(x),
        lambda x: 0.5 * x * (1 + torch.erf(x / ROOT)),
        lambda x: x * 0.5 * (torch.erf(x * (1 / ROOT)) + 1.0),
        lambda x: (x + x * (x / ROOT).erf()) / 2,
        lambda x: torch.mul(torch.erf(torch.div(x, ROOT)).add(1), x).mul(0.5),
        nn.GELU(),
    ],
    "gelu_tanh": [
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3)))),
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x))),
        lambda x: x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    ],
    "silu": [lambda x: x * x.sigmoid(), lambda x: x / (1 + (-x).exp()), lambda x: x * (1 / (1 + torch.exp(-x)))],
    "quick_gelu": [lambda x: x * torch.sigmoid(1.702 * x), lambda x: x / (1 + torch.exp(-1.702 * x))],
    "sigmoid": [lambda x: torch.reciprocal(1 + torch.exp(-x)), lambda x: x.sigmoid()],
    "mish": [lambda x: x * F.softplus(x).tanh(), lambda x: torch.tanh(x.exp().log1p()) * x],
    "relu_squared": [lambda x: F.relu(x).square(), lambda x: torch.relu(x) * torch.relu(x), lambda x: x.relu().pow(2)],
    "softshrink(lambd=0.3)": [
        lambda x: F.softshrink(x, 0.3),
        *([lambda x: x - x.clamp(-0.3, 0.3), lambda x: x - torch.clamp(x, min=-0.3, max=0.3)] * CLAMP_PASSES_BOUNDS),
        lambda x: x.sign() * F.relu(x.abs() - 0.3),
        lambda x: F.relu(x - 0.3) - F.relu(-x - 0.3),
        lambda x: F.relu(aten.sub.Scalar(x, 0.15, 2)) - F.relu(aten.rsub.Scalar(x, -0.3, 1)),
        lambda x: torch.where(x > 0.3, x - 0.3, torch.where(x < -0.3, x + 0.3, 0 * x)),
    ],
    "hardshrink(lambd=0.4)": [lambda x: x * (x.abs() > 0.4), lambda x: F.hardshrink(x, 0.4)],
    "leaky_relu(negative_slope=0.2)": [lambda x: torch.where(x > 0, x, 0.2 * x), lambda x: F.leaky_relu(x, 0.2, True)],
    "elu(alpha=0.7)": [
        lambda x: torch.where(x > 0, x, 0.7 * torch.expm1(x)),
        lambda x: F.elu(x, alpha=0.7),
        lambda x: aten.elu(x, 0.7),
        lambda x: aten.elu.default(x, 0.7, 1, 1.0),
    ],
    "selu": [lambda x: F.selu(x), lambda x: aten.elu(x, 1.6732632423543772, 1.0507009873554805)],
    "tanhshrink": [lambda x: x - torch.tanh(x), lambda x: torch.add(x, torch.tanh(x), alpha=-1)],
    "hardsigmoid": [lambda x: F.relu6(x + 3) / 6, lambda x: F.relu6(aten.add.Scalar(x, 1.5, 2)) / 6],
    "sin(omega=1.0)": [torch.sin, lambda x: x.sin()],
    "sin(omega=30.0)": [lambda x: torch.sin(30 * x), lambda x: (x * 30).sin(), lambda x: torch.sin(15 * x + 15 * x)],
    "hardtanh(min_val=-2.0, max_val=0.5)": [lambda x: F.hardtanh(x, -2.0, 0.5), lambda x: aten.hardtanh(x, -2, 0.5)],
    "softplus(beta=2.0, threshold=3.0)": [lambda x: aten.softplus.default(x, 2.0, 3.0)],
}


@pytest.mark.parametrize(
    ("activation", "spelling"), [(name, spelling) for name, all_ in SPELLINGS.items() for spelling in all_]
)
def test_spellings_of_an_activation_are_recognized(activation, spelling):
    noting = assert_same(lambda x: spelling(F.linear(x, W)), [rand(4, 6)])
    assert noting.ops == [f"linear_act({activation})"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.clamp(x, min=0),  # its derivative at 0 is 1 or 0, as torch has it
        lambda x: torch.maximum(x, torch.zeros_like(x)),  # ... 1/2
        lambda x: x.clamp(0, 6),
        *([lambda x: x - x.clamp(-0.3, 0.3)] * (not CLAMP_PASSES_BOUNDS)),  # its derivative at 0.3 is 1
        lambda x: torch.where(x > 0.3, x - 0.3, torch.where(x < -0.3, x + 0.3, 0.0)),  # no NaN where x has one
        lambda x: F.relu(x - 0.3) - F.relu(-x - 0.2),
        lambda x: x * torch.sigmoid(1.7 * x + 0.1),
        lambda x: x * torch.tanh(F.softplus(x, beta=2, threshold=3)) ** 2,
        lambda x: 0.5 * x * (1 + torch.erf(x / 1.4)),
        lambda x: 0.5 * x * (1 + torch.erf(x * 0.70710678)),  # not exact enough for float64
        lambda x: x - 0.5 * torch.tanh(x),
        lambda x: torch.add(x, torch.tanh(x), alpha=-2),
        lambda x: torch.div(x, 1 + torch.exp(-x), rounding_mode="floor"),
        lambda x: x * torch.sigmoid(x.flip(0)),
        lambda x: x * torch.sigmoid(x[:1]),
        lambda x: x**3,
        lambda x: x * (x.abs() > float("nan")),
        lambda x: torch.where(x > 0, x, float("inf") * x),
        lambda x: torch.relu((x + 12582912.0) - 12582912.0),  # rounded
        lambda x: aten.elu(x, 1.0, 2.0),
        lambda x: aten.elu.default(x, 0.7, 1, 3.0),
    ],
)
def test_other_functions_are_left(function):
    noting = assert_same(lambda x: function(F.linear(x, W)), [rand(4, 6)])
    assert noting.ops == []


def test_constants_of_eight_digits_are_exact_enough_for_float32():
    def function(x):
        x = F.linear(x, W.float())
        return 0.5 * x * (1 + torch.erf(x * 0.70710678))

    noting = assert_same(function, [rand(4, 6, dtype=torch.float32)], tolerance=1e-5)
    assert noting.ops == ["linear_act(gelu)"]


@pytest.mark.parametrize(("name", "formula"), [(name, f) for name, formulas in FORMULAS.items() for f in formulas])
def test_formulas_are_the_activation_and_its_derivative_everywhere(name, formula):
    params = [0.3] * len(PARAMETERS[name])
    special = [math.nan, 0.0, -0.0, 0.3, -0.3, 1.0, -1.0, 3.0, -3.0, 6.0, -6.0, 20.0, -20.0, 40.0, -40.0]
    x = torch.cat([torch.tensor(special, dtype=torch.float64), rand(200), 5 * rand(200)]).requires_grad_()
    expected, actual = formula(x, *params), getattr(functional, name)(x, *params)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14, equal_nan=True)
    (expected_gradient,), (gradient,) = (torch.autograd.grad(y.sum(), x) for y in (expected, actual))
    torch.testing.assert_close(gradient[1:], expected_gradient[1:], rtol=1e-11, atol=1e-13)  # NaN by itself
