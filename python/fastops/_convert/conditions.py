"""What is known of a ``forward`` before it is called: numbers, conditions, and what functions say to these.

A formula holds where all of this is as it was read, which each call looks at.
"""

from __future__ import annotations

import ast
import builtins
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from .chains import OPERATORS, is_literal
from .formula import Condition, Unreadable
from .source import definition_of


class Length(NamedTuple):
    """In the place of a list of modules: how many there are."""

    number: int


SIMPLE = (bool, int, float, str, type(None))


class Conditions:
    """Evaluates the expressions of a ``forward`` that are known, and keeps what they depend on."""

    self_name: str

    def __init__(self, forward: types.FunctionType, value_of: Callable[[str], Any]) -> None:
        code = forward.__code__
        self.forward = forward
        self.variables = {*code.co_varnames, *code.co_cellvars}
        self.value_of = value_of
        self.names: dict[str, Any] = {}  # of loops: numbers, and the steps that modules of lists are
        self.known: dict[str, Any] = {}  # of variables that are no tensors, as optional arguments
        self.attributes: dict[str, Any] = {}
        self.lengths: dict[str, int] = {}
        self.present: dict[str, None] = {}
        self.conditions: dict[Condition, None] = {}

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
            case ast.Name(id=name) if name in self.known:
                return self.known[name]
            case ast.Call(func=ast.Name(id="len"), args=[ast.Attribute(value=owner, attr=name)]) if self.is_self(owner):
                return self.length(name)
            case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]) if function not in self.variables:
                return self.said_by(function, arguments, node)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="get"), args=[key, *default], keywords=[]
            ) if self.known.get(name) == {} and is_literal(key) and len(default) < 2:
                return self.number(default[0]) if default else None
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](self.number(left), self.number(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
                return OPERATORS[type(op)](self.number(left), self.number(right))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self.number(operand)
            case ast.BoolOp(op=op, values=values):
                decides = isinstance(op, ast.Or)
                return decides if any(bool(self.number(value)) == decides for value in values) else not decides
            case ast.Compare(
                left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=other)]
            ) if other is None or isinstance(other, bool):
                return self.is_constant(left, other) == isinstance(op, ast.Is)
        return self.constant(node)

    def is_constant(self, node: ast.expr, other: bool | None) -> bool:
        match node:
            case ast.Attribute(value=owner, attr=name) if self.is_self(owner) and other is None:
                return self.is_none(name)
        return self.number(node) is other

    def is_none(self, name: str) -> bool:
        if self.value_of(name) is None:
            self.attributes[name] = None
            return True
        self.present[name] = None
        return False

    def said_by(self, name: str, nodes: list[ast.expr], call: ast.expr) -> Any:
        """What a function says to what is known: ``len``, ``isinstance``, or one that is nothing but a condition."""
        function = self.around(name)
        if function is isinstance and len(nodes) == 2 and isinstance(nodes[1], ast.Name):
            kind = self.around(nodes[1].id)
            if kind in SIMPLE and nodes[1].id not in self.variables:
                self.conditions |= {Condition(name): None, Condition(nodes[1].id): None}
                return isinstance(self.number(nodes[0]), kind)
        if function is not len and not _is_condition(function):
            raise self.unreadable(call)
        arguments = tuple([self.number(node) for node in nodes])
        if function is len and arguments == ((),):
            self.conditions[Condition(name)] = None
            return 0
        if function is len or not all(type(argument) in SIMPLE for argument in arguments):
            raise self.unreadable(call)
        try:
            answer = function(*arguments)
        except (NameError, TypeError, AttributeError):
            raise self.unreadable(call) from None
        if type(answer) is not bool:
            raise self.unreadable(call)
        self.conditions[Condition(name, arguments, answer)] = None
        return answer

    def around(self, name: str) -> Any:
        """What a name means around the class."""
        code = self.forward.__code__
        for free, cell in zip(code.co_freevars, self.forward.__closure__ or (), strict=True):
            if free == name:
                try:
                    return cell.cell_contents
                except ValueError:
                    return None
        return self.forward.__globals__.get(name, getattr(builtins, name, None))

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
        if not isinstance(value, SIMPLE):
            raise Unreadable(f"its forward depends on self.{name}")
        self.attributes[name] = value
        return value

    def is_self(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self.self_name

    def unreadable(self, node: ast.AST) -> Unreadable:
        line = ast.unparse(node).splitlines()[0]
        return Unreadable(f"its forward has `{line if len(line) <= 80 else line[:77] + '...'}`")


# Of expressions that run nothing of anybody's.
_PLAIN = ast.Name, ast.Load, ast.Constant, ast.Compare, ast.Is, ast.IsNot, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.Not


def _is_condition(function: Any) -> bool:
    """Whether a function is nothing but a condition, ``return value is not None``: to ask it again does nothing."""
    if not isinstance(function, types.FunctionType):
        return False
    try:
        body = definition_of(function).body
    except Unreadable:
        return False
    match body[1:] if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) else body:
        case [ast.Return(value=ast.expr() as value)]:
            return all(isinstance(part, _PLAIN) for part in ast.walk(value))
    return False
