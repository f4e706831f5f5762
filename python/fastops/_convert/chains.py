"""Calls within calls, and methods of what is called: ``f(g(x))``, ``g(x).relu()``."""

from __future__ import annotations

import ast
import functools
import operator
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from .._resolve import TENSOR_METHODS

# Of numbers that are known before the call.
OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Chain(NamedTuple):
    """Calls within calls: ``f(g(x))``."""

    steps: list[ast.expr]  # what is called, the first one first
    input: ast.expr


def with_input(statement: Any, value: ast.expr) -> Any:
    """A statement whose chain begins with ``value``."""
    node = statement.value
    while (inner := _link(node)) and _link(inner[1]):
        node = inner[1]
    if _is_method(node):
        node.func.value = value
    else:
        node.args[0] = value
    return statement


def innermost(statement: Any) -> ast.expr:
    """The first call of a statement's chain."""
    node: Any = statement.value
    while len(links(node).steps) > 1:
        node = node.args[0] if node.args else node.func.value
    return node


def reads(node: ast.expr, name: str) -> int:
    """How often an expression reads a variable."""
    return sum(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))


def links(node: ast.expr) -> Chain:
    """The calls within calls of an expression, with what the innermost one is called with."""
    steps = []
    while link := _link(node):
        steps.append(link[0])
        node = link[1]
    return Chain(steps[::-1], node)


def _gate(first: ast.expr, second: ast.expr, before_up: int) -> tuple[ast.expr, ast.expr] | None:
    gate, up = links(first), links(second)
    match gate.input, up.input:
        case ast.Name(id=name), ast.Name(id=other) if name == other and len(gate.steps) == 2 and len(up.steps) == 1:
            parts = [*gate.steps, *up.steps, ast.Constant(before_up)]
            return ast.Call(ast.Name("_fastops_gate", ast.Load()), parts, []), gate.input
    return None


def _link(node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """What is called, and the first argument; the other arguments are bound to what is called."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _gate(left, right, 2) or _gate(right, left, 0)
        case ast.Call(func=ast.Call(func=ast.Name(id="_fastops_packed")) as unit, args=[value]):
            return unit, value
        case ast.Call(func=function, args=[ast.expr() as first, *others], keywords=keywords) if (
            _is_path(function)
            and not isinstance(first, ast.Starred)
            and all(map(_is_simple, others))
            and all(keyword.arg and _is_simple(keyword.value) for keyword in keywords)
        ):
            if not others and not keywords:
                return function, first
            return ast.Call(ast.Name("_fastops_bind", ast.Load()), [function, *others], keywords), first
        case ast.Call(func=ast.Attribute(value=input, attr=name)) if _is_method(node):
            return ast.Subscript(ast.Name("_fastops_methods", ast.Load()), ast.Constant(name), ast.Load()), input
    return None


def _is_method(node: ast.expr) -> bool:
    """Whether it is an activation as a method: ``x.relu()``."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name), args=[], keywords=[]):
            return name in TENSOR_METHODS
    return False


def _is_path(node: ast.expr) -> bool:
    match node:
        case ast.Name():
            return True
        case ast.Attribute(value=value):
            return _is_path(value)
        case ast.Subscript(value=value, slice=index):
            return _is_path(value) and _is_simple(index)
    return False


def _is_simple(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_simple(node.operand)
    return isinstance(node, ast.Constant) or _is_path(node)


def bind(function: Any, *values: Any, **keywords: Any) -> Any:
    """A function with all its arguments but the first, as keywords where their names are known."""
    if values:
        names = _parameters(function)
        if len(values) > len(names):
            return functools.partial(_call_with, function, values, keywords)
        keywords = dict(zip(names, values, strict=False)) | keywords
    return functools.partial(function, **keywords)


def _call_with(function: Any, values: tuple[Any, ...], keywords: dict[str, Any], input: Any) -> Any:
    return function(input, *values, **keywords)


def _parameters(function: Any) -> tuple[str, ...]:
    """The names of the arguments after the first, of a function of torch.nn.functional."""
    if function is nn.functional.linear:
        return "weight", "bias"
    if not isinstance(function, types.FunctionType) or function.__module__ != "torch.nn.functional":
        return ()
    code = function.__code__
    return code.co_varnames[1 : code.co_argcount]


def is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def has_effects(node: ast.expr) -> bool:
    """Whether there is more in a condition than comparisons of attributes and isinstance."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and ast.unparse(part.func) != "isinstance":
            return True
        if isinstance(part, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
            return True
    return False
