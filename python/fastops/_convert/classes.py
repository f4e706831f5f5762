"""Classes of others that are a linear layer, an activation or a gated unit: known by what ``forward`` computes.

What it returns is brought into a normal form, a sum of products of what cannot be taken apart (the input, a parameter,
a function of such a sum), and compared with that of the formulas below. So ``0.5 * x * (1 + torch.erf(x / 2 ** 0.5))``
is a GELU however it is written.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import math
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.compiler import is_compiling

from .._eager import know, knows
from .._resolve import PARAMETERS, TENSOR_METHODS, find
from .formula import Unreadable
from .source import MOST_KEPT, definition_of, names_around

# A sum of products: the factors of each, in order, and its number.
Sum = tuple[tuple[tuple[Any, ...], float], ...]


def _sum(*terms: tuple[tuple[Any, ...], float]) -> Sum:
    numbers: dict[tuple[Any, ...], float] = {}
    for factors, number in terms:
        factors = tuple(sorted(factors, key=repr))
        numbers[factors] = numbers.get(factors, 0.0) + number
    return tuple(sorted(((factors, number) for factors, number in numbers.items() if number), key=repr))


def _are_equal(a: Sum, b: Sum) -> bool:
    """Whether they are, but for the rounding of their numbers in float64."""
    return bool(_rounded(a) == _rounded(b))


def _rounded(part: Any) -> Any:
    if isinstance(part, tuple):
        return tuple(map(_rounded, part))
    return float(f"{part:.13g}") if isinstance(part, float) else part


def _of(*atom: Any) -> Sum:
    return _sum(((atom,), 1.0))


def _times(a: Sum, b: Sum) -> Sum:
    return _sum(*[(x + y, m * n) for x, m in a for y, n in b])


def _number(value: Sum) -> float:
    """Of a sum that is only a number."""
    match value:
        case ():
            return 0.0
        case (((), number),):
            return number
    raise Unreadable("its forward has a power or an argument that is no number")


def _power(base: Sum, exponent: Sum) -> Sum:
    number = _number(exponent)
    if not base or base[0][0] == ():
        return _sum(((), _number(base) ** number))
    if number not in (2, 3, 4):
        raise Unreadable(f"its forward has a power of {number}")
    return functools.reduce(_times, [base] * int(number))


def _over(a: Sum, b: Sum) -> Sum:
    is_number = len(b) == 1 and b[0][0] == ()
    return _times(a, _sum(((), 1 / _number(b))) if is_number else _of("reciprocal", b))


def _addmm(bias: Sum, a: Sum, b: Sum) -> Sum:
    return _of("addmm", bias, a, b) if bias else _of("matmul", a, b)


_FUNCTIONS: dict[Any, Callable[..., Sum]] = {
    F.linear: lambda input, weight, bias=(): _addmm(bias, input, _of("transposed", weight)),
    torch.addmm: _addmm,
    torch.mul: _times,
    torch.add: lambda a, b: _sum(*a, *b),
    torch.pow: _power,
    torch.square: lambda a: _times(a, a),
    math.sqrt: lambda a: _sum(((), math.sqrt(_number(a)))),
    **dict.fromkeys((torch.matmul, torch.mm), functools.partial(_of, "matmul")),
    torch.t: functools.partial(_of, "transposed"),
    torch.exp: functools.partial(_of, "exp"),
    torch.erf: functools.partial(_of, "erf"),
}
_METHODS = {name: getattr(torch, name) for name in "matmul mm t mul add pow square exp erf".split()}
_OPERATORS: dict[type[ast.operator], Callable[[Sum, Sum], Sum]] = {
    ast.Add: lambda a, b: _sum(*a, *b),
    ast.Sub: lambda a, b: _sum(*a, *_times(b, _sum(((), -1.0)))),
    ast.Mult: _times,
    ast.Div: _over,
    ast.Pow: _power,
    ast.MatMult: functools.partial(_of, "matmul"),
}
INPUT = _of("input")
_EVEN = _of("even")  # the input, if it has two halves; the ops of gated units refuse others
HALVES = _of("half", 0), _of("half", 1)
_CHUNKS = ".chunk(2, dim=-1)", ".chunk(2, -1)"
_ODD = "shape[-1] % 2", "size(-1) % 2"


class Evaluator:
    """Evaluates statements; the values of names are sums, functions and modules of Python."""

    def __init__(
        self, names: dict[str, Any], owner: str = "", has_bias: bool = True, attributes: dict[str, Any] | None = None
    ) -> None:
        self.names = names
        self.owner = owner
        self.has_bias = has_bias
        self.attributes = attributes or {}

    def run(self, body: list[ast.stmt]) -> Sum | None:
        for i, statement in enumerate(body):
            match statement:
                case ast.Expr(value=ast.Constant()):
                    pass
                case ast.If(test=test, body=[ast.Return(value=ast.expr() as special)]) if self.asks_for_device(test):
                    value = self.run(statement.orelse or body[i + 1 :])
                    if value is None or self.in_float32(special) != value:
                        raise self.unreadable(statement)
                    return value
                case ast.Return(value=ast.expr() as value):
                    return self.sum(value)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.names[name] = self.sum(value)
                case ast.Assign(
                    targets=[ast.Tuple(elts=[ast.Name(id=first), ast.Name(id=second)])],
                    value=ast.Call(func=ast.Attribute(value=whole, attr="chunk")) as call,
                ) if ast.unparse(call).endswith(_CHUNKS) and self.sum(whole) in (INPUT, _EVEN):
                    self.names[first], self.names[second] = HALVES
                case ast.If(test=test, body=[ast.Raise()], orelse=[]) if name := self.asks_for_odd(test):
                    self.names[name] = _EVEN
                case ast.If(test=test, body=then, orelse=orelse) if (has := self.asks_for_bias(test)) is not None:
                    result = self.run(then if has == self.has_bias else orelse)
                    if result is not None:
                        return result
                case _:
                    raise self.unreadable(statement)
        return None

    def asks_for_bias(self, test: ast.expr) -> bool | None:
        text = ast.unparse(test)
        return {f"{self.owner}.bias is None": False, f"{self.owner}.bias is not None": True}.get(text)

    def asks_for_odd(self, test: ast.expr) -> str:
        """The input, where a condition is that it has no two halves; else ""."""
        name, _, what = ast.unparse(test).removesuffix(" != 0").partition(".")
        return name if what in _ODD and self.names.get(name) == INPUT else ""

    def asks_for_device(self, test: ast.expr) -> bool:
        """Whether a condition is for nothing but tensors of one kind of devices."""
        match test:
            case ast.BoolOp(op=ast.And(), values=[first, *others]):
                calls = [other for other in others if isinstance(other, ast.Call) and not other.keywords]
                arguments = [argument for call in calls for argument in call.args]
                is_plain = len(calls) == len(others) and all(isinstance(value, ast.Constant) for value in arguments)
                return is_plain and self.asks_for_device(first)
            case ast.Compare(
                left=ast.Attribute(value=ast.Attribute(value=ast.Name(id=name), attr="device"), attr="type"),
                ops=[ast.Eq()],
                comparators=[ast.Constant()],
            ):
                return self.names.get(name) == INPUT
        return False

    def in_float32(self, node: ast.expr) -> Sum:
        """What is computed in float32 and rounded to the input's dtype, as if it was computed in that."""
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr="to")) if _text_of_cast(node):
                name = _text_of_cast(node).removesuffix(".dtype")
                if self.names.get(name) != INPUT:
                    raise self.unreadable(node)
                replaced = _WithoutCast(name).visit(copy.deepcopy(inner))
                return self.sum(replaced)
        return self.sum(node)

    def sum(self, node: ast.expr) -> Sum:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return _sum(((), float(number)))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _times(self.sum(operand), _sum(((), -1.0)))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self.sum(left), self.sum(right))
            case ast.Attribute(value=ast.Name(id=name), attr="weight" | "bias" as parameter) if name == self.owner:
                return _of(parameter) if parameter == "weight" or self.has_bias else ()
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == self.owner and isinstance(
                self.attributes.get(attribute), (int, float)
            ):
                return _sum(((), float(self.attributes[attribute])))
            case ast.Attribute(value=matrix, attr="T") if not isinstance(matrix, ast.Name):
                return _of("transposed", self.sum(matrix))
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=args, keywords=[]) if (
                name in _METHODS or name in TENSOR_METHODS
            ) and not self.is_path_of_module(value):
                function = TENSOR_METHODS.get(name) or _METHODS[name]
                return self.call(function, [self.sum(value), *map(self.sum, args)], {})
            case ast.Call(func=function, args=args, keywords=keywords):
                found = self.known(function)
                named = {str(keyword.arg): keyword.value for keyword in keywords}
                return self.call(found, [self.sum(argument) for argument in args], named)
        value = self.known(node)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return _sum(((), float(value)))
        if not isinstance(value, tuple):
            raise self.unreadable(node)
        return value

    def call(self, function: Any, arguments: list[Sum], keywords: dict[str, ast.expr]) -> Sum:
        known = _FUNCTIONS.get(function) if isinstance(function, types.BuiltinFunctionType) else None
        if known is not None and not keywords:
            try:
                return known(*arguments)
            except TypeError:
                raise Unreadable("its forward calls a function with other arguments") from None
        values = {name: self.keyword(value) for name, value in keywords.items()}
        found = find(functools.partial(function, **values) if values else function)
        if found is None or len(arguments) != 1 or values.get("inplace"):
            raise Unreadable("its forward calls what is no known function")
        return _of("activation", found[0], tuple(found[1]), arguments[0])

    def keyword(self, node: ast.expr) -> Any:
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == self.owner and name in self.attributes:
                return self.attributes[name]
        return ast.literal_eval(node)

    def is_path_of_module(self, node: ast.expr) -> bool:
        try:
            return isinstance(self.known(node), types.ModuleType)
        except Unreadable:
            return False

    def known(self, node: ast.expr) -> Any:
        """The value of a name, or of an attribute of a Python module."""
        match node:
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Attribute(value=owner, attr=name):
                module = self.known(owner)
                if isinstance(module, types.ModuleType) and hasattr(module, name):
                    return getattr(module, name)
        raise self.unreadable(node)

    def unreadable(self, node: ast.AST) -> Unreadable:
        return Unreadable(f"its forward has `{ast.unparse(node).splitlines()[0]}`")


def _text_of_cast(node: ast.expr) -> str:
    """The dtype of ``x.to(dtype)`` or ``x.to(dtype=dtype)``; "" of something else."""
    match node:
        case ast.Call(func=ast.Attribute(attr="to"), args=[dtype], keywords=[]):
            return ast.unparse(dtype)
        case ast.Call(func=ast.Attribute(attr="to"), args=[], keywords=[ast.keyword(arg="dtype", value=dtype)]):
            return ast.unparse(dtype)
    return ""


class _WithoutCast(ast.NodeTransformer):
    """Has a variable in the place of its cast to float32."""

    def __init__(self, name: str) -> None:
        self.name = name

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name) as value, attr="to")) if name == self.name:
                if _text_of_cast(node) == "torch.float32":
                    return value
        return self.generic_visit(node)  # type: ignore[return-value]


_FORMULAS = {
    "gelu": ["0.5 * x * (1 + erf(x / 2 ** 0.5))"],
    "gelu_tanh": ["0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))"],
    "mish": ["x * tanh(softplus(x))"],
    "quick_gelu": ["x * sigmoid(1.702 * x)"],
    "relu_squared": ["relu(x) ** 2"],
    "sigmoid": ["1 / (1 + exp(-x))"],
    "silu": ["x * sigmoid(x)", "x / (1 + exp(-x))"],
}
_LINEARS = ["linear(x, weight, bias)", "linear(x, weight) + bias"]
_NAMES = {
    **{name: getattr(torch, name) for name in "erf exp relu sigmoid tanh".split()},
    **{"softplus": F.softplus, "linear": F.linear, "sqrt": math.sqrt, "pi": math.pi},
    **{name: _of(name) for name in ("weight", "bias")},
}


def _evaluated(formula: str, input: Sum, **names: Any) -> Sum:
    return Evaluator({**_NAMES, "x": input, **names}).sum(ast.parse(formula, mode="eval").body)


def known_activation(value: Sum, input: Sum) -> tuple[str, list[float]] | None:
    match value:
        case (((("activation", name, params, argument),), 1.0),) if argument == input:
            return name, list(params)
        case (((("activation", "sin", (omega,), ((factors, scale),)),), 1.0),) if ((factors, 1.0),) == input:
            return "sin", [omega * scale]
    for name, formulas in _FORMULAS.items():
        if any(_are_equal(value, _evaluated(formula, input)) for formula in formulas):
            return name, list(PARAMETERS[name].values())
    return None


def _gated(value: Sum) -> tuple[str, list[float], bool] | None:
    """The activation of one half, which the other is multiplied with, and whether it is that of the last."""
    for last, (other, gate) in enumerate((HALVES[::-1], HALVES)):
        for factors, _ in value:
            for factor in factors:
                match factor:
                    case ("activation", name, params, argument) if argument == gate and value == _times(
                        other, _of(*factor)
                    ):
                        return name, list(params), bool(last)
        for name, formulas in _FORMULAS.items():
            if any(_are_equal(value, _times(other, _evaluated(formula, gate))) for formula in formulas):
                return name, list(PARAMETERS[name].values()), bool(last)
    return None


class Known(NamedTuple):
    """What the modules of a class are, as far as fastops has it."""

    is_linear: bool = False
    adds_bias: bool = False  # to the product: under autocast, the sum is of another dtype
    activation: tuple[str, list[float]] | None = None
    gated: tuple[str, list[float], bool] | None = None  # its activation, and whether that is of the second half


_NOTHING = Known()
_known: dict[type[nn.Module], Known] = {}


def known_class(kind: type[nn.Module]) -> Known:
    """What the modules of a class are; whether somebody has replaced what it calls is for ``is_untouched``."""
    known = _known.get(kind)
    if known is None:
        if is_compiling():
            return _NOTHING
        known = _read(kind)
        if len(_known) >= MOST_KEPT:  # what is something is not read twice
            for other in [other for other, found in _known.items() if found is _NOTHING]:
                del _known[other]
        _known[kind] = known
    return known


def _read(kind: type[nn.Module]) -> Known:
    forward: Any = inspect.getattr_static(kind, "forward", None)
    if knows(kind) or not isinstance(forward, types.FunctionType) or kind.__module__ not in sys.modules:
        return _NOTHING
    if str(forward.__module__).startswith("torch.nn."):
        return _NOTHING
    try:
        definition = definition_of(forward)
        arguments = definition.args
        names = [argument.arg for argument in arguments.posonlyargs + arguments.args]
        if len(names) != 2 or arguments.vararg or arguments.kwonlyargs or arguments.kwarg:
            return _NOTHING
        around = names_around(forward) | {names[1]: INPUT}
        values = [Evaluator(dict(around), names[0], has_bias).run(definition.body) or () for has_bias in (True, False)]
    except (Unreadable, ValueError, ArithmeticError):
        return _NOTHING
    linears = [[_evaluated(formula, INPUT), _evaluated(formula, INPUT, bias=())] for formula in _LINEARS]
    if values in linears:
        known = Known(is_linear=True, adds_bias=values == linears[1])
    elif values[0] != values[1]:
        return _NOTHING
    elif activation := known_activation(values[0], INPUT):
        known = Known(activation=activation)
    elif gated := _gated(values[0]):
        known = Known(gated=gated)
    else:
        return _NOTHING
    know(kind, own_functions=True)
    return known
