"""Modules one after another as a network: when one op computes them, and what is done where none does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ._eager import check_tensor, is_off, is_plain_linear, is_plain_tensor
from ._resolve import PARAMETERS, as_module, plain_activation, resolve


class Network(NamedTuple):
    """Plain layers, and the arguments of their ``mlp`` from ``activation`` to ``output_params``."""

    layers: list[Any]
    functions: tuple[str, str, list[float], list[float]]

    @property
    def parameters(self) -> tuple[list[Tensor], list[Tensor | None]]:
        """The arguments ``weights`` and ``biases``."""
        return [layer.weight for layer in self.layers], [layer.bias for layer in self.layers]


def as_network(modules: Iterable[nn.Module], kind: type[nn.Module] = nn.Linear) -> Network | None:
    """The modules as one network with layers of a kind; None where one is not plain, or they have another form."""
    identity: tuple[str, list[float]] = ("identity", [])
    layers: list[Any] = []
    functions: list[tuple[str, list[float]]] = []  # after each layer
    for module in modules:
        if is_plain_linear(module, kind):
            layers.append(module)
            functions.append(identity)
        elif not is_off(module):
            function = plain_activation(module)
            if function is None or not layers or functions[-1] != identity:
                return None
            functions[-1] = function
    if not layers or any(function != functions[0] for function in functions[:-1]):
        return None
    (activation, params), (output_activation, output_params) = functions[0], functions[-1]
    if len(layers) == 1:
        activation, params = identity
    return Network(layers, (activation, output_activation, params, output_params))


def call_modules(modules: Sequence[nn.Module], input: Tensor) -> Tensor:
    """The modules one after another; a plain layer and its activation are one op."""
    position = 0
    while position < len(modules):
        module = modules[position]
        is_layer = is_plain_linear(module) and position + 1 < len(modules)
        function = plain_activation(modules[position + 1] if is_layer else module)
        position += 1
        if function is not None and is_layer:
            check_tensor("nn.MLP", input)
            input = torch.ops.fastops.linear_act(input, module.weight, module.bias, *function)
            position += 1
        elif function is not None and is_plain_tensor(input):
            input = getattr(torch.ops.fastops, function[0])(input, *function[1])
        else:
            input = module(input)
    return input


def restore_activation(module: nn.Module) -> None:
    """Gives a module that was pickled by a version whose activations were no modules its ``act_fn``."""
    own = module.__dict__
    if "params" in own:
        activation = module_of(own.pop("activation"), own.pop("params")).train(module.training)
        own["_modules"] = {**own["_modules"], "act_fn": activation}


_ATTRIBUTES_BEFORE = {"activation", "params", "output_activation", "output_params", "dropout"}


def check_settable(module: nn.Module, name: str) -> None:
    """Raises an AttributeError for what that version had instead of modules: setting it would do nothing."""
    if name in _ATTRIBUTES_BEFORE and name not in module.__dict__.get("_modules", ()):
        place = "mlp[1]" if isinstance(module, nn.Sequential) else "layer.act_fn"
        raise AttributeError(
            f"fastops.nn.{type(module).__name__}: {name} cannot be set: activations and dropouts are modules; replace "
            f"or change those, as in {place} = torch.nn.ReLU()"
        )


def module_of(activation: str, params: Sequence[float]) -> nn.Module:
    module = as_module(activation)
    for name, value in zip(PARAMETERS[activation], params, strict=False):
        setattr(module, name, value)
    return module


def name_after(name: str, distance: int, what: str) -> str:
    """The name of the module at a distance after another in a Sequential."""
    return str(int(name) + distance) if name.isdecimal() else f"{name}_{what}"


def check_form(sequential: nn.Sequential, owner: str) -> None:
    """Raises a ValueError, which names the owner, unless it is a multi-layer perceptron."""

    def fail(position: str, reason: str) -> ValueError:
        return ValueError(f"fastops.nn.{owner}module {position}: {reason}")

    is_empty = True
    between: list[tuple[str, nn.Module, float]] = []  # after each layer but the last: position, activation, dropout
    modules = _Peekable(sequential._modules.items())  # not named_children, which skips repetitions
    while modules:
        position, layer = modules.take()
        if type(layer) is not nn.Linear:
            raise fail(position, f"expected torch.nn.Linear, but it is {type(layer).__name__}")
        is_empty = False
        if not modules:
            break
        position, activation = modules.take()
        if isinstance(activation, nn.Linear):
            raise fail(position, "expected an activation between two Linear modules")
        resolve(activation)
        dropout = 0.0
        if modules and isinstance(modules.peek(), nn.Dropout):
            dropout = modules.take()[1].p
        if not modules:
            if dropout:
                raise fail(position, "dropout after the last layer is not part of an MLP")
            break
        between.append((position, activation, dropout))
    if is_empty:
        raise fail("0", "the Sequential is empty; it needs at least one Linear")
    for position, activation, dropout in between[1:]:
        if resolve(activation) != resolve(between[0][1]) or dropout != between[0][2]:
            raise fail(position, "activation and dropout must be the same between all layers")


class _Peekable:
    """Named modules, one after another."""

    def __init__(self, modules: Iterable[tuple[str, Any]]) -> None:
        self._modules = list(modules)

    def __bool__(self) -> bool:
        return bool(self._modules)

    def peek(self) -> nn.Module:
        return self._modules[0][1]

    def take(self) -> tuple[str, Any]:
        return self._modules.pop(0)
