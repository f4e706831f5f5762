"""The halves of one layer's result, as the source of a method takes them: with chunk, with split, or as slices."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from typing import Any, NamedTuple

from .chains import links, reads, with_input


class Halving(NamedTuple):
    """An expression that takes halves: a call of chunk or split gives both, a slice is one of them."""

    kind: str  # as that of formula.Halves
    value: ast.expr
    size: ast.expr  # what chunk or split is called with, or where the slice begins or ends
    dim: ast.expr | None  # None where it is not clear
    function: ast.expr | None = None  # None for the methods of the value
    number: int | None = None  # which half a slice is

    def is_two(self) -> bool:
        """Whether there cannot be more of these than two: a split by one size gives as many as there are."""
        return self.kind != "split" or isinstance(self.size, (ast.List, ast.Tuple))


def halving(node: ast.expr) -> Halving | None:
    """What an expression takes halves of, if it looks as if it did."""
    match node:
        case ast.Call(func=ast.Attribute(attr="chunk" | "split" as kind) as function, args=[first, *rest]):
            if len(rest) + len(node.keywords) < 2:
                return Halving(kind, function.value, first, _dim(rest, node.keywords))
            if rest:
                return Halving(kind, first, rest[0], _dim(rest[1:], node.keywords), function)
        case ast.Subscript(
            value=value, slice=ast.Tuple(elts=[ast.Constant(value=places), ast.Slice(lower, upper, None)])
        ) if places is ...:
            if lower and not upper:
                return Halving("slices", value, lower, ast.Constant(-1), None, 1)
            if upper and not lower:
                return Halving("slices", value, upper, ast.Constant(-1), None, 0)
    return None


def _dim(values: list[ast.expr], keywords: list[ast.keyword]) -> ast.expr | None:
    match values, keywords:
        case ([dim], []) | ([], [ast.keyword(arg="dim", value=dim)]):
            return dim
    return None


def half_of_last(node: ast.expr) -> str | None:
    """The variable x of ``x.shape[-1] // 2``, or with ``x.size(-1)``."""
    match node:
        case ast.BinOp(
            left=ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=dim)
            | ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[dim], keywords=[]),
            op=ast.FloorDiv(),
            right=ast.Constant(value=2),
        ) if ast.unparse(dim) == "-1":
            return name
    return None


class Joined(NamedTuple):
    """Statements as one, and how many these were."""

    statement: ast.stmt
    end: int


def joined(body: list[ast.stmt], is_own: Callable[[str, list[ast.stmt]], bool]) -> Joined | None:
    """``a, b = x.chunk(2, -1)`` and ``y = f(act(a) * b)`` as ``y = f(unit(x))``, however the halves are taken.

    ``is_own`` says whether a variable is for nothing but being read in some statements.
    """
    names = _Names({}, {}, {})
    places: dict[str, int] = {}
    for i, statement in enumerate(body):
        defined = names.defined(statement)
        if not defined:
            result = _with_unit(statement, names)
            is_all = result is not None and all(
                is_own(name, body[place + 1 : i + 1]) and not reads(result.value, name)
                for name, place in places.items()
            )
            return Joined(result, i + 1) if is_all else None
        if not places.keys().isdisjoint(defined):
            return None
        places |= dict.fromkeys(defined, i)
    return None


class _Half(NamedTuple):
    """One of two halves."""

    of: Halving
    number: int


class _Names(NamedTuple):
    """What variables are."""

    halves: dict[str, _Half]
    pairs: dict[str, Halving]
    sizes: dict[str, str]  # half the features of which variable

    def defined(self, statement: ast.stmt) -> tuple[str, ...]:
        """The variables that a statement makes halves, or the size of one; () if it does something else."""
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if of := half_of_last(value):
                    self.sizes[name] = of
                elif half := self.half(value):
                    self.halves[name] = half
                elif (pair := self.pair(value)) and pair.is_two():
                    self.pairs[name] = pair
                else:
                    return ()
                return (name,)
            case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=first), ast.Name(id=second)])], value=value) if (
                pair := self.pair(value)
            ):
                self.halves[first], self.halves[second] = _Half(pair, 0), _Half(pair, 1)
                return first, second
        return ()

    def half(self, node: ast.expr) -> _Half | None:
        match node:
            case ast.Name(id=name):
                return self.halves.get(name)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int(number))) if number in (0, 1):
                return _Half(self.pairs[name], number) if name in self.pairs else None
        found = halving(node)
        return _Half(found, found.number) if found and found.number is not None else None

    def pair(self, node: ast.expr) -> Halving | None:
        found = halving(node)
        return found if found and found.number is None else None

    def of(self, first: _Half, second: _Half) -> tuple[ast.expr, list[ast.expr]] | None:
        """What has two halves, and the arguments of formula.Halves; None where they are no halves of one value."""
        (one, number), (other, other_number) = first, second
        is_both = one is other or (one.kind == other.kind == "slices" and isinstance(one.value, ast.Name))
        if not is_both or number == other_number or one.dim is None or ast.unparse(one.dim) != "-1":
            return None
        if ast.unparse(one.value) != ast.unparse(other.value):
            return None
        cuts = [one.size, other.size]
        is_list = one.kind == "split" and isinstance(one.size, (ast.List, ast.Tuple))
        if is_list:
            cuts = one.size.elts  # type: ignore[attr-defined]
        sizes = [self.size(cut, one.value) for cut in cuts]
        if len(sizes) != 2 or sizes[0] is None or sizes[1] is None or ast.unparse(sizes[0]) != ast.unparse(sizes[1]):
            return None
        size = sizes[0]
        if one.kind == "chunk":
            if ast.unparse(size) != "2":
                return None
            size = ast.Constant(None)
        return one.value, [ast.Constant(one.kind), size, ast.Constant(is_list), one.function or ast.Constant(None)]

    def size(self, node: ast.expr, value: ast.expr) -> ast.expr | None:
        """The number of features of a half of a value, None for half of all; no expression if it is that of another."""
        of = self.sizes.get(node.id) if isinstance(node, ast.Name) else half_of_last(node)
        if of is None:
            return node
        return ast.Constant(None) if isinstance(value, ast.Name) and value.id == of else None


def _with_unit(statement: ast.stmt, names: _Names) -> Any:
    """The statement with a unit in the place of the product of two halves; None if there is no such product."""
    if not isinstance(statement, (ast.Assign, ast.Return)) or statement.value is None:
        return None
    if isinstance(statement, ast.Assign) and not (
        len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)
    ):
        return None
    result: Any = copy.deepcopy(statement)
    steps, product = links(result.value)
    if not isinstance(product, ast.BinOp) or not isinstance(product.op, ast.Mult):
        return None
    for one, other in ((product.left, product.right), (product.right, product.left)):
        gate = links(one)
        first, second = names.half(gate.input), names.half(other)
        found = names.of(first, second) if first and second and len(gate.steps) == 1 else None
        if first and found:
            unit = _packed(gate.steps[0], first.number == 1, *found)
            if steps:
                return with_input(result, unit)
            result.value = unit
            return result
    return None


def _packed(activation: ast.expr, gate_last: bool, value: ast.expr, halves: list[ast.expr]) -> ast.expr:
    """``activation(gate) * up`` of the halves of a value, as a link of a chain."""
    made = ast.Call(ast.Name("_fastops_halves", ast.Load()), halves, [])
    unit = ast.Call(ast.Name("_fastops_packed", ast.Load()), [activation, ast.Constant(gate_last), made], [])
    return ast.Call(unit, [copy.deepcopy(value)], [])
