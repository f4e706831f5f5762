"""Methods that are an activation, as ``self.gelu`` in modules of diffusers, or the ``forward`` of one with numbers.

Known by what they compute, as are the classes that have no numbers (classes.py).
"""

from __future__ import annotations

import ast
import types
from typing import Any, NamedTuple

from torch import nn
from torch.compiler import is_compiling

from .._eager import Uses, are_same, uses_of
from .classes import INPUT, Evaluator, known_activation
from .formula import Unreadable
from .source import definition_of, keep, names_around

_Activation = tuple[str, list[float]] | None


class _Method(NamedTuple):
    """A method as it was read."""

    code: types.CodeType
    definition: ast.FunctionDef
    uses: Uses  # what it calls
    attributes: tuple[str, ...]  # of the module, that it depends on
    activations: dict[tuple[Any, ...], _Activation]  # for their values


_MOST = 64  # values of attributes, for programs that change them all the time
_methods: dict[Any, _Method | None] = {}


def activation_of_method(method: types.MethodType) -> _Activation:
    """Name and parameters of the activation that a bound method is, as its module and what it calls are now."""
    return _activation_of(method.__func__, method.__self__)


def activation_of_forward(module: nn.Module) -> _Activation:
    """The same of the ``forward`` of a module, as ``torch.sin(self.w0 * x)``."""
    forward = _own_forward(type(module))
    return _activation_of(forward, module) if forward else None


def has_numbers(kind: type[nn.Module]) -> bool:
    """Whether which activation a module of a class is depends on its attributes."""
    forward = _own_forward(kind)
    known = forward and _known(forward)
    return known is not None and bool(known.attributes)


def _own_forward(kind: type[nn.Module]) -> Any:
    """The ``forward`` of a class that is none of PyTorch's or of fastops."""
    forward: Any = kind.forward
    is_theirs = isinstance(forward, types.FunctionType) and not str(forward.__module__).startswith(
        ("torch.", "fastops.")
    )
    return forward if is_theirs else None


def _known(function: Any) -> _Method | None:
    if function not in _methods:
        if is_compiling():
            return None
        keep(_methods, function, _read(function))
    return _methods[function]


def _activation_of(function: Any, owner: Any) -> _Activation:
    known = _known(function)
    if known is None or function.__code__ is not known.code or not are_same(known.uses):
        return None
    kind: Any = type(owner)
    values = tuple([owner.__dict__.get(name) for name in known.attributes])
    for name, value in zip(known.attributes, values, strict=True):
        if type(value) not in (str, int, float) or hasattr(kind, name):
            return None
    if kind.__getattribute__ is not object.__getattribute__:
        return None
    if values not in known.activations:
        if is_compiling():
            return None
        if len(known.activations) >= _MOST:
            known.activations.clear()
        known.activations[values] = _computed(function, known, values)
    return known.activations[values]


def _read(function: Any) -> _Method | None:
    try:
        definition = definition_of(function)
    except (Unreadable, AttributeError):
        return None
    uses = uses_of(function)
    arguments = definition.args
    names = [argument.arg for argument in arguments.posonlyargs + arguments.args]
    if uses is None or len(names) != 2 or arguments.vararg or arguments.kwonlyargs or arguments.kwarg:
        return None
    attributes = {
        node.attr: None
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == names[0]
    }
    return _Method(function.__code__, definition, uses, tuple(attributes), {})


def _computed(function: types.FunctionType, known: _Method, values: tuple[Any, ...]) -> _Activation:
    own, input = (argument.arg for argument in known.definition.args.posonlyargs + known.definition.args.args)
    try:
        around = names_around(function) | {input: INPUT}
        evaluator = Evaluator(around, own, attributes=dict(zip(known.attributes, values, strict=True)))
        return known_activation(evaluator.run(known.definition.body) or (), INPUT)
    except (Unreadable, ValueError, ArithmeticError):
        return None
