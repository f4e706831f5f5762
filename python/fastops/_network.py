"""Modules one after another as a network: when one op computes them, and what is done where none does."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ._eager import (
    check_tensor,
    has_hooks,
    is_autocast_on,
    is_off,
    is_plain_dropout,
    is_plain_linear,
    is_plain_tensor,
    plain_norm,
)
from ._resolve import PARAMETERS, as_module, find, plain_activation
from ._steps import TENSORS, dropout_seed


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


class Plan(NamedTuple):
    """For each of a network's modules, its step in ``sequential`` and the numbers of that; of a dropout none."""

    names: list[str]
    params: list[list[float]]


def as_plan(modules: Sequence[nn.Module], features: int | None = None, dtype: torch.dtype | None = None) -> Plan | None:
    """How one ``sequential`` computes the modules; features and dtype are the input's, where they are known.

    None where one is not plain, where none is a Linear, or where the first could change the input.
    """
    plan = Plan([], [])
    has_linear = False
    for module in modules:
        is_own = bool(plan.names)  # what came before made a tensor that modules may write into
        step: tuple[str, list[float]] | None
        if is_plain_linear(module):
            step, features, has_linear = ("linear", []), module.weight.size(0), True
        elif (norm := plain_norm(module, dtype)) is not None:
            name, size, eps = norm
            step = (name, [eps]) if features in (None, size) else None
            features = size
        elif is_plain_dropout(module):
            step = ("dropout", []) if is_own else None
        else:
            step = plain_activation(module) if is_own else None
        if step is None:
            return None
        plan.names.append(step[0])
        plan.params.append(step[1])
    return plan if has_linear else None


class Steps(NamedTuple):
    """The arguments of a ``sequential`` after its input, but for the seed."""

    parameters: list[Tensor | None]
    steps: str
    params: list[float]

    def __call__(self, input: Tensor) -> Tensor:
        seed = dropout_seed(input) if "dropout" in self.steps else None
        return torch.ops.fastops.sequential(input, self.parameters, self.steps, self.params, seed)


def plan_for(modules: Sequence[nn.Module], input: Tensor) -> Plan | None:
    """How one ``sequential`` computes the modules of this input, or None."""
    plan = as_plan(modules, input.size(-1), input.dtype) if input.dim() else None
    if plan is None:
        return None
    layers = [module for module, name in zip(modules, plan.names, strict=True) if name == "linear"]
    return plan if have_dtype(layers, input) else None


def have_dtype(layers: Sequence[Any], input: Tensor) -> bool:
    """Whether linear layers have the input's dtype, which ``torch.nn`` asks for, or autocast gives them one."""
    return all(layer.weight.dtype == input.dtype for layer in layers) or is_autocast_on(input.device)


def steps_of(modules: Sequence[Any], plan: Plan, residual: bool = False) -> Steps:
    """The modules by their plan, with a residual connection around them if there is to be one."""
    parameters: list[Tensor | None] = []
    names = ["residual"] if residual else []
    params: list[float] = []
    for module, name, numbers in zip(modules, *plan, strict=True):
        if name != "dropout":
            parameters += [getattr(module, tensor) for tensor in ("weight", "bias")[: TENSORS.get(name, 0)]]
            names.append(name)
            params += numbers
        elif module.training and module.p:
            names.append(name)
            params.append(module.p)
    return Steps(parameters, " ".join([*names, "add"] if residual else names), params)


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
        elif function is not None and is_plain_tensor(input) and not getattr(module, "inplace", False):
            input = getattr(torch.ops.fastops, function[0])(input, *function[1])
        else:
            input = module(input)
    return input


def restore_activation(module: nn.Module) -> None:
    """Gives a module that was pickled by a version whose activations were no modules its ``act_fn``."""
    own = module.__dict__
    if "act_fn" not in own["_modules"] and {"activation", "params"} <= own.keys():
        activation = module_of(own.pop("activation"), own.pop("params")).train(module.training)
        own["_modules"] = {**own["_modules"], "act_fn": activation}


ATTRIBUTES_BEFORE = {"activation", "params", "output_activation", "output_params", "dropout"}


def check_settable(module: nn.Module, name: str) -> None:
    """Raises an AttributeError for what that version had instead of modules: setting it would do nothing."""
    if name in ATTRIBUTES_BEFORE and name not in module.__dict__.get("_modules", ()):
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


# What RMSNorm means without eps for 16-bit types differs among versions of torch: here it is one number for all types.
_NORMS: dict[str, Callable[..., nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": functools.partial(nn.RMSNorm, eps=torch.finfo(torch.float32).eps),
}


def norm_modules(norm: str | None, features: int, device: Any, dtype: Any) -> list[nn.Module]:
    """The norm of a network's layer, if there is to be one."""
    if norm is None:
        return []
    if not isinstance(norm, str) or norm not in _NORMS:
        raise ValueError(f"fastops.nn: norm must be 'layer', 'rms' or None, but is {norm!r}")
    return [_NORMS[norm](features, device=device, dtype=dtype)]


def check_residual(owner: str, residual: bool, in_features: int, out_features: int) -> None:
    if residual and out_features != in_features:
        raise ValueError(
            f"fastops.nn.{owner}: residual needs as many outputs as inputs, but has {out_features} and {in_features}"
        )


def name_after(name: str, distance: int, what: str) -> str:
    """The name of the module at a distance after another in a Sequential."""
    return str(int(name) + distance) if name.isdecimal() else f"{name}_{what}"


def sizes_of(owner: str, hidden_features: Any) -> list[int]:
    """The sizes of hidden layers; a TypeError, which names the owner, if they are neither a number nor numbers."""
    sizes = [hidden_features] if hasattr(type(hidden_features), "__index__") else hidden_features
    try:
        return [operator.index(size) for size in sizes]
    except TypeError:
        raise TypeError(
            f"fastops.nn.{owner}: hidden_features must be an integer or a list of integers, but is {hidden_features!r}"
        ) from None


def does_more(module: nn.Module) -> bool:
    """Whether calling the module does more than its class says: hooks, or a ``forward`` of its own."""
    return has_hooks(module) or "forward" in module.__dict__


def check_dropout(owner: str, dropout: float) -> None:
    """Raises an error, which names the owner, unless it is a probability."""
    if not hasattr(type(dropout), "__float__"):
        raise TypeError(f"fastops.nn.{owner}: dropout must be a number, but is {dropout!r}")
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"fastops.nn.{owner}: dropout must be between 0 and 1, but is {dropout}")


def check_form(sequential: nn.Sequential, owner: str) -> None:
    """Raises an error, which names the owner, unless it is made of the modules that an MLP may have."""
    if not isinstance(sequential, nn.Sequential):
        what = type(sequential).__qualname__
        raise TypeError(f"fastops.nn.{owner}expected a torch.nn.Sequential, but it is a {what}")
    kind = getattr(type(sequential), "_fastops_original", type(sequential))  # of what is converted
    if not kind.forward.__module__.startswith(("torch.nn.", "fastops.")):
        raise ValueError(f"fastops.nn.{owner}{kind.__qualname__} has a forward of its own, which is no Sequential's")
    if does_more(sequential):
        raise ValueError(f"fastops.nn.{owner}it has hooks or a forward of its own, which would not be called")
    has_linear = has_any = False
    for position, module in sequential._modules.items():  # not named_children, which skips repetitions
        kind = type(module)
        where = f"fastops.nn.{owner}module {position}"
        if kind is nn.Linear:
            has_linear = True
        elif kind not in (nn.LayerNorm, nn.RMSNorm) and not has_any:
            raise ValueError(
                f"{where}: expected torch.nn.Linear, or a LayerNorm or RMSNorm before it, but it is {kind.__name__}"
            )
        elif kind not in (nn.LayerNorm, nn.RMSNorm, nn.Dropout) and find(module) is None:
            raise ValueError(
                f"{where}: expected torch.nn.Linear, LayerNorm, RMSNorm, Dropout or an activation, but "
                f"{kind.__module__}.{kind.__qualname__} is not an activation that fastops has"
            )
        has_any = True
    if not has_linear:
        raise ValueError(f"fastops.nn.{owner}it has {len(sequential)} modules, but needs a torch.nn.Linear among them")
