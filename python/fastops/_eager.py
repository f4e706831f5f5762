"""What may be left out on the way to an op: the dispatcher's Python side, and the calls of modules.

A module is plain if calling it does no more than torch.nn says, so that an op may stand for the call. Hooks of the
module or of all modules, a ``forward`` of its own, a class or function that somebody replaced, weights that are
computed or of another class than torch's own: with any of these the module is called. ``src/python/plain.cpp`` has the
same rules for the hot path; these are what ``torch.compile`` follows and what decides about everything else.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from types import FunctionType, ModuleType, NoneType
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling, is_dynamo_compiling

from . import _C
from ._torch_internal import (
    FakeTensor,
    FunctionalTensor,
    are_hooks_enabled,
    global_backward_hooks,
    global_backward_pre_hooks,
    global_forward_hooks,
    global_forward_pre_hooks,
    has_any_global_hook,
    is_function_mode_enabled,
    module_call,
)

DTYPES = {torch.float32, torch.float64, torch.bfloat16, torch.float16}
# The last two stand for plain tensors while a program is captured.
_PLAIN_TENSORS = (Tensor, nn.Parameter, FakeTensor, FunctionalTensor)
_CALL = nn.Module.__call__


# What a function looks up in Python modules: the module, the name, and what was there.
Uses = tuple[tuple[ModuleType, str, Any], ...]


class _Class(NamedTuple):
    """What calling a module of some class comes to: its ``forward``, and what that looks up in which Python module."""

    forward: Any
    uses: Uses


_classes: dict[type[nn.Module], _Class] = {}


def know(
    kind: type[nn.Module],
    activation: str = "",
    parameters: Sequence[str] = (),
    *,
    own_functions: bool = False,
    transposed: bool = False,
) -> None:
    """Lets modules of a class be plain, as long as nobody replaces what calling them comes to.

    Args:
        kind: the class: of torch.nn, of fastops, or another library's layer or activation.
        activation: its name.
        parameters: the names of its parameters.
        own_functions: its modules have functions of their own, which only Python looks at.
        transposed: they are linear layers, with weights of ``[in_features, out_features]``.
    """
    forward: Any = kind.forward
    uses = uses_of(forward, kind.__module__)
    if uses is None:
        _classes[kind] = _Class(None, ())  # replaced before fastops was imported: none of its modules is plain
        return
    _classes[kind] = _Class(forward, uses)
    if not own_functions:
        _C.add_plain_class(kind, forward, list(uses), activation, list(parameters), transposed)


def uses_of(function: Any, module: str | None = None) -> Uses | None:
    """What a function of a module finds there by name, and in other modules, as ``torch.nn.functional.relu``.

    None of another module's function.
    """
    home = sys.modules.get(module or getattr(function, "__module__", None) or "")
    if home is None or not isinstance(function, FunctionType) or function.__globals__ is not vars(home):
        return None
    uses: dict[tuple[ModuleType, str], Any] = {}
    place: ModuleType | None = None  # of the names that come next
    for instruction in dis.get_instructions(function):
        if instruction.opname == "LOAD_GLOBAL":
            place = home
        elif instruction.opname not in ("LOAD_ATTR", "LOAD_METHOD", "EXTENDED_ARG"):
            place = None
        if place is None or instruction.opname == "EXTENDED_ARG":
            continue
        value = vars(place).get(instruction.argval)
        if value is not None:
            uses[place, instruction.argval] = value
        place = value if isinstance(value, ModuleType) else None
    return tuple((*place_and_name, value) for place_and_name, value in uses.items())


def are_same(uses: Uses) -> bool:
    """Whether all of it is still there."""
    for module, name, value in uses:  # noqa: SIM110  (torch.compile follows a loop better)
        if getattr(module, name, None) is not value:
            return False
    return True


def knows(kind: type[nn.Module]) -> bool:
    """Whether :func:`know` was called for a class."""
    return kind in _classes


_global_hooks = [global_backward_pre_hooks, global_backward_hooks, global_forward_hooks, global_forward_pre_hooks]
# Where one is missing, no module is plain: nobody could see that it was replaced or added to.
_are_known = all(hooks is not None for hooks in (module_call, *_global_hooks))
if _are_known:
    _C.initialize_plain(module_call, _global_hooks)
for _kind in (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Dropout):
    know(_kind)


def is_checkpointed(module: Any) -> bool:
    """Whether its forward pass is computed again, if it shall be: not while it is traced, nor in torch.func's grad."""
    if not module.checkpoint or torch.jit.is_tracing():
        return False
    return is_compiling() or bool(are_hooks_enabled())


def is_autocast_on(device: torch.device) -> bool:
    """Whether autocast is on for a device; of some, such as meta, PyTorch must not be asked."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def is_plain_eager(input: Tensor) -> bool:
    """Whether fastops._C may be called: nothing is being captured and no Python override wants to see the op."""
    return type(input) is Tensor and not is_compiling() and not is_function_mode_enabled()


def call(op: Any, *arguments: Any) -> Any:
    """Calls an op, through fastops._C where it can; an argument of another kind is a TypeError that names it.

    Not for TorchScript, which has no ``try``.
    """
    try:
        result = None
        if not is_dynamo_compiling() and not is_function_mode_enabled() and _are_plain(arguments):
            result = getattr(_C, op.__name__)(*arguments)
        return op(*arguments) if result is None else result
    except (RuntimeError, TypeError, ValueError):
        schema = op.default._schema
        owner = schema.name.removeprefix("fastops::")
        for argument, value in zip(schema.arguments, arguments, strict=False):
            _check_kind(owner, value, "input" if argument.name == "self" else argument.name, argument.type)
        raise


# What the functions of fastops._C may take; they give None for what they do not.
_PLAIN_ARGUMENTS = {Tensor, nn.Parameter, str, bool, int, float, NoneType}


def _are_plain(values: Iterable[Any]) -> bool:
    """Whether all are of these very classes, or lists of such: no Python override wants to see them."""
    for value in values:
        kind = type(value)
        if kind not in _PLAIN_ARGUMENTS and not (kind is list and _are_plain(value)):
            return False
    return True


def check_tensor(owner: str, value: object, argument: str = "input") -> None:
    """Raises a TypeError for what is neither a tensor nor stands for one, as the proxies of torch.fx do."""
    if not _may_be_tensor(value):
        raise _wrong_kind(owner, argument, "a tensor", value)


def check_dense(owner: str, value: object, argument: str = "input") -> None:
    """Raises what ops do for a tensor of another kind, layout or dtype than they take, or without its memory."""
    check_tensor(owner, value, argument)
    if isinstance(value, Tensor) and not is_compiling():
        _C.check_tensor(owner, argument, value)


def check_bool(owner: str, value: object, argument: str = "inplace") -> None:
    """Raises a TypeError for what is no bool, such as ``"tanh"`` that is meant for another argument."""
    if not isinstance(value, bool):
        raise TypeError(f"fastops.{owner}: {argument} must be a bool, but is {value!r}")


def check_network(owner: str, *network: Any) -> None:
    """Raises what :func:`fastops.functional.mlp` does for these arguments; None is what it is there."""
    input, weights, biases, activation, output_activation, params, output_params = network
    try:
        if isinstance(input, Tensor) and isinstance(weights, (list, tuple)) and isinstance(biases, (list, NoneType)):
            weights, biases = [*weights], [None] * len(weights) if biases is None else biases
            if _are_plain((input, weights, biases)) and not is_autocast_on(input.device):
                _C.check_mlp(
                    owner, input, weights, biases, activation, output_activation, params or [], output_params or []
                )
                return
    except TypeError:
        _check_kinds_of_network(owner, network)
        raise
    _check_kinds_of_network(owner, network)


def _check_kinds_of_network(owner: str, network: Sequence[Any]) -> None:
    op: Any = torch.ops.fastops.mlp
    for argument, value in zip(op.default._schema.arguments, network, strict=False):
        may_be_none = argument.name in ("biases", "params", "output_params")
        if not (may_be_none and value is None):
            _check_kind(owner, value, argument.name, argument.type)


def _may_be_tensor(value: object) -> bool:
    return isinstance(value, Tensor) or hasattr(type(value), "__torch_function__")


# The types of schemas: their names, and what the dispatcher takes for them.
_KINDS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "TensorType": ("tensor", _may_be_tensor),
    "StringType": ("string", lambda value: isinstance(value, str)),
    "IntType": ("integer", lambda value: hasattr(type(value), "__index__")),
    "FloatType": ("number", lambda value: hasattr(type(value), "__float__") or hasattr(type(value), "__index__")),
    "BoolType": ("bool", lambda value: hasattr(type(value), "__bool__")),
}


def _check_kind(owner: str, value: Any, argument: str, kind: Any, or_none: str = "") -> None:
    if kind.kind() == "OptionalType":
        if value is not None:
            _check_kind(owner, value, argument, kind.getElementType(), " or None")
    elif kind.kind() == "ListType":
        element = kind.getElementType()
        if not isinstance(value, Collection) or isinstance(value, (str, Tensor)):
            is_optional = element.kind() == "OptionalType"
            name, _ = _KINDS[(element.getElementType() if is_optional else element).kind()]
            raise _wrong_kind(
                owner, argument, f"a list of {name}s{' and None' if is_optional else ''}", value
            ) from None
        for i, item in enumerate(value):
            _check_kind(owner, item, f"{argument}[{i}]", element)
    else:
        name, fits = _KINDS[kind.kind()]
        if not fits(value):
            raise _wrong_kind(owner, argument, f"a {name}{or_none}", value) from None


def _wrong_kind(owner: str, argument: str, needed: str, value: object) -> TypeError:
    return TypeError(f"fastops.{owner}: {argument} must be {needed}, but is a {type(value).__qualname__}")


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody is to be called when the module is, or when its gradients are there."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def is_untouched(module: nn.Module) -> bool:
    """Whether calling the module does no more than its class says, and that what torch.nn says of the class."""
    own, kind = module.__dict__, type(module)
    if is_compiling():
        _ = module.forward  # which Dynamo looks at again in each call, unlike what a __dict__ was asked for
    return (
        not ("forward" in own or "_call_impl" in own or "_compiled_call_impl" in own)
        and not has_hooks(module)
        and not has_any_global_hook()
        and _is_unchanged(kind)
    )


def _is_unchanged(kind: type[nn.Module]) -> bool:
    call: Any = kind.__call__
    if not _are_known or kind._call_impl is not module_call or not (call is _CALL or _is_of_fx(call)):
        return False
    known = _classes.get(kind)
    if known is None:
        return True
    return kind.forward is known.forward and are_same(known.uses)


def is_recorded(kind: type[nn.Module]) -> bool:
    """Whether torch.fx records the calls of modules of a class."""
    return _is_of_fx(kind.__call__)


def _is_of_fx(call: Any) -> bool:
    """Whether torch.fx has put it in place of ``torch.nn.Module.__call__`` while it records: it shall see the op."""
    return isinstance(call, FunctionType) and call.__globals__["__name__"] == "torch.fx._symbolic_trace"


def is_plain_tensor(tensor: Any) -> bool:
    """Whether the ops take it, and nobody would miss being called: of no other Python class than torch's own."""
    return (
        type(tensor) in _PLAIN_TENSORS
        and tensor.dtype in DTYPES
        and tensor.layout is torch.strided
        and not tensor.is_nested
    )


def is_plain_linear(layer: Any, kind: type[nn.Module] = nn.Linear) -> TypeGuard[nn.Linear]:
    """Whether calling the layer, of that kind, does nothing but multiply with its weight and add its bias."""
    return (
        type(layer) is kind
        and is_untouched(layer)
        and is_plain_tensor(stored_tensor(layer, "weight"))
        and is_plain_or_none(stored_tensor(layer, "bias"))
    )


_MISSING = object()


def stored_tensor(module: nn.Module, name: str) -> Any:
    """Where ``torch.nn.Module`` finds it: most are parameters, others attributes (by FSDP) or buffers.

    Not by asking for the attribute, which is something else while torch.fx records.
    """
    for place in (module._parameters, module.__dict__, module._buffers):
        if name in place:
            return place.get(name)
    return _MISSING


def is_plain_or_none(tensor: Any) -> bool:
    """Whether a module's tensor is one that the ops take, or None."""
    return tensor is None or is_plain_tensor(tensor)


def is_norm_class(module: Any) -> bool:
    """Whether it is a norm of the last dimensions, of torch.nn."""
    return type(module) in (nn.LayerNorm, nn.RMSNorm)


def plain_norm(module: Any, dtype: torch.dtype | None) -> tuple[str, int, float] | None:
    """A norm of the last dimension as a step of ``sequential``: its name, how many features it has, its eps.

    None where calling it does more, and for an RMSNorm without eps but for float32 and float64: what that means for
    16-bit types differs among versions of torch.
    """
    if not is_norm_class(module) or len(module.normalized_shape) != 1 or not is_untouched(module):
        return None
    eps = module.eps
    if eps is None and type(module) is nn.RMSNorm and dtype in (torch.float32, torch.float64):
        eps = torch.finfo(dtype).eps
    name, tensors = ("layer_norm", ["weight", "bias"]) if type(module) is nn.LayerNorm else ("rms_norm", ["weight"])
    if not isinstance(eps, (int, float)) or not all(is_plain_or_none(stored_tensor(module, one)) for one in tensors):
        return None
    return name, module.normalized_shape[0], eps


def is_plain_dropout(module: Any) -> bool:
    """Whether it is a dropout of torch.nn, on or off."""
    return type(module) is nn.Dropout and is_untouched(module)


def is_off(module: Any) -> bool:
    """Whether it is a dropout that gives what it gets."""
    return type(module) is nn.Dropout and not (module.training and module.p) and is_untouched(module)


def is_linear_unchanged() -> bool:
    """Whether a layer may be computed without torch.nn.functional.linear: nobody has replaced it or nn.Linear."""
    return _is_unchanged(nn.Linear)
