"""The activations as people spell them out, and the recognition of an elementwise function as one of them.

A formula is listed where its value and its derivative are those of the activation everywhere: where the derivative
jumps, and its value at NaN. (``torch.clamp(x, min=0)`` is not ReLU if its derivative at 0 is 1. ``torch.where(x > l,
x - l, 0)`` makes a NaN 0.) Only where a formula overflows on the way does it give something else, or its derivative;
the sign of a zero is the activation's (``x * (abs(x) > l)`` has -0.0 for what is negative), and so is the derivative at
NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import fx

from .._resolve import PARAMETERS
from .calls import ELEMENTWISE, Call, call_of
from .polynomials import Polynomial, X


def _slope_at_bound() -> float:
    """The derivative of torch.clamp where its argument is a bound: 1 up to torch 2.13, 0 from 2.14 on."""
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.zeros((), device="cpu", requires_grad=True)
        return float(torch.autograd.grad(x.clamp(min=0), x)[0])


CLAMP_PASSES_BOUNDS = _slope_at_bound() == 1

# Each is a function of x, or of x and the activation's one parameter.
FORMULAS: dict[str, Sequence[Callable[..., Any]]] = {
    "sigmoid": [lambda x: 1 / (1 + torch.exp(-x))],
    "silu": [lambda x: x * torch.sigmoid(x), lambda x: x / (1 + torch.exp(-x))],
    "quick_gelu": [lambda x: x * torch.sigmoid(1.702 * x)],
    "gelu": [lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))],
    "gelu_tanh": [
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        lambda x: x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)),
    ],
    "mish": [lambda x: x * torch.tanh(F.softplus(x)), lambda x: x * torch.tanh(torch.log1p(torch.exp(x)))],
    "tanhshrink": [lambda x: x - torch.tanh(x)],
    "relu_squared": [lambda x: F.relu(x) ** 2],
    "hardsigmoid": [lambda x: F.relu6(x + 3) / 6],
    "softshrink": [
        *([lambda x, lambd: x - torch.clamp(x, -lambd, lambd)] if CLAMP_PASSES_BOUNDS else []),
        lambda x, lambd: torch.sign(x) * F.relu(torch.abs(x) - lambd),
        lambda x, lambd: F.relu(x - lambd) - F.relu(-x - lambd),
        lambda x, lambd: torch.where(torch.abs(x) > lambd, x - lambd * torch.sign(x), x * 0),
        lambda x, lambd: torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, x * 0)),
    ],
    "hardshrink": [
        lambda x, lambd: x * (torch.abs(x) > lambd),
        lambda x, lambd: torch.where(torch.abs(x) > lambd, x, x * 0),
    ],
    "sin": [lambda x, omega: torch.sin(omega * x)],
    "leaky_relu": [lambda x, negative_slope: torch.where(x > 0, x, negative_slope * x)],
    "elu": [
        lambda x, alpha: torch.where(x > 0, x, alpha * (torch.exp(x) - 1)),
        lambda x, alpha: torch.where(x > 0, x, alpha * torch.expm1(x)),
    ],
}


# What ``aten.elu`` is called with for it: alpha, scale and input_scale.
_SELU = (1.6732632423543772, 1.0507009873554805, 1)


class Activation(NamedTuple):
    """One of fastops' activations, with the values of its parameters."""

    name: str
    params: tuple[float, ...] = ()


IDENTITY = Activation("identity")


def recognize(function: Polynomial, dtype: torch.dtype) -> Activation | None:
    """The activation that an elementwise function is, its constants being exact for the dtype."""
    if function == X:
        return IDENTITY
    if function.single and function.single[0] in PARAMETERS:
        name, (argument, *params) = function.single
        values = tuple(value for param in params if (value := param.constant) is not None)
        if argument == X:
            return Activation(name, values) if len(values) == len(params) else None
    if not all(map(math.isfinite, function.numbers())):
        return None
    digits = 13 if dtype is torch.float64 else 7
    key = function.key(digits)
    for name, formula in _formulas().get(frozenset(function.names()), ()):
        numbers = {sign * number for number in function.numbers() for sign in (1, -1)}
        choices: list[tuple[float, ...]] = [(number,) for number in numbers] if PARAMETERS[name] else [()]
        for choice in choices:
            if name == "softshrink" and choice[0] < 0:
                continue
            if _polynomial_of(formula, *choice).key(digits) == key:
                return Activation(name, choice)
    return None


@functools.cache
def _formulas() -> dict[frozenset[str], list[tuple[str, fx.Graph]]]:
    """The names of activations and their formulas, by the functions that are in them."""
    found: dict[frozenset[str], list[tuple[str, fx.Graph]]] = {}
    for name, formulas in FORMULAS.items():
        for formula in formulas:
            graph = fx.Tracer().trace(formula)
            functions = frozenset(_polynomial_of(graph, *[0.5] * len(PARAMETERS[name])).names())
            found.setdefault(functions, []).append((name, graph))
    return found


def _polynomial_of(formula: fx.Graph, *params: float) -> Polynomial:
    values: dict[Any, Polynomial] = {}
    arguments = iter([X, *map(Polynomial.number, params)])
    for node in formula.nodes:
        if node.op == "placeholder":
            values[node] = next(arguments)
        elif call := call_of(node):
            value = apply(call, values.get)
            assert value is not None, f"{node.format_node()} is not elementwise"
            values[node] = value
    return values[formula.output_node().args[0]]


def apply(call: Call, value_of: Callable[[Any], Polynomial | None]) -> Polynomial | None:
    """The function that a call is, given those that its operands are; None if it is not elementwise."""

    def value(operand: Any) -> Polynomial | None:
        number = isinstance(operand, (int, float)) and not isinstance(operand, bool)
        return Polynomial.number(operand) if number else value_of(operand)

    name, arguments, keywords = call.name, list(call.arguments), dict(call.keywords)
    if name in PARAMETERS:
        if name == "gelu" and keywords.pop("approximate", "none") == "tanh":
            name = "gelu_tanh"
        elif name == "elu":
            scales = keywords.pop("scale", 1), keywords.pop("input_scale", 1)
            if (keywords.get("alpha"), *scales) == _SELU:
                name, keywords = "selu", {}
            elif scales != (1, 1):
                return None
        arguments += [keywords.pop(parameter, default) for parameter, default in PARAMETERS[name].items()]
    elif name == "clamp":
        arguments += [keywords.pop(bound, None) for bound in ("min", "max")][len(arguments) - 1 :]
    elif name not in ELEMENTWISE:
        return None
    elif name in ("add", "sub", "rsub") and "alpha" in keywords:
        arguments.append(keywords.pop("alpha"))
    values = [value(argument) for argument in arguments]
    if keywords or any(value is None for value in values):
        return None
    return _RULES.get(name, functools.partial(Polynomial.function, name))(*values)


def _power(base: Polynomial, exponent: Polynomial) -> Polynomial:
    if exponent.constant in (1.0, 2.0, 3.0, 4.0):
        return functools.reduce(Polynomial.__mul__, [base] * int(exponent.constant))
    return Polynomial.function("pow", base, exponent)


def _quotient(a: Polynomial, b: Polynomial) -> Polynomial:
    return a.scaled(1 / b.constant) if b.constant else a * Polynomial.function("reciprocal", b)


_ONE = Polynomial.number(1)
_RULES: dict[str, Callable[..., Polynomial]] = {
    "add": lambda a, b, alpha=_ONE: a + alpha * b,
    "div": _quotient,
    "identity": lambda a: a,
    "lt": lambda a, b: Polynomial.function("gt", b, a),
    "mul": lambda a, b: a * b,
    "neg": lambda a: a.scaled(-1),
    "pow": _power,
    "reciprocal": lambda a: _quotient(Polynomial.number(1), a),
    "rsub": lambda a, b, alpha=_ONE: b + alpha * a.scaled(-1),
    "square": lambda a: a * a,
    "sub": lambda a, b, alpha=_ONE: a + alpha * b.scaled(-1),
}
