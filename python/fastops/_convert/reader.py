"""From the statements of a ``forward`` to a formula.

Read are straight lines of code, loops over lists of modules, and conditions of numbers and strings of the module; where
there is anything else, the module is left as it is.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from .._resolve import TENSOR_METHODS
from .chains import has_effects, is_literal
from .conditions import SIMPLE, Conditions
from .formula import Formula, Function, Gate, Halves, Method, PackedGate, Scaled, Step, Unreadable
from .halves import Halving, half_of_last, halving
from .source import is_source_of, source_of, stored


def read(module: nn.Module) -> Formula | None:
    """The formula of a module; None for a Sequential, whose layers one by one are its formula.

    Raises:
        Unreadable: its ``forward`` is more than one step after another.
    """
    if "forward" in module.__dict__:
        raise Unreadable("the module has a forward of its own, that is not its class's")
    return read_class(type(module), lambda name: stored(module, name))


def read_class(kind: Any, value_of: Callable[[str], Any]) -> Formula | None:
    """The formula of the modules of a class, of whose attributes it asks for the values."""
    forward = inspect.getattr_static(kind, "forward")
    if kind.forward is nn.Sequential.forward and kind.__iter__ is nn.Sequential.__iter__:
        return None
    if not isinstance(forward, types.FunctionType):
        raise Unreadable("its forward is not a Python function")
    definition = source_of(forward)
    formula = Reader(forward, value_of).read(definition)
    if not is_source_of(definition, forward.__code__):
        raise Unreadable("its forward is not what its source says")
    return formula


class _Call(NamedTuple):
    """A step, and how many were called before."""

    step: Step
    number: int


class _Half(NamedTuple):
    """One of the halves of the last dimension."""

    number: int
    halves: Halves


_Chain = tuple[_Call | _Half, ...]  # the value of an expression: the steps that lead to it


@dataclasses.dataclass(frozen=True)
class _Size:
    """Half of the last dimension of a value."""

    of: _Chain


class Reader(Conditions):
    """Evaluates the statements of a ``forward``; a value is the steps that lead from the input to it."""

    def __init__(self, forward: types.FunctionType, value_of: Callable[[str], Any]) -> None:
        super().__init__(forward, value_of)
        self.values: dict[str, _Chain | list[_Chain] | _Size] = {}
        self.calls = 0
        self.cast = False
        self.cast_to: list[str] = []  # the dtypes of these layers, that must be among the steps

    def read(self, definition: ast.FunctionDef) -> Formula:
        arguments = definition.args
        names = [argument.arg for argument in arguments.posonlyargs + arguments.args]
        defaults = self.forward.__defaults__ or ()
        is_plain = all(type(value) in SIMPLE for value in defaults) and not arguments.kwonlyargs
        if not 2 <= len(names) <= 2 + len(defaults) or not is_plain:
            raise Unreadable("its forward takes more than one tensor")
        self.self_name, argument, *optional = names
        self.values[argument] = ()
        # The formula is that of calls with one argument.
        self.known |= zip(reversed(optional), reversed(defaults), strict=False)
        others: list[tuple[ast.arg | None, Any]] = [(arguments.vararg, ()), (arguments.kwarg, {})]
        self.known |= {other.arg: nothing for other, nothing in others if other}
        chain = self.run(definition.body)
        if chain is None:
            raise Unreadable("its forward does not end with return")
        takes_more = bool(optional or arguments.vararg or arguments.kwarg)
        return self.formula(chain, definition.body[-1])._replace(takes_more=takes_more)

    def run(self, body: list[ast.stmt]) -> _Chain | None:
        """What statements return; None where they do not."""
        for statement in body:
            match statement:
                case ast.Return(value=ast.expr() as value):
                    return self.chain(value)
                case ast.If(test=test, body=then, orelse=orelse) if not self.casts(statement):
                    try:
                        condition = self.number(test)
                    except Unreadable:
                        raise self.unreadable(statement) from None
                    result = self.run(then if condition else orelse)
                    if result is not None:
                        return result
                case ast.For(target=target, iter=over, body=each, orelse=[]):
                    for names in self.rounds(target, over):
                        for name in names:
                            self.forget(name)
                        self.names |= names
                        result = self.run(each)
                        if result is not None:
                            return result
                case _:
                    self.statement(statement)
        return None

    def formula(self, chain: _Chain, statement: ast.stmt) -> Formula:
        """The formula, if nothing was computed besides."""
        steps = tuple(call.step for call in chain if not isinstance(call, _Half))
        calls = sum(3 if isinstance(step, Gate) else 1 for step in steps)
        called = {part for step in steps for part in (step if isinstance(step, Gate) else (step,))}
        if len(steps) != len(chain) or calls != self.calls or not called.issuperset(self.cast_to):
            raise self.unreadable(statement)
        attributes, lengths = tuple(self.attributes.items()), tuple(self.lengths.items())
        return Formula(steps, attributes, self.cast, lengths, tuple(self.present), tuple(self.conditions))

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Constant()):  # the docstring
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if (of := self.halved(value)) is not None:
                self.assign(name, of)
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if name != self.self_name:
                if isinstance(value, ast.Constant):
                    self.forget(name)
                    self.known[name] = value.value
                else:
                    self.assign(name, self.value(value))
            case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=first), ast.Name(id=second)])], value=value) if (
                self.self_name not in (first, second)
            ):
                halves = self.value(value)
                if not isinstance(halves, list):
                    raise self.unreadable(node)
                self.assign(first, halves[0])
                self.assign(second, halves[1])
            case ast.If() if self.casts(node):
                self.cast = True
            case _:
                raise self.unreadable(node)

    def assign(self, name: str, value: _Chain | list[_Chain] | _Size) -> None:
        self.forget(name)
        self.values[name] = value

    def forget(self, name: str) -> None:
        for names in (self.values, self.names, self.known):
            names.pop(name, None)

    def casts(self, node: ast.If) -> bool:
        match node:
            case ast.If(test=ast.BoolOp(op=ast.And(), values=tests), orelse=[]):
                return any(map(self.is_cast, tests)) and not any(map(has_effects, tests))
        return False

    def rounds(self, target: ast.expr, over: ast.expr) -> list[dict[str, Any]]:
        """What the names of a loop are in each of its rounds."""
        rounds = []
        for item in self.items(over):
            names: dict[str, Any] = {}
            if not _bind(target, item, names) or self.self_name in names:
                raise self.unreadable(over)
            rounds.append(names)
        return rounds

    def items(self, node: ast.expr) -> list[Any]:
        """What there is a loop over: numbers, modules as steps, or tuples of these."""
        match node:
            case ast.Call(func=ast.Name(id="range"), args=[count], keywords=[]):
                return [*range(self.number(count))]
            case ast.Call(func=ast.Name(id="enumerate"), args=[each], keywords=[]):
                return [*enumerate(self.items(each))]
            case ast.Call(func=ast.Name(id="zip"), args=each, keywords=[]):
                return [*zip(*map(self.items, each), strict=False)]
        return self.modules(node)

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
            case ast.Call(func=function, args=[argument, *others], keywords=keywords) if _names_linear(function):
                named, values = map(self.keyword, keywords), map(self.argument, others)
                return self.call(argument, Function(self.name(function), tuple(named), tuple(values)))
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if (factor := self.factor(right)) is not None:
                return self.call(left, Scaled(factor))
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if (factor := self.factor(left)) is not None:
                return self.call(right, Scaled(factor, is_first=True))
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

    def factor(self, node: ast.expr) -> Any:
        """A number, or the name of an attribute; None of anything else."""
        match node:
            case ast.Attribute(value=owner, attr=name) if self.is_self(owner):
                self.value_of(name)
                return name
        value = ast.literal_eval(node) if is_literal(node) else None
        return value if type(value) in (int, float) else None

    def keyword(self, node: ast.keyword) -> str:
        if not node.arg:
            raise self.unreadable(node)
        return f"{node.arg}={self.argument(node.value)}"

    def argument(self, node: ast.expr) -> str:
        """An argument of a function besides the tensor."""
        match node:
            case ast.Attribute(value=owner, attr=name) if self.is_self(owner):
                self.value_of(name)
            case ast.Subscript(value=ast.Attribute(value=owner, attr=name), slice=index) if self.is_self(owner):
                self.value_of(name)
                return f"{self.self_name}.{name}[{self.number(index)!r}]"
            case value:
                if not is_literal(value):
                    raise self.unreadable(node)
        return ast.unparse(node)

    def name(self, node: ast.expr) -> str:
        """A function from around the class: a global one, one of a closure, a builtin, or one of a module."""
        match node:
            case ast.Name(id=name) if name not in self.variables:
                return name
            case ast.Attribute(value=owner, attr=name):
                return f"{self.name(owner)}.{name}"
        raise self.unreadable(node)


def _names_linear(function: ast.expr) -> bool:
    """Whether it is what torch.nn.functional.linear is called, whose arguments have names."""
    match function:
        case ast.Name(id="linear") | ast.Attribute(attr="linear"):
            return True
    return False


def _is_two(half: _Call | _Half) -> bool:
    """Whether there is no third: a split by one size gives as many as there are."""
    return isinstance(half, _Half) and (half.halves.kind != "split" or half.halves.sizes)


def _bind(target: ast.expr, item: Any, names: dict[str, Any]) -> bool:
    """Adds what the names in the target of a loop are in one round."""
    match target:
        case ast.Name(id=name) if not isinstance(item, tuple):
            names[name] = item
            return True
        case ast.Tuple(elts=parts) if isinstance(item, tuple) and len(parts) == len(item):
            return all(_bind(part, value, names) for part, value in zip(parts, item, strict=True))
    return False


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
