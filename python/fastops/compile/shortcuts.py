"""Calls of an elementwise function that need not go through Dynamo, whose checks take longer than small kernels.

Dynamo captures each kind of call once. What it did is remembered where nothing but the arguments and the values of
names around the function, all of them immutable, can make a difference; other functions go through Dynamo every time.
"""

from __future__ import annotations

import contextlib
import dis
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._torch_internal import TreeSpec, tree_flatten, tree_unflatten

Kernel = Callable[..., Sequence[Tensor]]

_MODULES = ("math", "torch")  # whose contents stay as they are
_VALUES = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.memory_format)
# What a function does beyond computing from names and arguments.
_EFFECTS = ("IMPORT", "STORE_ATTR", "STORE_DEREF", "STORE_GLOBAL", "STORE_SUBSCR", "DELETE")
_MISSING = object()


class Call(NamedTuple):
    """A kernel's call: what Dynamo's graph was given, and what came out."""

    kernel: Kernel
    tensors: Sequence[Tensor]
    results: Sequence[Tensor]


class Shortcut(NamedTuple):
    """A kernel, which values of a call it takes, and where in the function's result its results go."""

    kernel: Kernel
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    structure: TreeSpec | None  # None: the result is one tensor
    surroundings: Sequence[Any]  # kept alive, as the key has their addresses

    def __call__(self, values: Sequence[Any]) -> Any:
        results = self.kernel(*[values[i] for i in self.inputs])
        if self.structure is None:
            return results[self.results[0]]
        return tree_unflatten([results[i] for i in self.results], self.structure)


class _Recording(threading.local):
    calls: list[Call] | None = None
    is_reshaped = False


_recording = _Recording()


def recorded(kernel: Kernel) -> Kernel:
    """The kernel, whose calls :func:`record` sees."""

    def call(*tensors: Tensor) -> Sequence[Tensor]:
        results = kernel(*tensors)
        if _recording.calls is not None:
            _recording.calls.append(Call(kernel, tensors, results))
        return results

    return call


def of_sizes(kernel: Kernel) -> Kernel:
    """The kernel of some sizes alone, which are not those that were given where tensors were reshaped."""

    def call(*tensors: Tensor) -> Sequence[Tensor]:
        if _recording.is_reshaped:
            raise ValueError("fastops.fuse: the function depends on the sizes of its tensors")
        return kernel(*tensors)

    return call


@contextlib.contextmanager
def record(is_reshaped: bool) -> Iterator[list[Call]]:
    """The calls of kernels within, whose tensors were reshaped or not."""
    calls: list[Call] = []
    _recording.calls, _recording.is_reshaped = calls, is_reshaped
    try:
        yield calls
    finally:
        _recording.calls = None


class Shortcuts:
    """Those of one function, by the kind of call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._known: dict[Any, Shortcut] = {}
        self._surroundings = _Surroundings(function)

    def key(self, values: Sequence[Any], names: Sequence[str]) -> Any:
        """The kind of a call with these values, the last ones by these names; None if it has none."""
        kinds: list[Any] = [self._surroundings.addresses(), torch.is_grad_enabled(), torch.get_default_dtype(), *names]
        first: dict[int, int] = {}  # Dynamo takes a tensor that is given twice for one
        for place, value in enumerate(values):
            if isinstance(value, Tensor):
                same = first.setdefault(id(value), place)
                kinds += (type(value), value.dtype, value.device, value.requires_grad, value.is_contiguous(), same)
            elif isinstance(value, float):
                kinds.append(value.hex())  # 0.0 == -0.0
            elif isinstance(value, (bool, int, str, type(None))):
                kinds += (type(value), value)
            else:
                return None
        return tuple(kinds)

    def find(self, key: Any) -> Shortcut | None:
        """The shortcut of that kind of call."""
        return self._known.get(key)

    def learn(self, values: Sequence[Any], names: Sequence[str], calls: Sequence[Call], result: Any) -> None:
        """Remembers a call, if it was one of a kernel and nothing else."""
        if len(calls) != 1 or not self._surroundings.look(self._known.clear):
            return
        key, (kernel, tensors, made) = self.key(values, names), calls[0]
        leaves, structure = tree_flatten(result)
        inputs, results = _positions(tensors, values), _positions(leaves, made)
        if key is not None and inputs is not None and results is not None:
            one = None if isinstance(result, Tensor) else structure
            self._known[key] = Shortcut(kernel, inputs, results, one, self._surroundings.values())


class _Names(NamedTuple):
    """Names in namespaces, cells of closures, and the functions that have them."""

    names: list[tuple[Mapping[str, Any], str]]
    cells: list[CellType]
    functions: list[FunctionType]


class _Surroundings:
    """The names that a function finds around it, and what they stand for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._noted = _Names([], [], [])

    def look(self, changed: Callable[[], Any]) -> bool:
        """Notes the names. Whether all of them stand for what stays the same; calls `changed` if there are others."""
        found = _Names([], [], [])
        is_constant = _look_at(self._function, found)
        if found != self._noted:
            self._noted = found  # at once: other threads make keys of it
            changed()
        return is_constant

    def values(self) -> list[Any]:
        """What they stand for."""
        names, cells, functions = self._noted
        around = [space.get(name, _MISSING) for space, name in names] + [_content(cell) for cell in cells]
        return around + [part for function in functions for part in (function.__code__, function.__defaults__)]

    def addresses(self) -> tuple[int, ...]:
        """Where that is, so that values need not be equal or hashable."""
        return tuple(map(id, self.values()))


def _look_at(function: Any, found: _Names) -> bool:
    """Adds what a function and those that it calls find around them. Whether all of it stays the same."""
    if not isinstance(function, FunctionType) or function.__dict__:
        return False
    if function in found.functions:
        return True
    found.functions.append(function)
    codes = list(codes_within(function.__code__))
    if any(step.opname.startswith(_EFFECTS) for code in codes for step in dis.get_instructions(code)):
        return False
    names = sorted({name for code in codes for name in code.co_names})
    pairs: list[tuple[Mapping[str, Any], str]] = [(function.__globals__, name) for name in names]
    defaults: Mapping[str, Any] = function.__kwdefaults__ or {}
    pairs += [(defaults, name) for name in defaults]
    cells = list(function.__closure__ or ())
    found.names.extend(pairs)
    found.cells.extend(cells)
    around = [space[name] for space, name in pairs if name in space] + [_content(cell) for cell in cells]
    return all(_is_constant(value, found) for value in (*around, *(function.__defaults__ or ())))


def _is_constant(value: Any, found: _Names) -> bool:
    if isinstance(value, ModuleType):
        return value.__name__.split(".")[0] in _MODULES
    if isinstance(value, FunctionType):
        home = value.__globals__.get("__name__")  # functools.wraps gives it another's __module__
        return (isinstance(home, str) and home.split(".")[0] in _MODULES) or _look_at(value, found)
    if isinstance(value, BuiltinFunctionType):  # not the method of an object
        return isinstance(value.__self__, (ModuleType, type, type(None)))
    return type(value) in _VALUES


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def codes_within(code: CodeType) -> Iterator[CodeType]:
    """The code and that of the functions that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_within(constant)


def _positions(wanted: Sequence[Any], values: Sequence[Any]) -> tuple[int, ...] | None:
    """Where each of the wanted objects is among the values; None if one is not."""
    places = {id(value): place for place, value in enumerate(values)}
    found = [places.get(id(value)) for value in wanted]
    return None if None in found else tuple(place for place in found if place is not None)
