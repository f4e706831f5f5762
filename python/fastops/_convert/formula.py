"""What a module computes, read from the source of its ``forward``.

A block of a model is recognized by its formula and not by the name of its class: Hugging Face alone has hundreds of
classes with the feed-forward block of LLaMA, and the next release may change what one of them computes. Only straight
lines of code are read; where there is anything else, the module is left as it is.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn


class Attribute(NamedTuple):
    """The value that an attribute of the module has when ``forward`` runs."""

    name: str


class Function(NamedTuple):
    """A function that ``forward`` calls with a tensor and keywords: constants, or attributes of the module."""

    function: Callable[..., Any]
    keywords: tuple[tuple[str, Any], ...]
    text: str

    def __str__(self) -> str:
        return self.text


class Gate(NamedTuple):
    """``activation(gate(x)) * up(x)``: three steps, or what they call."""

    gate: Any
    activation: Any
    up: Any


class PackedGate(NamedTuple):
    """``activation(gate) * up`` of the two halves of the last dimension."""

    activation: Any
    gate_last: bool


# What is done to a tensor: an attribute of the module is called, or one of the above.
Step = str | Function | Gate | PackedGate


class Formula(NamedTuple):
    """What a module computes: one step after another."""

    steps: tuple[Step, ...]
    attributes: tuple[tuple[str, Any], ...] = ()  # of the module, that the formula holds for
    cast: bool = False  # there is a cast between the steps, which does nothing where all have one dtype

    def __str__(self) -> str:
        text, where = "x", ""
        for step in self.steps:
            if isinstance(step, Gate):
                text = f"{step.activation}({step.gate}({text})) * {step.up}({text})"
            elif isinstance(step, PackedGate):
                gate, up = ("b", "a") if step.gate_last else ("a", "b")
                where = f", a, b = {text}.chunk(2, -1)"
                text = f"{step.activation}({gate}) * {up}"
            else:
                text = f"{step}({text})"
        return text + where


class Unreadable(Exception):  # noqa: N818  (no error: the reason why a module is left)
    """The formula of a module cannot be read; the message is a clause that says why."""


def read(module: nn.Module) -> Formula | None:
    """The formula of a module; None for a Sequential, whose layers one by one are its formula.

    Raises:
        Unreadable: its ``forward`` is more than one step after another.
    """
    if "forward" in module.__dict__:
        raise Unreadable("the module has a forward of its own, that is not its class's")
    kind: Any = type(module)
    forward = kind.forward
    if forward is nn.Sequential.forward and kind.__iter__ is nn.Sequential.__iter__:
        return None
    if not isinstance(forward, types.FunctionType):
        raise Unreadable("its forward is not a Python function")
    return _Reader(module, forward).read(_definition(forward.__code__))


@functools.cache
def _definition(code: types.CodeType) -> ast.FunctionDef:
    try:
        parsed = ast.parse(textwrap.dedent(inspect.getsource(code))).body[0]
    except (OSError, TypeError, SyntaxError):
        raise Unreadable("the source of its forward is not available") from None
    if not isinstance(parsed, ast.FunctionDef):
        raise Unreadable("its forward is not a plain method")
    return parsed


class _Half(NamedTuple):
    """One of the halves of the last dimension."""

    number: int


_Chain = tuple[Step | _Half, ...]  # the value of an expression: the steps that lead to it


class _Reader:
    """Evaluates the statements of a ``forward``; a value is the steps that lead from the input to it."""

    def __init__(self, module: nn.Module, forward: types.FunctionType) -> None:
        self.module = module
        self.globals = forward.__globals__
        self.values: dict[str, _Chain | list[_Chain]] = {}
        self.attributes: dict[str, Any] = {}
        self.calls = 0
        self.cast = False

    def read(self, definition: ast.FunctionDef) -> Formula:
        arguments = definition.args
        names = [argument.arg for argument in arguments.posonlyargs + arguments.args]
        if len(names) != 2 or arguments.vararg or arguments.kwonlyargs or arguments.kwarg:
            raise Unreadable("its forward takes more than one tensor")
        self.self_name, argument = names
        self.values[argument] = ()
        for statement in definition.body:
            if isinstance(statement, ast.Return) and statement is definition.body[-1] and statement.value:
                return self.formula(self.chain(statement.value), statement)
            self.statement(statement)
        raise Unreadable("its forward does not end with return")

    def formula(self, chain: _Chain, statement: ast.stmt) -> Formula:
        """The formula, if nothing was computed besides."""
        steps = tuple(step for step in chain if not isinstance(step, _Half))
        calls = sum(3 if isinstance(step, Gate) else 1 for step in steps)
        if len(steps) != len(chain) or calls != self.calls:
            raise self.unreadable(statement)
        return Formula(steps, tuple(self.attributes.items()), self.cast)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Constant()):  # the docstring
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.values[name] = self.value(value)
            case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=first), ast.Name(id=second)])], value=value):
                halves = self.value(value)
                if not isinstance(halves, list):
                    raise self.unreadable(node)
                self.values[first], self.values[second] = halves
            case ast.If(test=ast.BoolOp(op=ast.And(), values=tests), orelse=[]) if any(map(self.is_cast, tests)):
                self.cast = True
            case _:
                raise self.unreadable(node)

    def is_cast(self, node: ast.expr) -> bool:
        """Whether it is ``x.dtype != self.layer.weight.dtype``."""
        match node:
            case ast.Compare(
                left=ast.Attribute(value=ast.Name(id=name), attr="dtype"),
                ops=[ast.NotEq()],
                comparators=[
                    ast.Attribute(value=ast.Attribute(value=ast.Attribute(value=owner), attr="weight"), attr="dtype")
                ],
            ):
                return name in self.values and self.is_self(owner)
        return False

    def chain(self, node: ast.expr) -> _Chain:
        value = self.value(node)
        if isinstance(value, list):
            raise self.unreadable(node)
        return value

    def value(self, node: ast.expr) -> _Chain | list[_Chain]:
        match node:
            case ast.Name(id=name) if name in self.values:
                return self.values[name]
            case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[argument], keywords=[]) if self.is_self(
                owner
            ):
                return self.call(argument, name)
            case ast.Call(func=ast.Attribute(value=value, attr="chunk"), args=[ast.Constant(value=2), *rest]):
                return self.halves(node, value, [*rest, *(keyword.value for keyword in node.keywords)])
            case ast.Subscript(value=value, slice=ast.Constant(value=int(index))) if index in (0, 1):
                halves = self.value(value)
                if isinstance(halves, list):
                    return halves[index]
            case ast.Call(func=function, args=[argument], keywords=keywords):
                values = tuple(self.keyword(keyword) for keyword in keywords)
                return self.call(argument, Function(self.look_up(function), values, ast.unparse(function)))
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                first, second = self.chain(left), self.chain(right)
                if product := _gate(first, second) or _gate(second, first):
                    return product
            case ast.IfExp(test=ast.Attribute(value=owner, attr=name), body=body, orelse=orelse) if self.is_self(owner):
                return self.value(body if self.attribute(name) else orelse)
        raise self.unreadable(node)

    def call(self, argument: ast.expr, step: Step) -> _Chain:
        chain = self.chain(argument)
        self.calls += 1
        return (*chain, step)

    def halves(self, node: ast.expr, value: ast.expr, dims: list[ast.expr]) -> list[_Chain]:
        if len(dims) != 1 or self.constant(dims[0]) != -1:
            raise self.unreadable(node)
        chain = self.chain(value)
        return [(*chain, _Half(0)), (*chain, _Half(1))]

    def keyword(self, node: ast.keyword) -> tuple[str, Any]:
        if node.arg is None:
            raise self.unreadable(node)
        match node.value:
            case ast.Attribute(value=owner, attr=name) if self.is_self(owner):
                return node.arg, Attribute(name)
        return node.arg, self.constant(node.value)

    def constant(self, node: ast.expr) -> Any:
        match node:
            case ast.Attribute(value=owner, attr=name) if self.is_self(owner):
                return self.attribute(name)
        try:
            return ast.literal_eval(node)
        except ValueError:
            raise self.unreadable(node) from None

    def attribute(self, name: str) -> Any:
        """An attribute of the module that decides what is computed."""
        value = getattr(self.module, name, None)
        if not isinstance(value, (bool, int, float, str, type(None))):
            raise Unreadable(f"its forward depends on self.{name}")
        self.attributes[name] = value
        return value

    def look_up(self, node: ast.expr) -> Any:
        """A global function, or one of a module."""
        match node:
            case ast.Name(id=name) if name in self.globals:
                return self.globals[name]
            case ast.Name(id=name) if hasattr(builtins, name):
                return getattr(builtins, name)
            case ast.Attribute(value=owner, attr=name) if hasattr(found := self.look_up(owner), name):
                return getattr(found, name)
        raise self.unreadable(node)

    def is_self(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self.self_name

    def unreadable(self, node: ast.AST) -> Unreadable:
        line = ast.unparse(node).splitlines()[0]
        return Unreadable(f"its forward has `{line if len(line) <= 80 else line[:77] + '...'}`")


def _gate(gate: _Chain, up: _Chain) -> _Chain:
    """The product of two chains that part in their last steps; () if it is not a gate."""
    if len(gate) < 2 or not up or gate[:-2] != up[:-1]:
        return ()
    projection, activation, other = gate[-2], gate[-1], up[-1]
    if isinstance(activation, _Half):
        return ()
    if isinstance(projection, _Half) and isinstance(other, _Half) and projection.number != other.number:
        return (*up[:-1], PackedGate(activation, gate_last=projection.number == 1))
    if isinstance(projection, _Half) or isinstance(other, _Half):
        return ()
    return (*up[:-1], Gate(projection, activation, other))
