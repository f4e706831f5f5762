"""Classes whose ``forward`` computes a formula with fused ops, for modules of any class.

What is fused is decided anew in every call, from the layers that the module has then: somebody may have replaced one by
an adapter, hooked or pruned it, or switched to training with dropout since.
"""

from __future__ import annotations

import abc
import contextlib
import copyreg
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from .._eager import is_autocast_on
from .._resolve import TENSOR_METHODS
from .chains import bind
from .conditions import Length
from .formula import Formula, Gate, Halves, Inner, PackedGate, Step, Unreadable
from .inner import is_plain_sequential, layers_within
from .lookup import conditions_of, lookup
from .ops import (
    Segment,
    activation_of,
    does_nothing,
    drops,
    is_linear,
    name_of,
    next_segment,
    saves_little,
    weight_and_bias,
)
from .reader import read_class
from .run import run
from .segments import Choice, Chosen, Method, Segments, find_segments, rewritten


class FusedModule:
    """Mixed into the class of a converted module: all of it remains, but for its ``forward``."""

    _fastops_original: Any
    _fastops_formula: Formula | Segments | None
    _fastops_methods: list[Any]  # the original's, when they were read

    def __init_subclass__(cls, **arguments: Any) -> None:
        # A class that this package makes is nobody else's concern: of registries, or of checks of its name.
        if "_fastops_original" not in cls.__dict__:
            super().__init_subclass__(**arguments)

    def _get_name(self) -> str:
        # Where modules are printed. The class has the original's own name, which other libraries look up.
        return f"Fused{super()._get_name()}"  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class cannot be imported: it is made again.
        reduced: Any = super().__reduce_ex__(max(protocol, 2))
        make, arguments, *state = reduced
        original = self._fastops_original
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]
            make, arguments = _new, (original, self._fastops_formula, arguments[1:], {})
        elif make is copyreg.__newobj_ex__:  # type: ignore[attr-defined]
            make, arguments = _new, (original, self._fastops_formula, *arguments[1:])
        elif make is type(self):
            make = original
        return (make, arguments, *state)


def fuse(module: nn.Module, formula: Formula | Segments | None) -> None:
    """Lets a module compute its formula, or segments of its methods, with fused ops."""
    # Past a __setattr__ of the module's own.
    object.__setattr__(module, "__class__", _fused_class(type(module), formula))


def _fused_class(original: Any, formula: Formula | Segments | None) -> type[nn.Module]:
    names = [method.name for method in formula.methods] if isinstance(formula, Segments) else ["forward"]
    methods = [inspect.getattr_static(original, name, None) for name in names]
    for kind in type.__subclasses__(original):  # it may exist already
        known = kind.__dict__
        if known.get("_fastops_methods") == methods and known.get("_fastops_formula", ()) == formula:
            return kind
    metaclass = type(original)
    if metaclass.__init__ is not type.__init__ or metaclass.__new__ not in (type.__new__, abc.ABCMeta.__new__):
        raise Unreadable(f"its class has a metaclass of its own, {metaclass.__qualname__}")
    body = {
        "__doc__": original.__doc__,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "_fastops_formula": formula,
        "_fastops_methods": methods,
        "_fastops_original": original,
    }
    if isinstance(formula, Segments):
        body |= {method.name: _with_segments(original, method) for method in formula.methods}
    else:
        body |= _with_formula(original, formula)
    make = abc.ABCMeta.__new__ if issubclass(metaclass, abc.ABCMeta) else type.__new__  # past its __call__
    return make(metaclass, original.__name__, (FusedModule, original), body)


def _with_formula(original: Any, formula: Formula | None) -> dict[str, Any]:
    """A forward that computes the formula, as long as that is the one of the original's, and what gives its steps."""
    original_forward = original.forward
    code = original_forward.__code__
    layers = lookup(formula, original_forward) if formula else _sequential_layers
    hold = conditions_of(formula, original_forward) if formula and formula.conditions else None
    casts, takes_more = formula is not None and formula.cast, formula is not None and formula.takes_more
    defaults = original_forward.__defaults__

    def steps(self: Any) -> dict[Any, Any] | None:
        # Other libraries replace the forward of classes, too, or its code.
        if original.forward is not original_forward or original_forward.__code__ is not code:
            return None
        if takes_more and not _are_same(original_forward.__defaults__, defaults):
            return None
        try:
            return layers(self) if _holds(self, formula) and (hold is None or hold()) else None
        except (AttributeError, LookupError, NameError):  # it is for the original to raise, after what comes before it
            return None

    @functools.wraps(original_forward)  # TorchScript compiles what is wrapped, and its signature is shown
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        current = steps(self) if len(args) == 1 and not kwargs else None
        if current is not None and (not casts or _is_of_one_dtype(current.values(), args[0])):
            return run(current, args[0])
        return original.forward(self, *args, **kwargs)

    within = None if casts or formula is None else staticmethod(steps)
    return {"forward": forward, "_fastops_forward": staticmethod(forward), "_fastops_steps": within}


def _with_segments(original: Any, method: Method) -> Callable[..., Any]:
    """A method whose segments are computed with fused ops, as long as it is the one of the original."""
    name = method.name
    as_read, public = getattr(original, name), types.CellType()
    made = {"_fastops_run": run, "_fastops_bind": bind, "_fastops_methods": TENSOR_METHODS}
    made |= {"_fastops_gate": Gate, "_fastops_packed": PackedGate, "_fastops_halves": Halves}
    fused, functions = rewritten(original, method, made, public)
    *wrappers, inner = [(function, function.__code__) for function in functions]
    innermost, code = inner
    trains = method.trains

    @functools.wraps(as_read)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        now = getattr(original, name)
        if now is not as_read or innermost.__code__ is not code or (self.training and not trains):
            return now(self, *args, **kwargs)
        if wrappers and not all([function.__code__ is before for function, before in wrappers]):
            return now(self, *args, **kwargs)
        return fused(self, *args, **kwargs)

    public.cell_contents = call
    return call


def _new(original: Any, formula: Formula | Segments | None, arguments: Any, keywords: Any) -> nn.Module:
    """A converted module without state: for copies, and for pickles, where the class may compute something else now."""
    module: nn.Module = original.__new__(original, *arguments, **keywords)
    with contextlib.suppress(Exception):
        if isinstance(formula, Segments):
            fuse(module, formula)  # refused where the methods are others
            return module
        known: dict[str, Any] = {}
        if formula is not None:
            known = dict.fromkeys(formula.present, object()) | dict(formula.attributes)
            known |= {name: Length(number) for name, number in formula.lengths}
        if read_class(original, known.get) == formula:
            fuse(module, formula)
    return module


def segments_of(module: nn.Module) -> tuple[Segments | None, list[str]]:
    """The segments of the module's methods with two or more linear layers in one op, and the ops."""
    ops: list[str] = []
    names = {id(child): name for name, child in module.named_modules()}
    if "forward" in module.__dict__:
        return None, ops

    def choose(layers: list[Any]) -> Choice:
        kept = [i for i, layer in enumerate(layers) if not does_nothing(layer, training=False)]
        found = []
        for position, end, segment in _ops_of([layers[i] for i in kept]):
            parts = [part for i in kept[position:end] for part in _parts(layers[i])]
            if sum(map(is_linear, parts)) > 1:
                called = [names.get(id(part)) or _function_name(part) for part in parts]
                ops.append(f"{name_of(segment.op)}({', '.join(called)})")
                # With a dropout behind, which the op leaves out while it is off.
                found.append((kept[position], kept[end] if end < len(kept) else len(layers)))
        if not found:
            return None
        start, end = found[0][0], found[-1][1]
        in_training = [layer for layer in layers[start:end] if drops(layer) or not does_nothing(layer)]
        return Chosen(start, end, not all(saves_little(segment) for _, _, segment in _ops_of(in_training)))

    return find_segments(module, choose), ops


def _ops_of(layers: list[Any]) -> Iterator[tuple[int, int, Segment]]:
    """The ops that compute some of the layers, with the positions of these."""
    position = 0
    while position < len(layers):
        segment = next_segment(layers, position)
        if segment is not None:
            yield position, segment.end, segment
        position = segment.end if segment else position + 1


def _parts(layer: Any) -> tuple[Any, ...]:
    if isinstance(layer, Gate):
        return layer[:3]
    return layer[:1] if isinstance(layer, PackedGate) else (layer,)


def _function_name(function: Any) -> str:
    function = getattr(function, "func", function)
    return getattr(function, "__name__", type(function).__name__)


def steps_of(module: nn.Module, formula: Formula | None) -> list[tuple[Step | Inner, Any]]:
    """What the module does to its input, one after another, and what that calls now; in what is a Sequential, too.

    Raises:
        Unreadable: a function is not there.
    """
    steps: list[tuple[Step | Inner, Any]] = []
    for step, layer in _called(module, formula):
        if layers_within(layer) is None:
            steps.append((step, layer))
        else:
            within = None if is_plain_sequential(layer) else layer._fastops_formula
            steps += [(Inner(str(step), name), inner) for name, inner in steps_of(layer, within)]
    return steps


def sequentials_of(module: nn.Module, formula: Formula | None) -> Iterator[nn.Module]:
    """Each Sequential whose layers are among the steps."""
    waiting = [layer for _, layer in _called(module, formula)]
    while waiting:
        layer = waiting.pop()
        if is_plain_sequential(layer):
            yield layer
            waiting += layer._modules.values()


def _called(module: nn.Module, formula: Formula | None) -> list[tuple[Step, Any]]:
    if formula is None:
        return [*_sequential_layers(module).items()]
    forward: Any = inspect.getattr_static(getattr(module, "_fastops_original", type(module)), "forward")
    try:
        return [*zip(formula.steps, lookup(formula, forward)(module).values(), strict=True)]
    except (NameError, AttributeError) as error:
        raise Unreadable(f"its forward needs what it does not have: {error}") from None


def _sequential_layers(module: nn.Module) -> dict[str, Any]:
    return module._modules


def _holds(module: nn.Module, formula: Formula | None) -> bool:
    """Whether the attributes are those that the formula was read with."""
    if formula is not None:
        for name, value in formula.attributes:
            now = getattr(module, name)
            if type(now) is not type(value) or now != value:
                return False
        for name, length in formula.lengths:
            modules = getattr(module, name)
            if type(modules) is not nn.ModuleList or len(modules) != length:
                return False
        return all(getattr(module, name) is not None for name in formula.present)
    return True


def _are_same(now: tuple[Any, ...] | None, before: tuple[Any, ...] | None) -> bool:
    """Whether the defaults of optional arguments are as they were; torch.compile makes a tuple of its own of them."""
    if now is before:
        return True
    return now is not None and before is not None and now == before and [*map(type, now)] == [*map(type, before)]


def _is_of_one_dtype(layers: Iterable[Any], input: Any) -> bool:
    """Whether nothing changes the input's dtype on the way through the layers."""
    if not isinstance(input, Tensor) or is_autocast_on(input.device):
        return False
    for step in layers:
        for layer in step[:3] if isinstance(step, Gate) else (step[0],) if isinstance(step, PackedGate) else (step,):
            if is_linear(layer):
                if weight_and_bias(layer)[0].dtype != input.dtype:
                    return False
            elif activation_of(layer) is None and not does_nothing(layer, training=False):
                return False
    return True
