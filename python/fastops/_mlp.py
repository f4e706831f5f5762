"""fastops.nn.MLP and ResidualMLP."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.compiler import is_compiling

from . import _C, functional
from ._eager import check_tensor, is_checkpointed, is_plain_tensor
from ._network import (
    ATTRIBUTES_BEFORE,
    Network,
    Plan,
    as_network,
    as_plan,
    call_modules,
    check_dropout,
    check_form,
    check_residual,
    check_settable,
    module_of,
    name_after,
    norm_modules,
    plan_for,
    sizes_of,
    steps_of,
)
from ._perceptron import Perceptron
from ._resolve import Activation, as_module, resolve


class MLP(Perceptron):
    """A multi-layer perceptron in one op: ``Linear, activation, Linear, activation, ..., Linear, output_activation``.

    With ``norm`` and ``dropout`` the hidden layers are ``Linear, norm, activation, dropout`` (``torchvision.ops.MLP``),
    or, with ``norm_first``, the network begins with its one norm. With ``residual`` the input is added to the result:
    with ``norm_first`` that is the feed-forward half of a transformer's block (docs/networks.md).

    It is the ``torch.nn.Sequential`` of these modules, with the same names and state dict, and can be used and changed
    as one (``mlp[0]``, slices, ``append``, ...); an activation is of ``torch.nn``'s class where that has it.
    ``parameters()`` gives W0, b0, W1, b1, ... For the backward pass one tensor per hidden layer is kept. Where a module
    is more than its class says (it was replaced by one with a ``forward`` of its own, or has hooks, as pruning and the
    parallel styles of ``torch.distributed`` add them), or the modules are no multi-layer perceptron any more, they are
    called one by one instead. With ``residual`` the modules alone, as in slices, are not the network.

    Args:
        in_features: size of the input's last dimension.
        hidden_features: size of the hidden layer, or the sizes of several; ``[]`` for a single linear layer.
        out_features: size of the output's last dimension; None for ``in_features``.
        activation: of the hidden layers: a name (see :mod:`fastops.functional`), an activation module, which is copied,
            or a function of PyTorch that is an activation which fastops has (``torch.tanh``).
        output_activation: of the last layer; None for none.
        bias: whether the layers have a bias.
        norm: ``"layer"`` for ``torch.nn.LayerNorm``, ``"rms"`` for ``torch.nn.RMSNorm`` with the eps of float32, 2^-23,
            None for none.
        norm_first: one norm before the first layer, instead of one in each hidden layer; nothing without ``norm``.
        dropout: probability with which the outputs of the hidden layers are zeroed during training; with ``residual``
            those of the last layer, too.
        residual: add the input to the result.
        checkpoint: keep nothing but the input for the backward pass, which computes the hidden layers again; with
            norms, active dropout or a residual connection, by ``torch.utils.checkpoint``.
        device, dtype: of the parameters.

    Shape:
        [..., in_features] to [..., out_features].

    Raises:
        TypeError: hidden features that are no integers, no number as dropout; in calls, an input of another dtype (with
            ``norm`` PyTorch's RuntimeError).
        ValueError: an unknown activation or norm, a dropout outside [0, 1], or a residual connection between different
            numbers of features; in calls, an input of other features (with ``norm_first`` PyTorch's RuntimeError).
    """

    __constants__: ClassVar[list[str]] = ["_functions", "_plan", "residual"]
    __jit_unused_properties__: ClassVar[list[str]] = ["_functions", "_plan"]

    def __init__(
        self,
        in_features: int,
        hidden_features: int | Sequence[int],
        out_features: int | None = None,
        *,
        activation: Activation = "gelu",
        output_activation: Activation | None = None,
        bias: bool = True,
        norm: str | None = None,
        norm_first: bool = False,
        dropout: float = 0.0,
        residual: bool = False,
        checkpoint: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_dropout("MLP", dropout)
        out_features = in_features if out_features is None else out_features
        check_residual("MLP", residual, in_features, out_features)
        resolve(activation)
        hidden = sizes_of("MLP", hidden_features)
        modules: list[nn.Module] = []
        if norm_first:
            modules += norm_modules(norm, in_features, device, dtype)
        for size, next_size in pairwise([in_features, *hidden]):
            modules.append(nn.Linear(size, next_size, bias=bias, device=device, dtype=dtype))
            if not norm_first:
                modules += norm_modules(norm, next_size, device, dtype)
            modules.append(as_module(activation))
            if dropout > 0:
                modules.append(nn.Dropout(dropout))
        size = hidden[-1] if hidden else in_features
        modules.append(nn.Linear(size, out_features, bias=bias, device=device, dtype=dtype))
        if output_activation is not None:
            modules.append(as_module(output_activation))
        if residual and dropout > 0:
            modules.append(nn.Dropout(dropout))
        super().__init__(*modules)
        self.residual = residual
        self.checkpoint = checkpoint

    @classmethod
    def from_sequential(cls, sequential: nn.Sequential) -> "MLP":
        """The MLP that computes what ``sequential`` does, with the same modules (not copies).

        Args:
            sequential: of ``Linear``, ``LayerNorm``, ``RMSNorm``, ``Dropout`` and activations, in any order that begins
                with a ``Linear`` or a norm. Of an MLP also ``residual`` and ``checkpoint`` are taken.

        Raises:
            TypeError: ``sequential`` is no ``torch.nn.Sequential``.
            ValueError: it has other modules, and the message says where; or it has hooks or a ``forward`` of its own.
        """
        check_form(sequential, "MLP.from_sequential: ")
        mlp = cls.__new__(cls)
        nn.Sequential.__init__(mlp, OrderedDict(sequential._modules))
        is_mlp = isinstance(sequential, MLP)
        mlp.residual = is_mlp and sequential.residual
        mlp.checkpoint = is_mlp and sequential.checkpoint
        mlp.training = sequential.training  # the modules keep theirs
        return mlp

    def forward(self, input: Tensor) -> Tensor:
        if not torch.jit.is_scripting():
            if not is_compiling():
                output = _C.network_of_modules(input, self._modules, self.residual, self.checkpoint, True)
                if output is not None:
                    return output
            return self._composed(input)
        return self._scripted(input)

    def _scripted(self, input: Tensor) -> Tensor:
        """As TorchScript can compute it."""
        if self._plan is None:
            output = self._one_by_one(input)
            return input + output if self.residual else output
        names, counts, first, second = self._plan
        steps = "residual" if self.residual else ""
        params: list[float] = []
        parameters: list[Tensor | None] = []
        weights: list[Tensor] = []
        biases: list[Tensor | None] = []
        drops = False
        for i, module in enumerate(self):
            if hasattr(module, "p"):
                if module.training and module.p > 0:
                    drops = True
                    steps += " dropout"
                    params.append(module.p)
            else:
                steps += " " + names[i]
                if counts[i] > 0:
                    params.append(first[i])
                if counts[i] > 1:
                    params.append(second[i])
            if hasattr(module, "weight"):
                parameters.append(module.weight)
            if hasattr(module, "bias"):
                parameters.append(module.bias)
            if hasattr(module, "in_features"):
                weights.append(module.weight)
                biases.append(module.bias)
        if self._functions is not None and not drops:
            activation, output_activation, params, output_params = self._functions
            return torch.ops.fastops.mlp(
                input, weights, biases, activation, output_activation, params, output_params, self.checkpoint
            )
        return functional.sequential(input, parameters, steps + " add" if self.residual else steps, params)

    @torch.jit.unused
    def _composed(self, input: Tensor) -> Tensor:
        modules = list(self._modules.values())
        is_tracing = torch.jit.is_tracing()  # it has no lists of optional tensors
        network = None if is_tracing else self._network()
        if network is not None:
            check_tensor("nn.MLP", input)
            return torch.ops.fastops.mlp(input, *network.parameters, *network.functions, self.checkpoint)
        plan = None if is_tracing or not is_plain_tensor(input) else plan_for(modules, input)
        if is_checkpointed(self):
            # As was decided here: hooks may be others in the backward pass, which computes it again.
            return torch.utils.checkpoint.checkpoint(
                lambda input: self._computed(modules, plan, input, again=True), input, use_reentrant=False
            )
        return self._computed(modules, plan, input, again=False)

    @torch.jit.unused
    def _computed(self, modules: list[Any], plan: Plan | None, input: Tensor, again: bool) -> Tensor:
        """By one op for all modules, where there is a plan, or by them; by one for each layer, where only once."""
        if plan is not None:
            return steps_of(modules, plan, self.residual)(input)
        output = self._one_by_one(input) if again else call_modules(modules, input)
        return input + output if self.residual else output

    @torch.jit.unused
    def _network(self) -> Network | None:
        return None if self.residual else as_network(self._modules.values())

    @property
    def _functions(self) -> tuple[str, str, list[float], list[float]] | None:
        modules = [module for module in self._modules.values() if type(module) is not nn.Dropout]
        network = None if self.residual else as_network(modules)
        return network and network.functions

    @property
    def _plan(self) -> tuple[list[str], list[int], list[float], list[float]] | None:
        """For each module its step, how many numbers that has, and which: TorchScript has no lists of lists here."""
        plan = as_plan(list(self._modules.values()))
        if plan is None:
            return None
        padded = [[*numbers, 0.0, 0.0] for numbers in plan.params]
        return plan.names, [*map(len, plan.params)], [n[0] for n in padded], [n[1] for n in padded]

    def __setattr__(self, name: str, value: Any) -> None:
        if type(self) is MLP:
            check_settable(self, name)
        super().__setattr__(name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        own = self.__dict__
        if not own.keys() >= ATTRIBUTES_BEFORE:
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
        return ", ".join(f"{name}=True" for name in ("residual", "checkpoint") if getattr(self, name))


class ResidualMLP(nn.Sequential):
    """A linear layer, residual blocks, a norm and a linear layer; each block is one op.

    A block is ``x + Linear(activation(Linear(norm(x))))``, with dropout behind the activation and the last layer: an
    :class:`MLP` with ``norm_first`` and ``residual``. Gorishniy et al., Revisiting Deep Learning Models for Tabular
    Data, 2021 (there with BatchNorm); Lee et al., SimBa: Simplicity Bias for Scaling Up Parameters in Deep
    Reinforcement Learning, 2024.

    It is the ``torch.nn.Sequential`` of these modules, and can be used and changed as one.

    Args:
        in_features: size of the input's last dimension.
        hidden_features: of the blocks' inputs and outputs.
        out_features: size of the output's last dimension; None for ``in_features``.
        blocks: how many.
        expansion: the features within a block are so many times ``hidden_features``.
        activation: of the blocks: a name, module or function, as of :class:`MLP`.
        norm: of the blocks' inputs and of the last layer's: ``"layer"``, ``"rms"``, or None for none, as of
            :class:`MLP`.
        dropout: probability with which outputs within the blocks are zeroed during training.
        bias: whether the layers have a bias.
        device, dtype: of the parameters.

    Shape:
        [..., in_features] to [..., out_features].

    Raises:
        RuntimeError: in calls, what ``torch.nn.Linear`` says to an input of another dtype or other features.
        TypeError: hidden features or blocks that are no integers, or a dropout that is no number.
        ValueError: an unknown activation or norm, a dropout outside [0, 1], or a negative number of blocks.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        *,
        blocks: int = 2,
        expansion: int = 4,
        activation: Activation = "relu",
        norm: str | None = "layer",
        dropout: float = 0.0,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if blocks < 0:
            raise ValueError(f"fastops.nn.ResidualMLP: blocks must not be negative, but is {blocks}")
        check_dropout("ResidualMLP", dropout)
        resolve(activation)
        size = hidden_features
        modules: list[nn.Module] = [nn.Linear(in_features, size, bias, device, dtype)]
        modules += [
            MLP(
                size,
                expansion * size,
                activation=activation,
                bias=bias,
                norm=norm,
                norm_first=True,
                dropout=dropout,
                residual=True,
                device=device,
                dtype=dtype,
            )
            for _ in range(blocks)
        ]
        modules += norm_modules(norm, size, device, dtype)
        modules.append(nn.Linear(size, in_features if out_features is None else out_features, bias, device, dtype))
        super().__init__(*modules)


for _class in (MLP, ResidualMLP):
    _class.__module__ = "fastops.nn"  # where people have them from, and where pickles look
