"""The ops as modules: drop-in replacements whose parameters and state dicts are those of the ``torch.nn`` equivalents.

A module for every activation, named as in ``torch.nn`` (``ReLU``, ``GELU``, ``Softshrink``, ...), the layers below, and
:func:`convert` for existing models.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, List, Optional, Union  # noqa: UP035  (TorchScript reads these)

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from . import _C, _activations
from ._activations import *  # noqa: F403
from ._convert import convert
from ._eager import is_plain_eager, is_plain_linear
from ._resolve import Activation, describe, resolve

__all__ = [*_activations.MODULES, "GatedMLP", "LinearAct", "MLP", "convert"]


class LinearAct(nn.Linear):
    """``activation(input @ weight.T + bias)``: ``torch.nn.Linear`` and an activation in one op.

    Parameters, initialization and state dict are those of ``torch.nn.Linear``.

    Args:
        in_features, out_features, bias, device, dtype: as for ``torch.nn.Linear``.
        activation: a name (see :mod:`fastops.functional`) or an activation module.

    Shape:
        [..., in_features] to [..., out_features].

    Raises:
        ValueError: an unknown activation.
    """

    params: List[float]

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
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation, self.params = resolve(activation)

    def forward(self, input: Tensor) -> Tensor:
        if not torch.jit.is_scripting():
            if is_plain_eager(input):
                return _C.linear_act(input, self.weight, self.bias, self.activation, self.params)
        return torch.ops.fastops.linear_act(input, self.weight, self.bias, self.activation, self.params)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={describe(self.activation, self.params)}"


class MLP(nn.ModuleDict):
    """A multi-layer perceptron in one op: ``Linear, activation, Linear, activation, ..., Linear, output_activation``.

    The layers are ``torch.nn.Linear`` modules under the names that they have in the equivalent ``torch.nn.Sequential``
    (``"0"``, ``"2"``, ...), so state dicts are interchangeable with it. ``parameters()`` gives W0, b0, W1, b1, ...
    For the backward pass one tensor per hidden layer is kept. Where a layer is more than a plain ``torch.nn.Linear``
    (it was replaced by a module with a ``forward`` of its own, or has hooks, as pruning and the parallel styles of
    ``torch.distributed`` add them), the layers are called one by one instead.

    Args:
        in_features: size of the input's last dimension.
        hidden_features: size of the hidden layer, or the sizes of several; ``[]`` for a single linear layer.
        out_features: size of the output's last dimension; None for ``in_features``.
        activation: of the hidden layers: a name (see :mod:`fastops.functional`) or an activation module.
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

    params: List[float]
    output_params: List[float]

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
        hidden = [hidden_features] if isinstance(hidden_features, int) else list(hidden_features)
        sizes = [in_features, *hidden, in_features if out_features is None else out_features]
        step = 3 if dropout > 0 else 2  # Linear, activation and perhaps Dropout
        layers = {
            str(step * i): nn.Linear(size, next_size, bias=bias, device=device, dtype=dtype)
            for i, (size, next_size) in enumerate(itertools.pairwise(sizes))
        }
        self._set_up(layers, activation, output_activation, dropout)
        self.checkpoint = checkpoint

    def _set_up(
        self,
        layers: dict[str, nn.Linear],
        activation: Activation,
        output_activation: Optional[Activation],
        dropout: float,
    ) -> None:
        if not 0.0 <= dropout <= 1.0:
            raise ValueError(f"fastops.nn.MLP: dropout must be between 0 and 1, but is {dropout}")
        super().__init__(layers)
        self.activation, self.params = resolve(activation)
        self.output_activation, self.output_params = resolve(output_activation or "identity")
        self.dropout = dropout
        self.checkpoint = False

    @classmethod
    def from_sequential(cls, sequential: nn.Sequential) -> "MLP":
        """The MLP that computes what ``sequential`` does, with the same ``torch.nn.Linear`` modules (not copies).

        Args:
            sequential: ``Linear, activation[, Dropout], Linear, ...[, activation]``, with one kind of activation and
                of dropout between the layers.

        Raises:
            ValueError: it has another form; the message says where.
        """
        layers, activation, output_activation, dropout = _parse_sequential(sequential)
        mlp = cls.__new__(cls)
        mlp._set_up(layers, activation, output_activation, dropout)
        return mlp.train(sequential.training)

    def forward(self, input: Tensor) -> Tensor:
        layer_by_layer = self.training and self.dropout > 0.0
        if not torch.jit.is_scripting():
            layer_by_layer |= torch.jit.is_tracing()  # it has no lists of optional tensors
            if is_plain_eager(input) and not layer_by_layer:
                output = _C.mlp_of_linears(
                    input,
                    self._modules,
                    self.activation,
                    self.output_activation,
                    self.params,
                    self.output_params,
                    self.checkpoint,
                )
                if output is not None:
                    return output
            layer_by_layer = layer_by_layer or not all(is_plain_linear(layer) for layer in self.values())
            if layer_by_layer and self.checkpoint and not torch.jit.is_tracing():
                return torch.utils.checkpoint.checkpoint(self._layer_by_layer, input, use_reentrant=False)
        if layer_by_layer:
            return self._layer_by_layer(input)
        weights: List[Tensor] = []
        biases: List[Optional[Tensor]] = []
        for layer in self.values():
            weights.append(layer.weight)
            biases.append(layer.bias)
        return torch.ops.fastops.mlp(
            input,
            weights,
            biases,
            self.activation,
            self.output_activation,
            self.params,
            self.output_params,
            self.checkpoint,
        )

    def _layer_by_layer(self, input: Tensor) -> Tensor:
        last = len(self.values()) - 1
        for i, layer in enumerate(self.values()):
            activation, params = self.activation, self.params
            if i == last:
                activation, params = self.output_activation, self.output_params
            if torch.jit.is_scripting():  # no layer has hooks there or was replaced
                input = torch.ops.fastops.linear_act(input, layer.weight, layer.bias, activation, params)
            else:
                input = _call_layer(layer, input, activation, params)
            if i < last:
                input = nn.functional.dropout(input, self.dropout, self.training)
        return input

    def extra_repr(self) -> str:
        text = f"activation={describe(self.activation, self.params)}"
        if self.output_activation != "identity":
            text += f", output_activation={describe(self.output_activation, self.output_params)}"
        text += f", dropout={self.dropout}" if self.dropout else ""
        return text + (", checkpoint=True" if self.checkpoint else "")


class GatedMLP(nn.Module):
    """The gated feed-forward block of LLaMA: ``down_proj(activation(gate_proj(x)) * up_proj(x))`` in one op.

    Shazeer, GLU Variants Improve Transformer, 2020. The projections are ``torch.nn.Linear`` modules named as in
    Hugging Face's LLaMA. Where one is more than that (replaced by a module with a ``forward`` of its own, or with
    hooks), they are called one by one instead.

    Args:
        in_features: size of the input's last dimension.
        hidden_features: size of the gate and up projections.
        out_features: size of the output's last dimension; None for ``in_features``.
        activation: a name (see :mod:`fastops.functional`) or an activation module; ``silu`` gives SwiGLU.
        bias: whether the projections have a bias.
        checkpoint: keep nothing but the input for the backward pass, which computes the projections again.
        device, dtype: of the parameters.

    Shape:
        [..., in_features] to [..., out_features].

    Raises:
        ValueError: an unknown activation.
    """

    params: List[float]

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
        self.activation, self.params = resolve(activation)
        self.checkpoint = checkpoint

    def forward(self, input: Tensor) -> Tensor:
        gate, up, down = self.gate_proj, self.up_proj, self.down_proj
        if not torch.jit.is_scripting():
            if is_plain_eager(input):
                output = _C.gated_mlp_of_linears(input, gate, up, down, self.activation, self.params, self.checkpoint)
                if output is not None:
                    return output
            if not all(is_plain_linear(layer) for layer in (gate, up, down)):
                if self.checkpoint and not torch.jit.is_tracing():
                    return torch.utils.checkpoint.checkpoint(self._layer_by_layer, input, use_reentrant=False)
                return self._layer_by_layer(input)
        return torch.ops.fastops.gated_mlp(
            input,
            gate.weight,
            up.weight,
            down.weight,
            gate.bias,
            up.bias,
            down.bias,
            self.activation,
            self.params,
            self.checkpoint,
        )

    @torch.jit.unused
    def _layer_by_layer(self, input: Tensor) -> Tensor:
        gated = torch.ops.fastops.act_mul(self.gate_proj(input), self.up_proj(input), self.activation, self.params)
        return self.down_proj(gated)

    def extra_repr(self) -> str:
        text = f"activation={describe(self.activation, self.params)}"
        return text + (", checkpoint=True" if self.checkpoint else "")


def _call_layer(layer: nn.Module, input: Tensor, activation: str, params: list[float]) -> Tensor:
    """A layer with its activation: in one op where the layer is a plain one."""
    if is_plain_linear(layer):
        return torch.ops.fastops.linear_act(input, layer.weight, layer.bias, activation, params)
    output = layer(input)
    return output if activation == "identity" else getattr(torch.ops.fastops, activation)(output, *params)


def _parse_sequential(
    sequential: nn.Sequential,
) -> tuple[dict[str, nn.Linear], Activation, Optional[Activation], float]:
    """The layers, the activation between them, the one after them, and the dropout."""

    def fail(position: str, reason: str) -> ValueError:
        return ValueError(f"fastops.nn.MLP.from_sequential: module {position}: {reason}")

    layers: dict[str, nn.Linear] = {}
    between: list[tuple[str, nn.Module, float]] = []  # after each layer but the last: position, activation, dropout
    output_activation: Optional[nn.Module] = None
    modules = _Peekable(sequential._modules.items())  # not named_children, which skips repetitions
    while modules:
        position, layer = modules.take()
        if type(layer) is not nn.Linear:
            raise fail(position, f"expected torch.nn.Linear, but it is {type(layer).__name__}")
        layers[position] = layer
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
            output_activation = activation
            break
        between.append((position, activation, dropout))
    if not layers:
        raise fail("0", "the Sequential is empty; it needs at least one Linear")
    for position, activation, dropout in between[1:]:
        if resolve(activation) != resolve(between[0][1]) or dropout != between[0][2]:
            raise fail(position, "activation and dropout must be the same between all layers")
    activation = between[0][1] if between else nn.Identity()
    return layers, activation, output_activation, between[0][2] if between else 0.0


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
