"""The ops as modules: drop-in replacements whose parameters and state dicts are those of the ``torch.nn`` equivalents.

A module for every activation, named as in ``torch.nn`` (``ReLU``, ``GELU``, ``Softshrink``, ...), the layers below, and
:func:`convert` for existing models.

Inside the layers below are modules of ``torch.nn``, activations included, as they are in the ``torch.nn`` equivalents.
One op stands for all of them as long as calling them would do no more. Where one has hooks, was replaced or is changed
in any other way, or where there are hooks for all modules, they are called one by one instead.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, List, Optional, Union  # noqa: UP035  (TorchScript reads these)

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.compiler import is_compiling

from . import _C, _activations
from ._activations import *  # noqa: F403
from ._convert import convert
from ._eager import check_tensor, is_linear_unchanged, is_plain_linear, is_plain_tensor
from ._ensemble import EnsembleLinear, EnsembleMLP
from ._network import (
    Network,
    as_network,
    call_modules,
    check_form,
    check_settable,
    module_of,
    name_after,
    restore_activation,
)
from ._perceptron import Perceptron
from ._resolve import Activation, as_module, plain_activation, resolve

__all__ = [*_activations.MODULES, "EnsembleLinear", "EnsembleMLP", "GatedMLP", "LinearAct", "MLP", "convert"]


class LinearAct(nn.Module):
    """``activation(input @ weight.T + bias)``: ``torch.nn.Linear`` and an activation in one op.

    Parameters, initialization and state dict are those of ``torch.nn.Linear``. It is none, as it computes something
    else; the activation is the module ``act_fn``.

    Args:
        in_features, out_features, bias, device, dtype: as for ``torch.nn.Linear``.
        activation: a name (see :mod:`fastops.functional`) or an activation module, which is copied.

    Shape:
        [..., in_features] to [..., out_features].

    Raises:
        ValueError: an unknown activation.
    """

    __constants__ = ["_function", "in_features", "out_features"]  # noqa: RUF012  (as TorchScript wants it)
    __jit_unused_properties__ = ["_function"]  # noqa: RUF012

    def __init__(
        self,
        in_features: int,
        out_features: int,
        activation: Activation = "relu",
        bias: bool = True,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty((out_features, in_features), device=device, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.act_fn = as_module(activation)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As ``torch.nn.Linear``."""
        nn.Linear.reset_parameters(self)

    def forward(self, input: Tensor) -> Tensor:
        if not torch.jit.is_scripting():
            if not is_compiling():
                output = _C.linear_act_of_modules(input, self._parameters, self._modules)
                if output is not None:
                    return output
            return self._composed(input)
        if self._function is None:
            return self.act_fn(nn.functional.linear(input, self.weight, self.bias))
        activation, params = self._function
        return torch.ops.fastops.linear_act(input, self.weight, self.bias, activation, params)

    @torch.jit.unused
    def _composed(self, input: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias  # computed, perhaps: asked for once
        stored = self._parameters  # while torch.fx records, the attributes are something else
        is_plain = is_plain_tensor(stored.get("weight", weight))
        is_plain = is_plain and (bias is None or is_plain_tensor(stored.get("bias", bias)))
        function = plain_activation(self.act_fn)
        if function is None or not is_plain or not is_linear_unchanged():
            return self.act_fn(nn.functional.linear(input, weight, bias))
        check_tensor("nn.LinearAct", input)
        return torch.ops.fastops.linear_act(input, weight, bias, *function)

    @property
    def _function(self) -> Optional[tuple[str, list[float]]]:
        return plain_activation(self.act_fn)

    def __setattr__(self, name: str, value: Any) -> None:
        if type(self) is LinearAct:
            check_settable(self, name)
        super().__setattr__(name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        restore_activation(self)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class MLP(Perceptron):
    """A multi-layer perceptron in one op: ``Linear, activation, Linear, activation, ..., Linear, output_activation``.

    It is the ``torch.nn.Sequential`` of these modules, with the same names and state dict, and can be used and changed
    as one (``mlp[0]``, slices, ``append``, ...); an activation is of ``torch.nn``'s class where that has it.
    ``parameters()`` gives W0, b0, W1, b1, ... For the backward pass one tensor per hidden layer is kept. Where a module
    is more than its class says (it was replaced by one with a ``forward`` of its own, or has hooks, as pruning and the
    parallel styles of ``torch.distributed`` add them), or the modules are no multi-layer perceptron any more, they are
    called one by one instead.

    Args:
        in_features: size of the input's last dimension.
        hidden_features: size of the hidden layer, or the sizes of several; ``[]`` for a single linear layer.
        out_features: size of the output's last dimension; None for ``in_features``.
        activation: of the hidden layers: a name (see :mod:`fastops.functional`) or an activation module, which is
            copied.
        output_activation: of the last layer; None for none.
        bias: whether the layers have a bias.
        dropout: probability with which the outputs of the hidden layers are zeroed during training. With dropout, the
            layers run as one op each.
        checkpoint: keep nothing but the input for the backward pass, which computes the hidden layers again.
        device, dtype: of the parameters.

    Shape:
        [..., in_features] to [..., out_features].

    Raises:
        ValueError: an unknown activation, or a dropout outside [0, 1].
    """

    __constants__ = ["_functions"]  # noqa: RUF012  (as TorchScript wants it)
    __jit_unused_properties__ = ["_functions"]  # noqa: RUF012

    def __init__(
        self,
        in_features: int,
        hidden_features: Union[int, Sequence[int]],
        out_features: Optional[int] = None,
        *,
        activation: Activation = "gelu",
        output_activation: Optional[Activation] = None,
        bias: bool = True,
        dropout: float = 0.0,
        checkpoint: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if not 0.0 <= dropout <= 1.0:
            raise ValueError(f"fastops.nn.MLP: dropout must be between 0 and 1, but is {dropout}")
        resolve(activation)
        hidden = [hidden_features] if isinstance(hidden_features, int) else list(hidden_features)
        modules: list[nn.Module] = []
        for size, next_size in pairwise([in_features, *hidden]):
            modules.append(nn.Linear(size, next_size, bias=bias, device=device, dtype=dtype))
            modules.append(as_module(activation))
            if dropout > 0:
                modules.append(nn.Dropout(dropout))
        size = hidden[-1] if hidden else in_features
        next_size = in_features if out_features is None else out_features
        modules.append(nn.Linear(size, next_size, bias=bias, device=device, dtype=dtype))
        if output_activation is not None:
            modules.append(as_module(output_activation))
        super().__init__(*modules)
        self.checkpoint = checkpoint

    @classmethod
    def from_sequential(cls, sequential: nn.Sequential) -> "MLP":
        """The MLP that computes what ``sequential`` does, with the same modules (not copies).

        Args:
            sequential: ``Linear, activation[, Dropout], Linear, ...[, activation]``, with one kind of activation and
                of dropout between the layers.

        Raises:
            ValueError: it has another form; the message says where.
        """
        check_form(sequential, "MLP.from_sequential: ")
        mlp = cls.__new__(cls)
        nn.Sequential.__init__(mlp, OrderedDict(sequential._modules))
        mlp.checkpoint = False
        return mlp.train(sequential.training)

    def forward(self, input: Tensor) -> Tensor:
        if not torch.jit.is_scripting():
            if not is_compiling():
                output = _C.mlp_of_modules(input, self._modules, self.checkpoint)
                if output is not None:
                    return output
            return self._composed(input)
        if self._functions is None:
            return self._one_by_one(input)
        weights: List[Tensor] = []
        biases: List[Optional[Tensor]] = []
        dropout = False
        for module in self:
            if hasattr(module, "weight"):
                weights.append(module.weight)
                biases.append(module.bias)
            if hasattr(module, "p"):
                dropout = dropout or (module.training and module.p > 0)
        if dropout:
            return self._one_by_one(input)
        activation, output_activation, params, output_params = self._functions
        return torch.ops.fastops.mlp(
            input, weights, biases, activation, output_activation, params, output_params, self.checkpoint
        )

    @torch.jit.unused
    def _composed(self, input: Tensor) -> Tensor:
        modules = list(self._modules.values())
        is_tracing = torch.jit.is_tracing()  # it has no lists of optional tensors
        network = None if is_tracing else as_network(modules)
        if network is not None:
            check_tensor("nn.MLP", input)
            return torch.ops.fastops.mlp(input, *network.parameters, *network.functions, self.checkpoint)
        if self.checkpoint and not is_tracing:
            return torch.utils.checkpoint.checkpoint(call_modules, modules, input, use_reentrant=False)
        return call_modules(modules, input)

    @torch.jit.unused
    def _network(self) -> Optional[Network]:
        return as_network(self._modules.values())

    @property
    def _functions(self) -> Optional[tuple[str, str, list[float], list[float]]]:
        network = as_network([module for module in self._modules.values() if type(module) is not nn.Dropout])
        return network and network.functions

    def __setattr__(self, name: str, value: Any) -> None:
        if type(self) is MLP:
            check_settable(self, name)
        super().__setattr__(name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        own = self.__dict__
        if "params" not in own:
            return
        # Pickled by a version whose activations were no modules: `_modules` has the layers alone.
        hidden = own.pop("activation"), own.pop("params")
        last = own.pop("output_activation"), own.pop("output_params")
        dropout = own.pop("dropout")
        names = list(own["_modules"])
        modules: dict[str, nn.Module] = {}
        for name, layer in own["_modules"].items():
            is_last = name == names[-1]
            modules[name] = layer
            if not is_last or last[0] != "identity":
                modules[name_after(name, 1, "activation")] = module_of(*(last if is_last else hidden))
            if dropout and not is_last:
                modules[name_after(name, 2, "dropout")] = nn.Dropout(dropout)
        own["_modules"] = modules
        for module in modules.values():
            module.train(self.training)

    def extra_repr(self) -> str:
        return "checkpoint=True" if self.checkpoint else ""


class GatedMLP(nn.Module):
    """The gated feed-forward block of LLaMA: ``down_proj(activation(gate_proj(x)) * up_proj(x))`` in one op.

    Shazeer, GLU Variants Improve Transformer, 2020. The projections are ``torch.nn.Linear`` modules named as in
    Hugging Face's LLaMA, and so is the activation, the module ``act_fn``. Where one is more than its class says
    (replaced by a module with a ``forward`` of its own, or with hooks), they are called one by one instead.

    Args:
        in_features: size of the input's last dimension.
        hidden_features: size of the gate and up projections.
        out_features: size of the output's last dimension; None for ``in_features``.
        activation: a name (see :mod:`fastops.functional`) or an activation module, which is copied; ``silu`` gives
            SwiGLU.
        bias: whether the projections have a bias.
        checkpoint: keep nothing but the input for the backward pass, which computes the projections again.
        device, dtype: of the parameters.

    Shape:
        [..., in_features] to [..., out_features].

    Raises:
        ValueError: an unknown activation.
    """

    __constants__ = ["_function"]  # noqa: RUF012  (as TorchScript wants it)
    __jit_unused_properties__ = ["_function"]  # noqa: RUF012

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: Optional[int] = None,
        *,
        activation: Activation = "silu",
        bias: bool = False,
        checkpoint: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        out_features = in_features if out_features is None else out_features
        self.gate_proj = nn.Linear(in_features, hidden_features, bias, device, dtype)
        self.up_proj = nn.Linear(in_features, hidden_features, bias, device, dtype)
        self.down_proj = nn.Linear(hidden_features, out_features, bias, device, dtype)
        self.act_fn = as_module(activation)
        self.checkpoint = checkpoint

    def forward(self, input: Tensor) -> Tensor:
        if not torch.jit.is_scripting():
            if not is_compiling():
                output = _C.gated_mlp_of_modules(input, self._modules, self.checkpoint)
                if output is not None:
                    return output
            return self._composed(input)
        gate, up, down = self.gate_proj, self.up_proj, self.down_proj
        if self._function is None:
            return down(self.act_fn(gate(input)) * up(input))
        activation, params = self._function
        return torch.ops.fastops.gated_mlp(
            input,
            gate.weight,
            up.weight,
            down.weight,
            gate.bias,
            up.bias,
            down.bias,
            activation,
            params,
            self.checkpoint,
        )

    @torch.jit.unused
    def _composed(self, input: Tensor) -> Tensor:
        function = self._function
        if function is not None:
            check_tensor("nn.GatedMLP", input)
            layers = self.gate_proj, self.up_proj, self.down_proj
            parameters = [layer.weight for layer in layers] + [layer.bias for layer in layers]
            return torch.ops.fastops.gated_mlp(input, *parameters, *function, self.checkpoint)
        if self.checkpoint and not torch.jit.is_tracing():
            return torch.utils.checkpoint.checkpoint(self._call_modules, input, use_reentrant=False)
        return self._call_modules(input)

    @torch.jit.unused
    def _call_modules(self, input: Tensor) -> Tensor:
        gate, up = self.gate_proj(input), self.up_proj(input)
        activation = plain_activation(self.act_fn)
        if activation is None:
            return self.down_proj(self.act_fn(gate) * up)
        return self.down_proj(torch.ops.fastops.act_mul(gate, up, *activation))

    @property
    def _function(self) -> Optional[tuple[str, list[float]]]:
        """The activation, where all modules are plain."""
        layers = self.gate_proj, self.up_proj, self.down_proj
        return plain_activation(self.act_fn) if all(is_plain_linear(layer) for layer in layers) else None

    def __setattr__(self, name: str, value: Any) -> None:
        if type(self) is GatedMLP:
            check_settable(self, name)
        super().__setattr__(name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        restore_activation(self)

    def extra_repr(self) -> str:
        return "checkpoint=True" if self.checkpoint else ""
