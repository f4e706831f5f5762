"""From the statements of a ``forward`` to a formula.

Read are straight lines of code, loops over lists of modules, and conditions of numbers and strings of the module; where
there is anything else, the module is left as it is.
"""

from __future__ import annotations

import ast
import dataclasses
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from .._resolve import TENSOR_METHODS
from .chains import OPERATORS, has_effects, is_literal
from .formula import Formula, Function, Gate, Halves, Method, PackedGate, Step, Unreadable
from .halves import Halving, half_of_last, halving


class _Call(NamedTuple):
    """A step, and how many were called before."""

    step: Step
    number: int


class _Half(NamedTuple):
    """One of the halves of the last dimension."""

    number: int
    halves: Halves


class Length(NamedTuple):
    """In the place of a list of modules: how many there are."""

    number: int


_Chain = tuple[_Call | _Half, ...]  # the value of an expression: the steps that lead to it


@dataclasses.dataclass(frozen=True)
class _Size:
    """Half of the last dimension of a value."""

    of: _Chain


class Reader:
    """Evaluates the statements of a ``forward``; a value is the steps that lead from the input to it."""

    def __init__(self, code: types.CodeType, value_of: Callable[[str], Any]) -> None:
        self.variables = {*code.co_varnames, *code.co_cellvars}
        self.value_of = value_of
        self.values: dict[str, _Chain | list[_Chain] | _Size] = {}
        self.names: dict[str, Any] = {}  # of loops: numbers, and the steps that modules of lists are
        self.attributes: dict[str, Any] = {}
        self.lengths: dict[str, int] = {}
        self.present: dict[str, None] = {}
        self.calls = 0
        self.cast = False
        self.cast_to: list[str] = []  # the dtypes of these layers, that must be among the steps

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
        steps = tuple(call.step for call in chain if not isinstance(call, _Half))
        calls = sum(3 if isinstance(step, Gate) else 1 for step in steps)
        called = {part for step in steps for part in (step if isinstance(step, Gate) else (step,))}
        if len(steps) != len(chain) or calls != self.calls or not called.issuperset(self.cast_to):
            raise self.unreadable(statement)
        attributes, lengths = tuple(self.attributes.items()), tuple(self.lengths.items())
        return Formula(steps, attributes, self.cast, lengths, tuple(self.present))

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Constant()):  # the docstring
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if (of := self.halved(value)) is not None:
                self.values[name] = of
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name != self.self_name:
                self.values[name] = self.value(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name != self.self_name:
                self.values[name] = self.value(value)
            case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=first), ast.Name(id=second)])], value=value) if (
                self.self_name not in (first, second)
            ):
                halves = self.value(value)
                if not isinstance(halves, list):
                    raise self.unreadable(node)
                self.values[first], self.values[second] = halves
            case ast.If(test=ast.BoolOp(op=ast.And(), values=tests), orelse=[]) if any(
                map(self.is_cast, tests)
            ) and not any(map(has_effects, tests)):
                self.cast = True
            case ast.If(test=test, body=body, orelse=orelse):
                try:
                    condition = self.number(test)
                except Unreadable:
                    raise self.unreadable(node) from None
                for statement in body if condition else orelse:
                    self.statement(statement)
            case ast.For(target=target, iter=over, body=body, orelse=[]):
                for names in self.rounds(target, over):
                    self.names |= names
                    self.values = {name: value for name, value in self.values.items() if name not in names}
                    for statement in body:
                        self.statement(statement)
            case _:
                raise self.unreadable(node)

    def rounds(self, target: ast.expr, over: ast.expr) -> list[dict[str, Any]]:
        """What the names of a loop are in each of its rounds."""
        match target, over:
            case ast.Name(id=name), ast.Call(func=ast.Name(id="range"), args=[count], keywords=[]):
                return [{name: i} for i in range(self.number(count))]
            case ast.Name(id=name), _:
                return [{name: step} for step in self.modules(over)]
            case (
                ast.Tuple(elts=[ast.Name(id=index), ast.Name(id=name)]),
                ast.Call(func=ast.Name(id="enumerate"), args=[each], keywords=[]),
            ):
                return [{index: i, name: step} for i, step in enumerate(self.modules(each))]
        raise self.unreadable(over)

    def modules(self, node: ast.expr) -> list[str]:
        """The modules of a list, or of a part of it, as steps."""
        match node:
            case ast.Attribute(value=owner, attr=name) if self.is_self(owner):
                return [f"{name}[{i}]" for i in range(self.length(name))]
            case ast.Subscript(value=value, slice=ast.Slice(lower=lower, upper=upper, step=None)):
                first: Any = lower and self.number(lower)
                last: Any = upper and self.number(upper)
                return self.modules(value)[first:last]
        raise self.unreadable(node)

    def length(self, name: str) -> int:
        value = self.value_of(name)
        if isinstance(value, Length):
            number = value.number
        elif type(value) is nn.ModuleList:
            number = len(value)
        else:
            raise Unreadable(f"its forward depends on self.{name}, which is no list of modules")
        self.lengths[name] = number
        return number

    def number(self, node: ast.expr) -> Any:
        """A number or a condition that is known before the call."""
        match node:
            case ast.Name(id=name) if isinstance(self.names.get(name), int):
                return self.names[name]
            case ast.Call(func=ast.Name(id="len"), args=[ast.Attribute(value=owner, attr=name)]) if self.is_self(owner):
                return self.length(name)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](self.number(left), self.number(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
                return OPERATORS[type(op)](self.number(left), self.number(right))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self.number(operand)
            case ast.Compare(
                left=ast.Attribute(value=owner, attr=name), ops=[ast.Is() | ast.IsNot() as op], comparators=[other]
            ) if self.is_self(owner) and ast.unparse(other) == "None":
                return self.is_none(name) == isinstance(op, ast.Is)
        return self.constant(node)

    def is_none(self, name: str) -> bool:
        if self.value_of(name) is None:
            self.attributes[name] = None
            return True
        self.present[name] = None
        return False

    def module(self, node: ast.expr) -> str | None:
        """What is called, as a step, where that is a module."""
        match node:
            case ast.Attribute(value=owner, attr=name) if self.is_self(owner):
                self.value_of(name)
                return name
            case ast.Name(id=name) if isinstance(self.names.get(name), str):
                step: str = self.names[name]
                return step
            case ast.Subscript(value=ast.Attribute(value=owner, attr=name), slice=index) if self.is_self(owner):
                length, place = self.length(name), self.number(index)
                if isinstance(place, int) and -length <= place < length:
                    return f"{name}[{place % length}]"
        return None

    def is_cast(self, node: ast.expr) -> bool:
        """Whether it is ``x.dtype != self.layer.weight.dtype``."""
        match node:
            case ast.Compare(
                left=ast.Attribute(value=ast.Name(id=name), attr="dtype"),
                ops=[ast.NotEq()],
                comparators=[
                    ast.Attribute(
                        value=ast.Attribute(value=ast.Attribute(value=owner, attr=layer), attr="weight"), attr="dtype"
                    )
                ],
            ) if self.is_self(owner):
                self.cast_to.append(layer)
                return name in self.values
        return False

    def chain(self, node: ast.expr) -> _Chain:
        value = self.value(node)
        if not isinstance(value, tuple):
            raise self.unreadable(node)
        return value

    def value(self, node: ast.expr) -> _Chain | list[_Chain] | _Size:
        match node:
            case ast.Name(id=name) if name in self.values:
                return self.values[name]
            case ast.Call(func=function, args=[argument], keywords=[]) if step := self.module(function):
                return self.call(argument, step)
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=[], keywords=[]) if (
                name in TENSOR_METHODS and not self.is_self(value)
            ):
                return self.call(value, Method(name))
            case ast.Call() | ast.Subscript() if taken := halving(node):
                return self.halves(node, taken)
            case ast.Subscript(value=value, slice=ast.Constant(value=int(index))) if index in (0, 1):
                halves = self.value(value)
                if isinstance(halves, list) and _is_two(halves[index][-1]):
                    return halves[index]
            case ast.Call(func=function, args=[argument], keywords=keywords):
                return self.call(argument, Function(self.name(function), tuple(map(self.keyword, keywords))))
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                first, second = self.chain(left), self.chain(right)
                if product := _gate(first, second) or _gate(second, first):
                    return product
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self.number(test) else orelse)
        raise self.unreadable(node)

    def call(self, argument: ast.expr, step: Step) -> _Chain:
        chain = self.chain(argument)
        self.calls += 1
        return (*chain, _Call(step, self.calls))

    def halves(self, node: ast.expr, taken: Halving) -> _Chain | list[_Chain]:
        if taken.dim is None or self.constant(taken.dim) != -1:
            raise self.unreadable(node)
        chain = self.chain(taken.value)
        function = taken.function and self.name(taken.function)
        match taken.kind, taken.size:
            case "slices", size:
                halves = Halves("slices", self.size(size, chain))
            case "chunk", size if self.number(size) == 2:
                halves = Halves(function=function)
            case "split", ast.List(elts=[first, second]) | ast.Tuple(elts=[first, second]):
                sizes = self.size(first, chain), self.size(second, chain)
                if sizes[0] != sizes[1]:
                    raise self.unreadable(node)
                halves = Halves("split", sizes[0], True, function)
            case "split", size:
                halves = Halves("split", self.size(size, chain), False, function)
            case _:
                raise self.unreadable(node)
        both: list[_Chain] = [(*chain, _Half(0, halves)), (*chain, _Half(1, halves))]
        return both if taken.number is None else both[taken.number]

    def size(self, node: ast.expr, of: _Chain) -> int | None:
        """A number of features: None for half of those of a value."""
        half = self.values.get(node.id) if isinstance(node, ast.Name) else self.halved(node)
        if half is None:
            number = self.number(node)
            if type(number) is int and number > 0:
                return number
        elif half == _Size(of):
            return None
        raise self.unreadable(node)

    def halved(self, node: ast.expr) -> _Size | None:
        """Of ``x.shape[-1] // 2``: the value of x."""
        value = self.values.get(half_of_last(node) or "")
        return _Size(value) if isinstance(value, tuple) else None

    def keyword(self, node: ast.keyword) -> str:
        match node.value:
            case ast.Attribute(value=owner, attr=name) if node.arg and self.is_self(owner):
                self.value_of(name)
            case value:
                if not node.arg or not is_literal(value):
                    raise self.unreadable(node)
        return ast.unparse(node)

    def constant(self, node: ast.expr) -> Any:
        match node:
            case ast.Attribute(value=owner, attr=name) if self.is_self(owner):
                return self.attribute(name)
        if not is_literal(node):
            raise self.unreadable(node)
        return ast.literal_eval(node)

    def attribute(self, name: str) -> Any:
        """An attribute of the module that decides what is computed."""
        value = self.value_of(name)
        if not isinstance(value, (bool, int, float, str, type(None))):
            raise Unreadable(f"its forward depends on self.{name}")
        self.attributes[name] = value
        return value

    def name(self, node: ast.expr) -> str:
        """A function from around the class: a global one, one of a closure, a builtin, or one of a module."""
        match node:
            case ast.Name(id=name) if name not in self.variables:
                return name
            case ast.Attribute(value=owner, attr=name):
                return f"{self.name(owner)}.{name}"
        raise self.unreadable(node)

    def is_self(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self.self_name

    def unreadable(self, node: ast.AST) -> Unreadable:
        line = ast.unparse(node).splitlines()[0]
        return Unreadable(f"its forward has `{line if len(line) <= 80 else line[:77] + '...'}`")


def _is_two(half: _Call | _Half) -> bool:
    """Whether there is no third: a split by one size gives as many as there are."""
    return isinstance(half, _Half) and (half.halves.kind != "split" or half.halves.sizes)


def _gate(gate: _Chain, up: _Chain) -> _Chain:
    """The product of two chains that part in their last steps; () if it is not a gate."""
    if len(gate) < 2 or not up or gate[:-2] != up[:-1]:
        return ()
    projection, activation, other = gate[-2], gate[-1], up[-1]
    if isinstance(activation, _Half):
        return ()
    if isinstance(projection, _Half) and isinstance(other, _Half) and projection.number != other.number:
        if projection.halves != other.halves:
            return ()
        gated_half = PackedGate(activation.step, projection.number == 1, projection.halves)
        return (*up[:-1], _Call(gated_half, activation.number))
    if isinstance(projection, _Half) or isinstance(other, _Half):
        return ()
    before_up = sum(call.number < other.number for call in (projection, activation))
    gated = Gate(projection.step, activation.step, other.step, before_up)
    return (*up[:-1], _Call(gated, activation.number))
