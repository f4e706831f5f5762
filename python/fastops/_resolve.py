"""Which activation of fastops an activation of another library is: modules and functions, with their parameters."""

import copy
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from . import _C, _activations
from ._eager import is_untouched, know, knows

# An activation as users give it: a name, a module of torch.nn or of fastops.nn, whose parameters it then has, or what
# timm and transformers have in their place.
Activation = str | nn.Module | Callable[[Tensor], Tensor]

_TABLE = {activation["name"]: activation for activation in _C.activations()}
# The parameters of each activation, in order, with their defaults.
PARAMETERS = {name: entry["parameters"] for name, entry in _TABLE.items()}
# By the class itself, not its name: somebody else's ReLU may do something else.
_BY_CLASS = {
    getattr(module, entry["class_name"]): name
    for name, entry in _TABLE.items()
    for module in (nn, _activations)
    if hasattr(module, entry["class_name"])
}
CLASSES_OF_ACTIVATIONS = _BY_CLASS.keys()
for _class, _name in _BY_CLASS.items():
    know(_class, _name, list(PARAMETERS[_name]))


def _is_own(function: Any) -> bool:
    """Whether it is a function of PyTorch or of fastops, and not one that somebody has put around it."""
    if isinstance(function, types.FunctionType):
        return function.__globals__.get("__name__", "").partition(".")[0] in ("torch", "fastops")
    return isinstance(function, types.BuiltinFunctionType)


_BY_FUNCTION: dict[Any, str] = {
    function: name
    for name in _TABLE
    for module in (nn.functional, torch, _activations)
    if _is_own(function := getattr(module, name, None))
}


class TensorMethod:
    """An activation as a method of tensors, ``x.relu()``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.original = getattr(Tensor, name)

    def __call__(self, input: Any) -> Any:
        return getattr(input, self.name)()


TENSOR_METHODS = {name: TensorMethod(name) for name in ("relu", "sigmoid", "sin", "tanh")}
# Classes of libraries that need not be installed: their module, and the activation of each.
OTHER_CLASSES = {
    "timm.layers.activations": {
        "GELU": "gelu",
        "GELUTanh": "gelu_tanh",
        "HardSigmoid": "hardsigmoid",
        "HardSwish": "hardswish",
        "Mish": "mish",
        "QuickGELU": "quick_gelu",
        "Sigmoid": "sigmoid",
        "Swish": "silu",
        "Tanh": "tanh",
    },
    "transformers.activations": {
        "AccurateGELUActivation": "gelu_tanh",
        "GELUActivation": "gelu",
        "GELUTanh": "gelu_tanh",
        "LinearActivation": "identity",
        "MishActivation": "mish",
        "NewGELUActivation": "gelu_tanh",
        "PytorchGELUTanh": "gelu_tanh",
        "QuickGELUActivation": "quick_gelu",
        "ReLUSquaredActivation": "relu_squared",
        "SiLUActivation": "silu",
    },
}


def find(activation: Any) -> tuple[str, list[float]] | None:
    """The name and the parameters of an activation module or function; None where fastops has none that is equal."""
    if isinstance(activation, nn.Module):
        kind = type(activation)
        name = _BY_CLASS.get(kind) or _find_other(activation)
        attribute: Callable[[str, Any], Any] = functools.partial(getattr, activation)
    else:
        attributes: dict[str, Any] = {}
        if isinstance(activation, TensorMethod):
            return (activation.name, []) if getattr(Tensor, activation.name) is activation.original else None
        if isinstance(activation, functools.partial) and not activation.args:
            activation, attributes = activation.func, activation.keywords
        try:
            name = _BY_FUNCTION.get(activation)
        except TypeError:  # it has no hash
            name = None
        if name and attributes and not attributes.keys() <= {"inplace", "approximate", *PARAMETERS[name]}:
            return None
        attribute = attributes.get
    if name is None:
        return None
    if name == "gelu":
        approximate = attribute("approximate", "none")
        if approximate not in ("none", "tanh"):
            return None
        name = "gelu_tanh" if approximate == "tanh" else name
    if name == "relu6" and (attribute("min_val", 0), attribute("max_val", 6)) != (0, 6):
        return None
    values = [attribute(key, default) for key, default in PARAMETERS[name].items()]
    if not all(isinstance(value, (int, float)) for value in values):
        return None  # a learned one
    return name, [float(value) for value in values]


def _find_other(module: nn.Module) -> str | None:
    """The activation that a class of timm or transformers is, if nobody has replaced what it calls."""
    kind = type(module)
    name = OTHER_CLASSES.get(kind.__module__, {}).get(kind.__qualname__)
    if name is None:
        return None
    if not (knows(kind) or is_compiling()):
        know(kind, name, own_functions=True)
    function = module.__dict__.get("act")  # what the forward of some of transformers calls
    if function is not None and getattr(function, "__self__", None) is not module:
        found = find(function)
        return found and found[0]
    return name


def plain_activation(module: Any) -> tuple[str, list[float]] | None:
    """The name and the parameters of an activation module where calling it does no more."""
    return find(module) if isinstance(module, nn.Module) and is_untouched(module) else None


def as_module(activation: Activation) -> nn.Module:
    """A new module for an activation: a copy of a module, else of torch.nn's class, which other libraries know.

    Raises:
        ValueError: fastops does not have the activation.
    """
    name, params = resolve(activation)
    if isinstance(activation, nn.Module):
        return copy.deepcopy(activation)
    if name == "gelu_tanh":
        return nn.GELU("tanh")
    class_name = _TABLE[name]["class_name"]
    kind = getattr(nn, class_name, None) or getattr(_activations, class_name)
    return kind(**dict(zip(PARAMETERS[name], params, strict=False)))


def resolve(activation: Activation) -> tuple[str, list[float]]:
    """The name and the parameters of an activation."""
    if isinstance(activation, str):
        if activation not in _TABLE:
            raise ValueError(f"fastops: unknown activation '{activation}'; it must be one of {', '.join(_TABLE)}")
        return activation, []
    found = find(activation)
    if isinstance(activation, type):
        name = activation.__qualname__
        raise ValueError(
            f"fastops: activation must be a name, a module or a function, but is a class; give a module of it, {name}()"
        )
    if activation is None:
        raise ValueError(
            "fastops: activation must be a name, a module or a function, but is None; for none, 'identity'"
        )
    if found is None:
        kind = type(activation)
        known = ", ".join(entry["class_name"] for entry in _TABLE.values())
        raise ValueError(
            f"fastops: {kind.__module__}.{kind.__qualname__} is not an activation that fastops has; "
            f"of torch.nn and fastops.nn it has {known}"
        )
    return found


def describe(activation: str, params: Sequence[float]) -> str:
    """The activation as it is shown to people, with the values of its parameters."""
    names = PARAMETERS[activation]
    values = ", ".join(f"{name}={value}" for name, value in zip(names, params, strict=False))
    return f"{activation}({values})" if values else activation
