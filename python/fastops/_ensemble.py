"""Ensembles: several networks of one form, each with parameters of its own, as one module."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, List  # noqa: UP035  (TorchScript reads these)

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.compiler import is_compiling

from . import _C, functional
from ._eager import check_tensor, is_checkpointed, know
from ._mlp import MLP
from ._network import Network, as_network, check_form, does_more, sizes_of
from ._perceptron import Perceptron
from ._resolve import Activation, as_module, resolve


class EnsembleLinear(nn.Module):
    """``torch.nn.Linear`` of each member of an ensemble.

    Args:
        members: how many there are.
        in_features, out_features, bias, device, dtype: as for ``torch.nn.Linear``, whose initialization each member
            has.

    Shape:
        [members, ..., in_features] to [members, ..., out_features]; ``weight`` is
        [members, out_features, in_features], ``bias`` [members, out_features].

    Raises:
        TypeError: in calls, an input of another dtype.
        ValueError: in calls, an input without the members in front, or of other features.
    """

    def __init__(
        self,
        members: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.members = members
        self.in_features = in_features
        self.out_features = out_features
        self.weight: nn.Parameter = nn.Parameter(
            torch.empty((members, out_features, in_features), device=device, dtype=dtype)
        )
        if bias:
            self.bias: nn.Parameter | None = nn.Parameter(
                torch.empty((members, out_features), device=device, dtype=dtype)
            )
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As ``torch.nn.Linear``: uniform within 1 / sqrt(in_features)."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0.0
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        bias: Tensor | None = self.bias
        return functional.mlp(input, [self.weight], [bias], "identity")

    def extra_repr(self) -> str:
        return (
            f"members={self.members}, in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


know(EnsembleLinear)


def _fill(
    layer: nn.Linear | EnsembleLinear, like: nn.Linear | EnsembleLinear, values: dict[str, Tensor | None]
) -> None:
    """Makes a layer that is only allocated one like another, with parameters of these values."""
    nn.Module.__init__(layer)
    layer.in_features, layer.out_features = like.in_features, like.out_features
    for key, parameter in like._parameters.items():
        value = values[key]
        trained = parameter is not None and parameter.requires_grad
        layer.register_parameter(key, None if value is None else nn.Parameter(value.detach(), trained))


class EnsembleMLP(Perceptron):
    """Several :class:`MLP` of one form, each with parameters of its own, in one op.

    On the CPU each member's whole network goes through the caches by itself, and the members are spread over the
    threads. It is a ``torch.nn.Sequential`` of :class:`EnsembleLinear` and activations, and its state dict is what
    ``torch.func.stack_module_state`` makes of the members. As with :class:`MLP`, the modules are called one by one
    where one is more than its class says.

    Args:
        members: how many there are.
        in_features, hidden_features, out_features, activation, output_activation, bias, device, dtype: as for
            :class:`MLP`.
        checkpoint: keep nothing but the input for the backward pass, which computes the hidden layers again.

    Shape:
        [members, ..., in_features] to [members, ..., out_features]. An input with fewer than three dimensions,
        [rows, in_features] or [in_features], is the same for all members.

    Raises:
        TypeError: hidden features that are no integers; in calls, an input of another dtype.
        ValueError: an unknown activation; in calls, an input of other members or features.
    """

    __constants__: ClassVar[list[str]] = ["_functions"]
    __jit_unused_properties__: ClassVar[list[str]] = ["_functions"]
    _is_ensemble = True

    def __init__(
        self,
        members: int,
        in_features: int,
        hidden_features: int | Sequence[int],
        out_features: int | None = None,
        *,
        activation: Activation = "gelu",
        output_activation: Activation | None = None,
        bias: bool = True,
        checkpoint: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        resolve(activation)
        hidden = sizes_of("EnsembleMLP", hidden_features)
        sizes = [in_features, *hidden, in_features if out_features is None else out_features]
        modules: list[nn.Module] = []
        for size, next_size in pairwise(sizes):
            if modules:
                modules.append(as_module(activation))
            modules.append(EnsembleLinear(members, size, next_size, bias, device=device, dtype=dtype))
        if output_activation is not None:
            modules.append(as_module(output_activation))
        super().__init__(*modules)
        self.members = members
        self.checkpoint = checkpoint

    @classmethod
    def from_modules(cls, modules: Sequence[nn.Sequential]) -> "EnsembleMLP":
        """The ensemble of networks that are there already, with copies of their parameters.

        Args:
            modules: :class:`MLP` or other Sequentials, ``Linear, activation, Linear, ...[, activation]``, of the same
                layers and activations, without dropout.

        Raises:
            TypeError: one is no ``torch.nn.Sequential``.
            ValueError: there are none, one has another form than the first, or none of an MLP, or does more (hooks, a
                residual connection); the message says which.
        """
        if not modules:
            raise ValueError("fastops.nn.EnsembleMLP.from_modules: modules is empty; it needs at least one")
        forms = [_form_of(i, module) for i, module in enumerate(modules)]
        for i, form in enumerate(forms):
            if form != forms[0]:
                raise ValueError(
                    f"fastops.nn.EnsembleMLP.from_modules: modules[{i}] has other layers or activations than "
                    "modules[0], or others of its parameters are trained"
                )
        stacked = OrderedDict[str, nn.Module]()
        for name, first in modules[0]._modules.items():
            members: list[Any] = [module._modules[name] for module in modules]
            if not isinstance(first, nn.Linear):
                stacked[name] = as_module(first)
                continue
            layer = EnsembleLinear.__new__(EnsembleLinear)
            values = {
                key: None if parameter is None else torch.stack([member._parameters[key] for member in members])
                for key, parameter in first._parameters.items()
            }
            _fill(layer, first, values)
            layer.members = len(modules)
            stacked[name] = layer
        ensemble = cls.__new__(cls)
        nn.Sequential.__init__(ensemble, stacked)
        ensemble.members = len(modules)
        ensemble.checkpoint = any(isinstance(module, MLP) and module.checkpoint for module in modules)
        return ensemble.train(modules[0].training)

    def to_modules(self) -> List[nn.Sequential]:  # noqa: UP006
        """The members, as Sequentials of ``torch.nn`` modules with copies of their parameters.

        :meth:`fastops.nn.MLP.from_sequential` makes an MLP of each.
        """
        networks = []
        for member in range(self.members):
            modules = OrderedDict[str, nn.Module]()
            for name, module in self._modules.items():
                if not isinstance(module, EnsembleLinear):
                    modules[name] = as_module(module)
                    continue
                linear = nn.Linear.__new__(nn.Linear)
                values = {
                    key: None if parameter is None else parameter[member].clone()
                    for key, parameter in module._parameters.items()
                }
                _fill(linear, module, values)
                modules[name] = linear
            networks.append(nn.Sequential(modules).train(self.training))
        return networks

    def forward(self, input: Tensor) -> Tensor:
        if not torch.jit.is_scripting():
            if not is_compiling():
                output = _C.ensemble_of_modules(input, self._modules, self.checkpoint)
                if output is not None:
                    return output
            return self._composed(input)
        input = self._points(input)
        if self._functions is None:
            return self._one_by_one(input)
        weights: list[Tensor] = []
        biases: list[Tensor | None] = []
        for module in self:
            if hasattr(module, "weight"):
                weights.append(module.weight)  # type: ignore[arg-type]
                biases.append(module.bias)  # type: ignore[arg-type]
        activation, output_activation, params, output_params = self._functions
        return torch.ops.fastops.mlp(
            input, weights, biases, activation, output_activation, params, output_params, self.checkpoint
        )

    def _points(self, input: Tensor) -> Tensor:
        if input.dim() > 2 or input.is_sparse or input.is_sparse_csr or input.is_mkldnn:  # which the op refuses
            return input
        return input.expand([self.members] + list(input.shape))

    @torch.jit.unused
    def _composed(self, input: Tensor) -> Tensor:
        check_tensor("nn.EnsembleMLP", input)
        points = self._points(input)
        network = None if torch.jit.is_tracing() else self._network()
        if network is not None:
            return torch.ops.fastops.mlp(points, *network.parameters, *network.functions, self.checkpoint)
        if is_checkpointed(self):
            return torch.utils.checkpoint.checkpoint(self._one_by_one, points, use_reentrant=False)
        return self._one_by_one(points)

    @torch.jit.unused
    def _network(self) -> Network | None:
        return as_network(self._modules.values(), EnsembleLinear)

    @property
    def _functions(self) -> tuple[str, str, list[float], list[float]] | None:
        network = self._network()
        return network and network.functions

    def extra_repr(self) -> str:
        return "checkpoint=True" if self.checkpoint else ""


def _form_of(i: int, module: nn.Sequential) -> list[Any]:
    """What the members of an ensemble must have in common."""
    owner = f"EnsembleMLP.from_modules: modules[{i}], "
    check_form(module, owner)
    form: list[Any] = []
    if isinstance(module, Perceptron) and module.residual:
        raise ValueError(f"fastops.nn.{owner}residual=True: an ensemble has no residual connections")
    for name, inner in module._modules.items():
        if inner is not None and does_more(inner):
            raise ValueError(f"fastops.nn.{owner}module {name}: it has hooks, which an ensemble would not call")
        if isinstance(inner, (nn.Dropout, nn.LayerNorm, nn.RMSNorm)):
            raise ValueError(f"fastops.nn.{owner}module {name}: an ensemble has no dropout and no norms")
        if isinstance(inner, nn.Linear):
            weight, bias = inner.weight, inner.bias
            trained = weight.requires_grad, bias is not None and bias.requires_grad
            form.append((name, weight.shape, bias is None, weight.dtype, weight.device, trained))
        elif inner is not None:
            form.append((name, resolve(inner)))
    return form


for _class in (EnsembleLinear, EnsembleMLP):
    _class.__module__ = "fastops.nn"  # where people have them from, and where pickles look
