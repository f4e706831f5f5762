"""Which activation of fastops an activation of another library is: modules and functions, with their parameters."""

import copy
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import _C, _activations
from ._eager import is_untouched, know

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
for _class, _name in _BY_CLASS.items():
    know(_class, _name, list(PARAMETERS[_name]))
_BY_FUNCTION: dict[Any, str] = {
    getattr(module, name): name
    for name in _TABLE
    for module in (nn.functional, torch, _activations)
    if hasattr(module, name)
}
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
        name = _BY_CLASS.get(kind) or OTHER_CLASSES.get(kind.__module__, {}).get(kind.__qualname__)
        attribute: Callable[[str, Any], Any] = functools.partial(getattr, activation)
    else:
        attributes: dict[str, Any] = {}
        if isinstance(activation, functools.partial) and not activation.args:
            activation, attributes = activation.func, activation.keywords
        name = _BY_FUNCTION.get(activation) if callable(activation) and isinstance(activation, Hashable) else None
        attribute = attributes.get
    if name is None:
        return None
    if name == "gelu":
        approximate = attribute("approximate", "none")
        if approximate not in ("none", "tanh"):
            return None
        name = "gelu_tanh" if approximate == "tanh" else name
    values = [attribute(key, default) for key, default in PARAMETERS[name].items()]
    if not all(isinstance(value, (int, float)) for value in values):
        return None  # a learned one
    return name, [float(value) for value in values]


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
