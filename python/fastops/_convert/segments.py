"""Layers one after another within a method that does more: the feed-forward half of a transformer's block, for one.

The methods of a module are written anew: where they call layers that one op computes, all of these are given to
``run`` at once. Everything else, conditions, residual connections, other arguments, stays the line of code that it was.
"""

from __future__ import annotations

import ast
import collections
import copy
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import nn

from .._eager import is_plain_tensor
from .._resolve import TENSOR_METHODS
from .chains import OPERATORS, bind, innermost, links, reads, with_input
from .formula import Gate, Halves, PackedGate, Unreadable
from .halves import joined
from .source import codes_of, definition_of, stored


class Chosen(NamedTuple):
    """Which of the calls of a chain are given to ``run``, and whether that pays in training, too."""

    start: int
    end: int
    trains: bool


Choice = Chosen | None


class Method(NamedTuple):
    """A method that is written anew."""

    name: str
    source: str  # of the method as it was
    choices: tuple[Choice, ...]  # of each chain of calls, in the order of the source

    @property
    def trains(self) -> bool:
        """Whether the new method is for training, too."""
        return any(choice.trains for choice in self.choices if choice)


class Segments(NamedTuple):
    """The methods of a module in which layers are computed together."""

    methods: tuple[Method, ...]


# What stands for the calls of a chain.
Choose = Callable[[list[ast.expr]], Choice]


def methods_of(module: nn.Module) -> Iterator[tuple[str, types.FunctionType]]:
    """``forward``, and the methods that it names, and those that they name, where they are plain functions."""
    kind = type(module)
    names = {"forward": None}
    waiting = ["forward"]
    while waiting:
        name = waiting.pop()
        method = inspect.getattr_static(kind, name, None)
        is_own = name not in module.__dict__ and method is not vars(nn.Module).get(name)
        if not isinstance(method, types.FunctionType) or not is_own:
            continue
        if not method.__code__.co_flags & _SUSPENDS:
            yield name, method
        for other in method.__code__.co_names:
            if other not in names:
                names[other] = None
                waiting.append(other)


_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def find_segments(module: nn.Module, choose: Callable[[list[Any]], Choice]) -> Segments | None:
    """The segments of a module's methods that ``choose`` chooses from what is called one after another.

    It is asked with what the steps are now.
    """
    found = []
    linears = {"linear"} | {name for name, child in module._modules.items() if child is not None}
    for name, outermost in methods_of(module):
        method = unwrapped(outermost)[-1]
        if linears.isdisjoint(method.__code__.co_names):
            continue
        try:
            definition = definition_of(method)
        except Unreadable:
            continue
        if not _SEE_VARIABLES.isdisjoint(loads_of(definition)):
            continue
        resolver = _Resolver(module, method)
        rewriter = _Rewriter(definition, method.__code__, functools.partial(_chosen, resolver, choose))
        changed = rewriter.rewritten()
        # A variable that is read before it has a value must not become the global one.
        is_local = variables_of(definition) & loads_of(changed) <= variables_of(changed)
        if is_local and any(rewriter.choices):
            found.append(Method(name, ast.unparse(definition), tuple(rewriter.choices)))
    return Segments(tuple(found)) if found else None


_SEE_VARIABLES = {"dir", "eval", "exec", "locals", "vars"}  # which the new method has more or fewer of


def variables_of(definition: ast.FunctionDef) -> set[str]:
    """What a definition gives a value, or has as arguments."""
    arguments = {node.arg for node in ast.walk(definition.args) if isinstance(node, ast.arg)}
    return arguments | {node.id for node in names_in(definition) if not isinstance(node.ctx, ast.Load)}


def loads_of(definition: ast.FunctionDef) -> set[str]:
    """What it reads."""
    return {node.id for node in names_in(definition) if isinstance(node.ctx, ast.Load)}


def names_in(definition: ast.FunctionDef) -> list[ast.Name]:
    return [node for node in ast.walk(definition) if isinstance(node, ast.Name)]


def unwrapped(method: types.FunctionType) -> list[types.FunctionType]:
    """The method and what it wraps, as checkpointing in the layers of transformers does; the innermost one last."""
    found = [method]
    while isinstance(inner := getattr(found[-1], "__wrapped__", None), types.FunctionType):
        if not any(_is_in(cell, inner) for cell in found[-1].__closure__ or ()):
            break
        found.append(inner)
    return found


def _is_in(cell: types.CellType, function: types.FunctionType) -> bool:
    try:
        return cell.cell_contents is function
    except ValueError:  # it is empty
        return False


def rewritten(
    kind: Any, method: Method, made: dict[str, Any], public: types.CellType
) -> tuple[types.FunctionType, list[types.FunctionType]]:
    """The method of a class, with what ``made`` has in the place of the names that the rewriter makes.

    What wraps the method wraps the new one, too; where it compares itself with the method that the class has, it finds
    what is in ``public``. The second result is the functions that were read.

    Raises:
        Unreadable: the method is another one.
    """
    outermost = inspect.getattr_static(kind, method.name, None)
    if not isinstance(outermost, types.FunctionType):
        raise Unreadable(f"its {method.name} is not a Python function")
    functions = unwrapped(outermost)
    *wrappers, function = functions
    definition = definition_of(function)
    if ast.unparse(definition) != method.source:
        raise Unreadable(f"its {method.name} is another one")
    choices = iter(method.choices)
    code = function.__code__
    changed = _Rewriter(definition, code, lambda steps: next(choices)).rewritten()
    ast.increment_lineno(changed, code.co_firstlineno - 1)
    [new] = codes_of(changed, code, [*code.co_freevars, *made])
    cells = {name: types.CellType(value) for name, value in made.items()}
    cells |= zip(code.co_freevars, function.__closure__ or (), strict=True)
    result = _with(function, new, tuple(cells[name] for name in new.co_freevars))
    for wrapper in reversed(wrappers):
        inner, wrapped = types.CellType(result), function
        closure = tuple(
            inner if _is_in(cell, wrapped) else public if _is_in(cell, outermost) else cell
            for cell in wrapper.__closure__ or ()
        )
        result, function = _with(wrapper, wrapper.__code__, closure), wrapper
    return result, functions


def _with(function: types.FunctionType, code: types.CodeType, closure: Any) -> types.FunctionType:
    """A function with another code and closure."""
    result = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    functools.update_wrapper(result, function)
    result.__dict__ = function.__dict__  # in place of __wrapped__
    result.__kwdefaults__ = function.__kwdefaults__
    return result


def _chosen(resolver: _Resolver, choose: Callable[[list[Any]], Choice], steps: list[ast.expr]) -> Choice:
    """The choice among steps that are known; the others are called where they stand."""
    start = 0
    for known, group in itertools.groupby(map(resolver.step, steps), lambda value: value is not _UNKNOWN):
        values = list(group)
        if known and (choice := choose(values)):
            return choice._replace(start=start + choice.start, end=start + choice.end)
        start += len(values)
    return None


class _Rewriter(ast.NodeTransformer):
    """Gives what is chosen of the chains of a definition to ``run``."""

    def __init__(self, definition: ast.FunctionDef, code: types.CodeType, choose: Choose) -> None:
        self.definition = copy.deepcopy(definition)
        nodes, names = [*ast.walk(definition)], names_in(definition)
        globals_ = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
        self.shared = {*code.co_cellvars, *code.co_freevars, *globals_}
        self.has_loops = any(isinstance(node, (ast.For, ast.While)) for node in nodes)
        changed = {node.target for node in nodes if isinstance(node, ast.AugAssign)}  # `x += y` reads x
        self.last_loads: dict[str, tuple[int, int]] = {}
        for node in names:
            if isinstance(node.ctx, (ast.Load, ast.Del)) or node in changed:
                place = node.lineno, node.col_offset
                self.last_loads[node.id] = max(place, self.last_loads.get(node.id, place))
        loads = collections.Counter(node.id for node in names if isinstance(node.ctx, ast.Load))
        stores = collections.Counter(node.id for node in names if not isinstance(node.ctx, ast.Load))
        self.counts: dict[str, tuple[int, int]] = {name: (loads[name], stores[name]) for name in loads | stores}
        self.choose = choose
        self.choices: list[Choice] = []

    def rewritten(self) -> ast.FunctionDef:
        arguments = self.definition.args
        for argument in ast.walk(arguments):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        # The values are those of the function that was found.
        arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
        arguments.kw_defaults = [value and ast.Constant(None) for value in arguments.kw_defaults]
        self.definition.returns = None
        self.definition.body = self.statements(self.definition.body)
        return ast.fix_missing_locations(self.definition)

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        result, position = [], 0
        while position < len(body):
            folded, end = self.fold(body, position)
            value = self.chain(folded.value) if end > position + 1 else None
            if value is not None:
                folded.value = value
                result.append(folded)
                position = end
                continue
            result.append(self.statement(body[position]))
            position += 1
        return result

    def statement(self, node: ast.stmt) -> ast.stmt:
        if isinstance(node, (ast.If, ast.While, ast.For)):
            head = "iter" if isinstance(node, ast.For) else "test"
            setattr(node, head, self.visit(getattr(node, head)))
            node.body, node.orelse = self.statements(node.body), self.statements(node.orelse)
            return node
        changed: ast.stmt = self.visit(node)
        return changed

    def fold(self, body: list[ast.stmt], start: int) -> tuple[Any, int]:
        """The statements ``x = f(x)``, ``x = g(x)`` from the one at ``start`` as ``x = g(f(x))``, and their end."""
        folded: Any
        folded, end = self.halves(body, start) or (copy.deepcopy(body[start]), start + 1)
        while end < len(body):
            name, following = self.assigned(folded), body[end]
            if name is None or not isinstance(following, (ast.Assign, ast.Return)) or following.value is None:
                break
            steps, input = links(following.value)
            # As the input of the first call, and nowhere else: the other arguments are evaluated before.
            is_next = isinstance(input, ast.Name) and input.id == name and reads(following.value, name) == 1
            is_last_use = name == self.assigned(following) or self.is_last_use(name, following)
            is_chain = bool(steps) and (isinstance(following, ast.Return) or self.assigned(following) is not None)
            if not is_chain or not is_next or not is_last_use:
                break
            folded = with_input(copy.deepcopy(following), folded.value)
            end += 1
        return folded, end

    def halves(self, body: list[ast.stmt], start: int) -> tuple[ast.stmt, int] | None:
        """The statements ``h = f(x)``, ``a, b = h.chunk(2, -1)`` and ``y = g(act(a) * b)`` as one, and their end."""
        if found := joined(body[start:], self.is_own):
            return found.statement, start + found.end
        match body[start : start + 2]:
            case [ast.Assign(targets=[ast.Name(id=name)], value=value), _] if links(value).steps:
                later = self.halves(body, start + 1)
                unit: Any = later and innermost(later[0])
                if not later or not isinstance(unit, ast.Call) or not unit.args:
                    return None
                statement: Any = later[0]
                is_input = ast.unparse(unit.args[0]) == name and reads(statement.value, name) == 1
                if is_input and self.is_own(name, body[start + 1 : later[1]]):
                    unit.args[0] = copy.deepcopy(value)
                    return later
        return None

    def is_own(self, name: str, statements: list[Any]) -> bool:
        """Whether a variable is for nothing but being read in some statements."""
        count = sum(reads(statement.value, name) for statement in statements)
        return name not in self.shared and self.counts[name] == (count, 1)

    def is_last_use(self, name: str, statement: ast.Assign | ast.Return) -> bool:
        """Whether nobody reads a variable after a statement."""
        end = statement.end_lineno or 0, statement.end_col_offset or 0
        return isinstance(statement, ast.Return) or (not self.has_loops and self.last_loads[name] < end)

    def assigned(self, node: ast.stmt) -> str | None:
        """The variable that a statement gives the value of a chain."""
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in self.shared and links(value).steps:
                return name
        return None

    def visit_Call(self, node: ast.Call) -> ast.expr:
        return self.chain(node) or self.generic_visit(node)  # type: ignore[return-value]

    def chain(self, node: ast.expr) -> ast.expr | None:
        steps, input = links(node)
        choice = self.choose(steps) if steps else None
        if steps:
            self.choices.append(choice)
        if choice is None:
            return None
        start, end, _ = choice
        layers = ast.Dict([ast.Constant(i) for i in range(end - start)], steps[start:end])
        value: ast.expr = self.visit(input)
        for step in steps[:start]:
            value = ast.Call(step, [value], [])
        value = ast.Call(ast.Name("_fastops_run", ast.Load()), [layers, value], [])
        for step in steps[end:]:
            value = ast.Call(step, [value], [])
        return ast.copy_location(value, node)


_UNKNOWN: Any = object()


class _Resolver:
    """What expressions of a method mean now, as far as nothing is run to know it."""

    def __init__(self, module: nn.Module, method: types.FunctionType) -> None:
        self.module = module
        code = method.__code__
        variables = inspect.getclosurevars(method)
        self.names = {**variables.builtins, **method.__globals__, **variables.nonlocals}
        self.names["_fastops_methods"] = TENSOR_METHODS
        for name in (*code.co_varnames, *code.co_cellvars):
            self.names[name] = _UNKNOWN
        if code.co_argcount:
            self.names[code.co_varnames[0]] = module

    def step(self, node: ast.expr) -> Any:
        """What a step calls, or _UNKNOWN."""
        try:
            match node:
                case ast.Call(func=ast.Name(id="_fastops_gate"), args=[*parts, ast.Constant(value=int(before_up))]):
                    gate, activation, up = map(self.step, parts)
                    is_known = all(part is not _UNKNOWN for part in (gate, activation, up))
                    return Gate(gate, activation, up, before_up) if is_known else _UNKNOWN
                case ast.Call(
                    func=ast.Name(id="_fastops_packed"),
                    args=[part, ast.Constant(value=bool(gate_last)), ast.Call(args=arguments)],
                ):
                    activation, halves = self.step(part), [self.value(argument) for argument in arguments]
                    is_known = all(value is not _UNKNOWN for value in (activation, *halves))
                    return PackedGate(activation, gate_last, Halves(*halves)) if is_known else _UNKNOWN
            if isinstance(node, ast.Call):  # of bind
                values = [self.value(value) for value in node.args]
                keywords = {str(keyword.arg): self.value(keyword.value) for keyword in node.keywords}
                return _UNKNOWN if values[0] is _UNKNOWN else bind(*values, **keywords)
            return self.value(node)
        except (Unreadable, LookupError, TypeError):
            return _UNKNOWN

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.UnaryOp():
                return ast.literal_eval(node) if isinstance(node.operand, ast.Constant) else _UNKNOWN
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                numbers = [self.value(left), self.value(right)]
                return OPERATORS[type(op)](*numbers) if all(type(number) is int for number in numbers) else _UNKNOWN
            case ast.Name(id=name):
                return self.names.get(name, _UNKNOWN)
            case ast.Attribute(value=owner, attr=name):
                return self.attribute(self.value(owner), name)
            case ast.Subscript(value=owner, slice=index):
                modules, place = self.value(owner), self.value(index)
                if modules is TENSOR_METHODS:
                    return TENSOR_METHODS[place]
                if type(modules) in (nn.ModuleList, nn.Sequential, nn.ModuleDict):
                    return modules[place]
                if is_plain_tensor(modules) and modules.dim() == 3 and len(modules):
                    return modules.detach()[0]  # one is as good as another
        return _UNKNOWN

    def attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, nn.Module):
            return stored(owner, name)
        return getattr(owner, name, _UNKNOWN) if isinstance(owner, types.ModuleType) else _UNKNOWN
