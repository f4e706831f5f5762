"""What programs do to modules after fastops.nn.convert, for its fuzzing; done to both twins alike."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize, prune

Change = Callable[[Any, random.Random, contextlib.ExitStack], None]
CHANGES: dict[str, Change] = {}


def change(function: Change) -> Change:
    """Adds a change, under its name."""
    CHANGES[function.__name__.replace("_", " ")] = function
    return function


def adapted(layer: nn.Linear, how: str, extra: Any = None) -> nn.Linear:
    """A linear layer that is not as torch.nn made it."""
    if how == "one element":
        layer.bias = nn.Parameter(layer.bias.detach()[:1])
    elif how == "forward":
        forward = layer.forward
        layer.forward = lambda x: (extra("forward"), forward(x))[1]
    else:
        setattr(layer, how, nn.Parameter(getattr(layer, how).detach().as_subclass(extra)))
    return layer


def some(twin: Any, chance: random.Random, kind: Any = nn.Module) -> nn.Module | None:
    """One of the modules of a kind, the same in both twins."""
    modules = [module for module in twin.model.modules() if isinstance(module, kind)]
    return chance.choice(modules) if modules else None


@change
def hook(twin: Any, chance: random.Random, _: Any) -> None:
    module = some(twin, chance)
    match chance.randrange(4):
        case 0:
            module.register_forward_hook(lambda *_: twin.notes.append("forward hook"))
        case 1:
            module.register_forward_pre_hook(lambda module, args: tuple(2 * x for x in args))
        case 2:
            module.register_forward_hook(lambda module, args, output: output + 1)
        case 3:
            module.register_full_backward_hook(lambda *_: twin.notes.append("backward hook"))


@change
def hook_that_changes_a_layer(twin: Any, chance: random.Random, _: Any) -> None:
    twin.model.register_forward_pre_hook(
        lambda module, args: (
            [each.register_forward_hook(lambda *_: twin.notes.append("late")) for each in module.modules()] and None
        )
    )


@change
def global_hook(twin: Any, chance: random.Random, until_called: contextlib.ExitStack) -> None:
    def note(module: nn.Module, *_: Any) -> None:
        twin.notes.append(type(module).__name__)

    registered = getattr(
        nn.modules.module, chance.choice(["register_module_forward_hook", "register_module_forward_pre_hook"])
    )
    until_called.callback(registered(note).remove)


@change
def replaced_function(twin: Any, chance: random.Random, until_called: contextlib.ExitStack) -> None:
    owner, name = chance.choice(
        [(F, "linear"), (F, "gelu"), (F, "silu"), (F, "relu"), (torch, "tanh"), (F, "dropout"), (F, "hardtanh")]
        + [(kind, "forward") for kind in (nn.Linear, nn.GELU, nn.ReLU, nn.Dropout, nn.Identity, nn.Tanh, nn.Sequential)]
    )
    function = getattr(owner, name)

    def patched(*args: Any, **kwargs: Any) -> Any:
        twin.notes.append(name)
        return function(*args, **kwargs) + 1

    until_called.enter_context(mock.patch.object(owner, name, patched))


@change
def replaced_call(twin: Any, chance: random.Random, until_called: contextlib.ExitStack) -> None:
    owner = chance.choice([nn.Module, nn.Linear, nn.ReLU])
    call = owner.__call__

    def patched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        twin.notes.append(type(self).__name__)
        return call(self, *args, **kwargs)

    had = "__call__" in owner.__dict__
    owner.__call__ = patched
    until_called.callback(lambda: setattr(owner, "__call__", call) if had else delattr(owner, "__call__"))


@change
def replaced_global(twin: Any, chance: random.Random, _: Any) -> None:
    name = chance.choice(["alias", "abs", "act", "halved", "scaled", "F"])
    if name == "F":
        twin.names["F"] = mock.Mock(wraps=F)
    else:
        twin.names[name] = lambda x, **_: (twin.notes.append("replaced"), 1.5 * x)[1]


@change
def replaced_closure(twin: Any, chance: random.Random, _: Any) -> None:
    for module in twin.model.modules():
        original = getattr(type(module), "_fastops_original", type(module))
        for cell in getattr(original.forward, "__closure__", None) or ():
            cell.cell_contents = torch.sin if callable(cell.cell_contents) else F


@change
def class_forward(twin: Any, chance: random.Random, _: Any) -> None:
    for module in twin.model.modules():
        original = getattr(type(module), "_fastops_original", type(module))
        if original.__module__ == twin.names["__name__"]:
            forward = original.forward
            original.forward = lambda self, x, forward=forward: forward(self, x) + 1


@change
def mode(twin: Any, chance: random.Random, _: Any) -> None:
    some(twin, chance).train(chance.random() < 0.5)


@change
def frozen(twin: Any, chance: random.Random, _: Any) -> None:
    some(twin, chance).requires_grad_(chance.random() < 0.3)


@change
def attribute(twin: Any, chance: random.Random, _: Any) -> None:
    module = some(twin, chance)
    name, value = chance.choice(
        [("flag", False), ("p", 0.9), ("inplace", True), ("negative_slope", 0.9), ("approximate", "tanh")]
    )
    if name in vars(module):
        setattr(module, name, value)


@change
def parametrization(twin: Any, chance: random.Random, _: Any) -> None:
    layer = some(twin, chance, nn.Linear)
    if layer is not None and "weight" in layer._parameters and not hasattr(type(layer), "weight"):
        torch.manual_seed(5)
        if chance.random() < 0.5:
            nn.utils.parametrizations.spectral_norm(layer)
        else:
            parametrize.register_parametrization(layer, "weight", twin.names["Noisy"]())


@change
def pruning(twin: Any, chance: random.Random, _: Any) -> None:
    layer = some(twin, chance, nn.Linear)
    if (
        layer is not None
        and type(layer._parameters.get("weight")) is nn.Parameter
        and not hasattr(type(layer), "weight")
    ):
        prune.l1_unstructured(layer, "weight", 0.5)


@change
def other_layer(twin: Any, chance: random.Random, _: Any) -> None:
    parent = some(twin, chance)
    names = [name for name, child in parent._modules.items() if child is not None]
    if not names:
        return
    name = chance.choice(names)
    child = parent._modules[name]
    if isinstance(child, nn.Linear) and "weight" in child._parameters:
        how, extra = chance.choice([("forward", twin.notes.append), ("weight", twin.names["Counted"])])
        adapted(child, how, extra)
    else:
        setattr(
            parent,
            name,
            chance.choice([nn.Hardtanh(), nn.PReLU(), twin.names["OwnActivation"](), nn.Identity()]).double(),
        )


@change
def other_dtype(twin: Any, chance: random.Random, _: Any) -> None:
    some(twin, chance).float()


@change
def learned_parameter(twin: Any, chance: random.Random, _: Any) -> None:
    activation = some(twin, chance, (nn.LeakyReLU, nn.ELU, nn.Softplus))
    if activation is not None:
        name = {"LeakyReLU": "negative_slope", "ELU": "alpha", "Softplus": "beta"}[type(activation).__name__]
        setattr(activation, name, nn.Parameter(torch.tensor(0.7, dtype=torch.float64), requires_grad=False))
