"""The source of methods and functions, if it is what was compiled, and what it names."""

from __future__ import annotations
import __future__

import ast
import dis
import functools
import inspect
import textwrap
import types
from collections.abc import Iterable
from typing import Any

from torch import nn

from .formula import Unreadable


def definition_of(method: types.FunctionType) -> ast.FunctionDef:
    """The definition of a method, for others to read only.

    Raises:
        Unreadable: its source is not available, or not what was compiled.
    """
    definition = source_of(method)
    if not is_source_of(definition, method.__code__):
        raise Unreadable(f"its {method.__name__} is not what its source says")
    return definition


def source_of(method: types.FunctionType) -> ast.FunctionDef:
    """The definition of a method as its source has it, for others to read only."""
    return _definition(method.__code__, method.__code__.co_filename, method.__qualname__.split(".")[-2:][0])


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


MOST_KEPT = 1024  # of a kind, for programs that make new classes or functions all the time


def keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Remembers a value, and forgets all others where they are too many."""
    if len(kept) >= MOST_KEPT:
        kept.clear()
    kept[key] = value


@functools.lru_cache(MOST_KEPT)
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


def names_around(function: types.FunctionType) -> dict[str, Any]:
    """What names mean in a function: nothing if they are its own, or in a closure, where they may change."""
    code = function.__code__
    return {**function.__globals__, **dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars))}


def is_source_of(definition: ast.FunctionDef, code: types.CodeType) -> bool:
    """Whether a definition is the one that was compiled: the file may have changed, or a tool rewritten the code."""
    return any(_instructions(found) == _instructions(code) for found in codes_of(definition, code, code.co_freevars))


def codes_of(definition: ast.FunctionDef, code: types.CodeType, around: Iterable[str]) -> list[types.CodeType]:
    """What a definition in place of that of ``code`` compiles to, within a function with the variables ``around``."""
    module = ast.parse(f"def outer({', '.join(around)}): pass")
    outer: Any = module.body[0]
    outer.body = [definition]
    future = code.co_flags & __future__.annotations.compiler_flag
    compiled = compile(ast.fix_missing_locations(module), code.co_filename, "exec", future, dont_inherit=True)
    [outer_code] = _codes_within(compiled)
    return _codes_within(outer_code)


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
