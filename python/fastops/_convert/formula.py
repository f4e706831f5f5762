"""What a module computes, read from the source of its ``forward``.

A block of a model is recognized by its formula and not by the name of its class: Hugging Face alone has hundreds of
classes with the feed-forward block of LLaMA, and the next release may change what one of them computes. Only straight
lines of code are read; where there is anything else, the module is left as it is.
"""

from __future__ import annotations
import __future__

import ast
import dis
import functools
import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn


class Function(NamedTuple):
    """A function that ``forward`` calls with a tensor and keywords, as they are written."""

    name: str
    keywords: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


class Gate(NamedTuple):
    """``activation(gate(x)) * up(x)``: three steps, or what they call."""

    gate: Any
    activation: Any
    up: Any
    before_up: int  # how many of the other two are called before up


class PackedGate(NamedTuple):
    """``activation(gate) * up`` of the two halves of the last dimension."""

    activation: Any
    gate_last: bool


# What is done to a tensor: an attribute of the module is called, or one of the above.
Step = str | Function | Gate | PackedGate


class Formula(NamedTuple):
    """What a module computes: one step after another. It has names only: what they mean is looked up in each call."""

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
    return read_class(type(module), lambda name: stored(module, name))


def read_class(kind: Any, value_of: Callable[[str], Any]) -> Formula | None:
    """The formula of the modules of a class, of whose attributes it asks for the values."""
    forward = inspect.getattr_static(kind, "forward")
    if kind.forward is nn.Sequential.forward and kind.__iter__ is nn.Sequential.__iter__:
        return None
    if not isinstance(forward, types.FunctionType):
        raise Unreadable("its forward is not a Python function")
    code = forward.__code__
    definition = _definition(code, code.co_filename, forward.__qualname__.split(".")[-2:][0])
    formula = _Reader(code, value_of).read(definition)
    if not _is_source_of(definition, code):
        raise Unreadable("its forward is not what its source says")
    return formula


def stored(module: nn.Module, name: str) -> Any:
    """The value of an attribute that is looked up, not computed: ``convert`` must not run what belongs to calls.

    Raises:
        Unreadable: it is computed by a property (as parametrizations are) or by a ``__getattr__``, or not there.
    """
    kind = type(module)
    if kind.__getattr__ is not nn.Module.__getattr__ or kind.__getattribute__ is not object.__getattribute__:
        raise Unreadable(f"{kind.__qualname__} looks up attributes in a way of its own")
    found = inspect.getattr_static(kind, name, None)
    if hasattr(type(found), "__get__") and not isinstance(found, _STORED):
        raise Unreadable(f"self.{name} is computed by a {type(found).__name__}")
    try:
        return getattr(module, name)
    except AttributeError as error:
        raise Unreadable(f"its forward needs what it does not have: {error}") from None


# What a class may have under the name of an attribute: methods, and the members of __slots__.
_STORED = (types.FunctionType, types.BuiltinFunctionType, staticmethod, classmethod, types.MemberDescriptorType)


@functools.cache
def _definition(code: types.CodeType, filename: str, owner: str) -> ast.FunctionDef:
    """The definition of a method, with the names that it has in the class ``owner``."""
    # The same code in two files is equal.
    assert code.co_filename == filename
    try:
        parsed = ast.parse(textwrap.dedent(inspect.getsource(code))).body[0]
    except (OSError, TypeError, SyntaxError):
        raise Unreadable("the source of its forward is not available") from None
    if not isinstance(parsed, ast.FunctionDef):
        raise Unreadable("its forward is not a plain method")
    parsed.decorator_list.clear()  # what they made of it is the function that was found
    for node in ast.walk(parsed):
        for field in ("attr", "id", "arg"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name.startswith("__") and not name.endswith("__") and owner.strip("_"):
                setattr(node, field, f"_{owner.lstrip('_')}{name}")
    return parsed


def _is_source_of(definition: ast.FunctionDef, code: types.CodeType) -> bool:
    """Whether a definition is the one that was compiled: the file may have changed, or a tool rewritten the code."""
    module = ast.parse(f"def outer({', '.join(code.co_freevars)}): pass")
    outer: Any = module.body[0]
    outer.body = [definition]
    future = code.co_flags & __future__.annotations.compiler_flag
    compiled = compile(ast.fix_missing_locations(module), code.co_filename, "exec", future, dont_inherit=True)
    [outer_code] = _codes_within(compiled)
    return any(_instructions(found) == _instructions(code) for found in _codes_within(outer_code))


def _codes_within(code: types.CodeType) -> list[types.CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


_OPERATORS = {code for name, code in dis.opmap.items() if name.startswith("BINARY_")}
_TELLING = {*dis.hasname, *dis.hasconst, *dis.haslocal, *dis.hasfree, *_OPERATORS}


def _instructions(code: types.CodeType) -> list[tuple[str, str]]:
    # Constants as text, where True is not 1. For an attribute that is called, imports decide on the instruction.
    return [
        (instruction.opname.replace("METHOD", "ATTR"), repr(instruction.argval))
        for instruction in dis.get_instructions(code)
        if instruction.opcode in _TELLING
    ]


class _Call(NamedTuple):
    """A step, and how many were called before."""

    step: Step
    number: int


class _Half(NamedTuple):
    """One of the halves of the last dimension."""

    number: int


_Chain = tuple[_Call | _Half, ...]  # the value of an expression: the steps that lead to it


class _Reader:
    """Evaluates the statements of a ``forward``; a value is the steps that lead from the input to it."""

    def __init__(self, code: types.CodeType, value_of: Callable[[str], Any]) -> None:
        self.variables = {*code.co_varnames, *code.co_cellvars}
        self.value_of = value_of
        self.values: dict[str, _Chain | list[_Chain]] = {}
        self.attributes: dict[str, Any] = {}
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
        return Formula(steps, tuple(self.attributes.items()), self.cast)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Constant()):  # the docstring
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name != self.self_name:
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
            ) and not any(map(_has_effects, tests)):
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
                self.value_of(name)
                return self.call(argument, name)
            case ast.Call(func=ast.Attribute(value=value, attr="chunk"), args=[ast.Constant(value=2), *rest]):
                return self.halves(node, value, [*rest, *(keyword.value for keyword in node.keywords)])
            case ast.Subscript(value=value, slice=ast.Constant(value=int(index))) if index in (0, 1):
                halves = self.value(value)
                if isinstance(halves, list):
                    return halves[index]
            case ast.Call(func=function, args=[argument], keywords=keywords):
                return self.call(argument, Function(self.name(function), tuple(map(self.keyword, keywords))))
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
        return (*chain, _Call(step, self.calls))

    def halves(self, node: ast.expr, value: ast.expr, dims: list[ast.expr]) -> list[_Chain]:
        if len(dims) != 1 or self.constant(dims[0]) != -1:
            raise self.unreadable(node)
        chain = self.chain(value)
        return [(*chain, _Half(0)), (*chain, _Half(1))]

    def keyword(self, node: ast.keyword) -> str:
        match node.value:
            case ast.Attribute(value=owner, attr=name) if node.arg and self.is_self(owner):
                self.value_of(name)
            case value:
                if not node.arg or not _is_literal(value):
                    raise self.unreadable(node)
        return ast.unparse(node)

    def constant(self, node: ast.expr) -> Any:
        match node:
            case ast.Attribute(value=owner, attr=name) if self.is_self(owner):
                return self.attribute(name)
        if not _is_literal(node):
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


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def _has_effects(node: ast.expr) -> bool:
    """Whether there is more in a condition than comparisons of attributes and isinstance."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and ast.unparse(part.func) != "isinstance":
            return True
        if isinstance(part, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
            return True
    return False


def _gate(gate: _Chain, up: _Chain) -> _Chain:
    """The product of two chains that part in their last steps; () if it is not a gate."""
    if len(gate) < 2 or not up or gate[:-2] != up[:-1]:
        return ()
    projection, activation, other = gate[-2], gate[-1], up[-1]
    if isinstance(activation, _Half):
        return ()
    if isinstance(projection, _Half) and isinstance(other, _Half) and projection.number != other.number:
        return (*up[:-1], _Call(PackedGate(activation.step, projection.number == 1), activation.number))
    if isinstance(projection, _Half) or isinstance(other, _Half):
        return ()
    before_up = sum(call.number < other.number for call in (projection, activation))
    gated = Gate(projection.step, activation.step, other.step, before_up)
    return (*up[:-1], _Call(gated, activation.number))
