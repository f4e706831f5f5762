"""What the names of a formula mean: a function that looks them up as the ``forward`` that they are from does."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from .._resolve import TENSOR_METHODS
from .chains import bind
from .formula import Formula, Function, Gate, Halves, Method, PackedGate, Scaled, Step

# The lookup makes these; the names are ones that nobody else has around a class.
_MADE = {
    "_fastops_bind": bind,
    "_fastops_partial": functools.partial,
    "_fastops_methods": TENSOR_METHODS,
    "_fastops_gate": Gate,
    "_fastops_packed": PackedGate,
    "_fastops_halves": Halves,
    "_fastops_scaled": Scaled,
}


def lookup(formula: Formula, forward: types.FunctionType) -> Callable[[nn.Module], dict[Any, Any]]:
    """A function of a module that gives what the steps of its formula call at that moment, numbered.

    It is compiled from the expressions in the source, with the globals and the closure of ``forward``: whatever is put
    in their place later counts, and costs no more than it does there.
    """
    owner = forward.__code__.co_varnames[0]
    steps = ", ".join(f"{i}: {_source(step, owner)}" for i, step in enumerate(formula.steps))
    return _compiled(f"lambda {owner}: {{{steps}}}", forward)


def conditions_of(formula: Formula, forward: types.FunctionType) -> Callable[[], bool]:
    """A function that says whether the functions in the formula's conditions are those that there are now, and answer
    as they did.
    """
    conditions = formula.conditions
    functions = _compiled(f"lambda: [{', '.join(condition.function for condition in conditions)}]", forward)
    as_read = functions()
    codes = [getattr(function, "__code__", None) for function in as_read]

    def hold() -> bool:
        for i, function in enumerate(functions()):
            if function is not as_read[i]:
                return False
            condition = conditions[i]
            if condition.answer is not None and (
                function.__code__ is not codes[i] or function(*condition.arguments) is not condition.answer
            ):
                return False
        return True

    return hold


def _compiled(source: str, forward: types.FunctionType) -> Any:
    """The function that an expression gives where ``forward`` is defined."""
    code = forward.__code__
    around = ", ".join([*code.co_freevars, *_MADE])
    compiled = compile(f"lambda {around}: {source}", code.co_filename, "eval", dont_inherit=True)
    for _ in range(2):
        compiled = next(constant for constant in compiled.co_consts if isinstance(constant, types.CodeType))
    cells = {name: types.CellType(value) for name, value in _MADE.items()}
    cells |= zip(code.co_freevars, forward.__closure__ or (), strict=True)
    closure = tuple(cells[name] for name in compiled.co_freevars)
    return types.FunctionType(compiled, forward.__globals__, "lookup", None, closure)


def _source(step: Step, owner: str) -> str:
    if isinstance(step, str):
        return f"{owner}.{step}"
    if isinstance(step, Gate):
        parts = ", ".join(_source(part, owner) for part in step[:3])
        return f"_fastops_gate({parts}, {step.before_up})"
    if isinstance(step, PackedGate):
        parts = f"{_source(step.activation, owner)}, {step.gate_last}"
        if step.halves != Halves():
            kind, size, sizes, function = step.halves
            parts += f", _fastops_halves({kind!r}, {size}, {sizes}, {function})"
        return f"_fastops_packed({parts})"
    if isinstance(step, Scaled):
        factor = f"{owner}.{step.factor}" if isinstance(step.factor, str) else repr(step.factor)
        return f"_fastops_scaled({factor}, {step.is_first})"
    if isinstance(step, Method):
        return f"_fastops_methods[{step.name!r}]"
    assert isinstance(step, Function)
    if step.values:
        return f"_fastops_bind({', '.join([step.name, *step.values, *step.keywords])})"
    return f"_fastops_partial({', '.join([step.name, *step.keywords])})" if step.keywords else step.name
