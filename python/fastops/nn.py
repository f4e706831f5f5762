"""The ops as modules: drop-in replacements whose parameters and state dicts are those of the ``torch.nn`` equivalents.

A module for every activation, named as in ``torch.nn`` (``ReLU``, ``GELU``, ``Softshrink``, ...), the layers below, and
:func:`convert` for existing models.

Inside the layers below are modules of ``torch.nn``, activations included where that has them, as they are in the
``torch.nn`` equivalents.
One op stands for all of them as long as calling them would do no more. Where one has hooks, was replaced or is changed
in any other way, or where there are hooks for all modules, they are called one by one instead.
"""

from typing import Any, ClassVar, Optional

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.compiler import is_compiling

from . import _C, _activations
from ._activations import *  # noqa: F403
from ._convert import convert
from ._eager import (
    check_tensor,
    is_checkpointed,
    is_linear_unchanged,
    is_off,
    is_plain_dropout,
    is_plain_linear,
    is_plain_or_none,
    is_plain_tensor,
    plain_norm,
)
from ._ensemble import EnsembleLinear, EnsembleMLP
from ._mlp import MLP, ResidualMLP
from ._network import (
    Steps,
    check_dropout,
    check_residual,
    check_settable,
    have_dtype,
    norm_modules,
    restore_activation,
)
from ._resolve import Activation, as_module, plain_activation
from ._steps import TENSORS

__all__ = [
    *_activations.MODULES,
    "EnsembleLinear",
    "EnsembleMLP",
    "GatedMLP",
    "LinearAct",
    "MLP",
    "ResidualMLP",
    "convert",
]


def __dir__() -> list[str]:
    return __all__


class LinearAct(nn.Module):
    """``activation(input @ weight.T + bias)``: ``torch.nn.Linear`` and an activation in one op.

    Parameters, initialization and state dict are those of ``torch.nn.Linear``. It is none, as it computes something
    else; the activation is the module ``act_fn``.

    Args:
        in_features, out_features, bias, device, dtype: as for ``torch.nn.Linear``.
        activation: a name, module or function, as of :class:`MLP`.

    Shape:
        [..., in_features] to [..., out_features].

    Raises:
        TypeError: in calls, an input of another dtype.
        ValueError: an unknown activation; in calls, an input of other features.
    """

    __constants__: ClassVar[list[str]] = ["_function", "in_features", "out_features"]
    __jit_unused_properties__: ClassVar[list[str]] = ["_function"]

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
        self.weight: nn.Parameter = nn.Parameter(torch.empty((out_features, in_features), device=device, dtype=dtype))
        if bias:
            self.bias: Optional[nn.Parameter] = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.act_fn: nn.Module = as_module(activation)
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
        is_plain = is_plain_tensor(stored.get("weight", weight)) and is_plain_or_none(stored.get("bias", bias))
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


class GatedMLP(nn.Module):
    """The gated feed-forward block of LLaMA: ``down_proj(activation(gate_proj(x)) * up_proj(x))`` in one op.

    Shazeer, GLU Variants Improve Transformer, 2020. The projections are ``torch.nn.Linear`` modules named as in
    Hugging Face's LLaMA, and so is the activation, the module ``act_fn``. Where one is more than its class says
    (replaced by a module with a ``forward`` of its own, or with hooks), they are called one by one instead.

    Args:
        in_features: size of the input's last dimension.
        hidden_features: size of the gate and up projections.
        out_features: size of the output's last dimension; None for ``in_features``.
        activation: a name, module or function, as of :class:`MLP`; ``silu`` gives SwiGLU.
        bias: whether the projections have a bias.
        norm: of the input, before the projections: ``"layer"``, ``"rms"``, or None for none, as of :class:`MLP`.
        dropout: probability with which the product of gate and up is zeroed during training, and with ``residual`` the
            result, too.
        residual: add the input to the result.
        checkpoint: keep nothing but the input for the backward pass, which computes the projections again.
        device, dtype: of the parameters.

    Shape:
        [..., in_features] to [..., out_features].

    Raises:
        TypeError: hidden features that are no integers, no number as dropout; in calls, an input of another dtype.
        ValueError: an unknown activation or norm, a dropout outside [0, 1], or a residual connection between different
            numbers of features; in calls, an input of other features. With ``norm``, an input of another dtype or other
            features is PyTorch's RuntimeError.
    """

    __constants__: ClassVar[list[str]] = ["_function", "_has_more", "residual"]
    __jit_unused_properties__: ClassVar[list[str]] = ["_function", "_has_more"]
    residual: bool = False

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: Optional[int] = None,
        *,
        activation: Activation = "silu",
        bias: bool = False,
        norm: Optional[str] = None,
        dropout: float = 0.0,
        residual: bool = False,
        checkpoint: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        out_features = in_features if out_features is None else out_features
        check_dropout("GatedMLP", dropout)
        check_residual("GatedMLP", residual, in_features, out_features)
        self.gate_proj: nn.Linear = nn.Linear(in_features, hidden_features, bias, device, dtype)
        self.up_proj: nn.Linear = nn.Linear(in_features, hidden_features, bias, device, dtype)
        self.down_proj: nn.Linear = nn.Linear(hidden_features, out_features, bias, device, dtype)
        self.act_fn: nn.Module = as_module(activation)
        if norm is not None:
            self.norm: nn.Module = norm_modules(norm, in_features, device, dtype)[0]
        if dropout > 0:
            self.drop: nn.Dropout = nn.Dropout(dropout)
        self.residual = residual
        self.checkpoint = checkpoint

    @property
    def _has_more(self) -> bool:
        """Whether it is more than a gated_mlp."""
        return self.residual or "norm" in self._modules or "drop" in self._modules

    def forward(self, input: Tensor) -> Tensor:
        if not torch.jit.is_scripting():
            if not is_compiling() and not self._has_more:
                output = _C.gated_mlp_of_modules(input, self._modules, self.checkpoint)
                if output is not None:
                    return output
            return self._composed(input)
        if self._has_more:
            return self._one_by_one(input)
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
        if self._has_more:
            is_for_op = function is not None and not torch.jit.is_tracing() and is_plain_tensor(input)
            plan = self._plan(input, function) if is_for_op else None
            if is_checkpointed(self):
                # As was decided here: hooks may be others in the backward pass, which computes it again.
                return torch.utils.checkpoint.checkpoint(
                    lambda input: self._planned(input, plan), input, use_reentrant=False
                )
            return self._planned(input, plan)
        if function is not None:
            check_tensor("nn.GatedMLP", input)
            layers = self.gate_proj, self.up_proj, self.down_proj
            parameters = [layer.weight for layer in layers] + [layer.bias for layer in layers]
            return torch.ops.fastops.gated_mlp(input, *parameters, *function, self.checkpoint)
        activation = plain_activation(self.act_fn)
        if is_checkpointed(self):
            # As was decided here: hooks may be others in the backward pass, which computes it again.
            return torch.utils.checkpoint.checkpoint(
                lambda input: self._call_modules(input, activation), input, use_reentrant=False
            )
        return self._call_modules(input, activation)

    @torch.jit.unused
    def _call_modules(self, input: Tensor, activation: Optional[tuple[str, list[float]]]) -> Tensor:
        gate, up = self.gate_proj(input), self.up_proj(input)
        if activation is None:
            return self.down_proj(self.act_fn(gate) * up)
        return self.down_proj(torch.ops.fastops.act_mul(gate, up, *activation))

    def _one_by_one(self, input: Tensor) -> Tensor:
        hidden = input
        if hasattr(self, "norm"):
            if self.norm is not None:
                hidden = self.norm(hidden)
        hidden = self.act_fn(self.gate_proj(hidden)) * self.up_proj(hidden)
        if hasattr(self, "drop"):
            if self.drop is not None:
                hidden = self.drop(hidden)
        output = self.down_proj(hidden)
        if not self.residual:
            return output
        if hasattr(self, "drop"):
            if self.drop is not None:
                output = self.drop(output)
        return input + output

    @torch.jit.unused
    def _planned(self, input: Tensor, plan: Optional[tuple[str, list[float]]]) -> Tensor:
        """By one op for all modules, where there is a plan, or by them."""
        if plan is None:
            return self._one_by_one(input)
        steps, params = plan
        parameters: list[Optional[Tensor]] = []
        for norm in ("layer_norm", "rms_norm"):
            if norm in steps:
                parameters += [getattr(self.norm, name) for name in ("weight", "bias")[: TENSORS[norm]]]
        for layer in (self.gate_proj, self.up_proj, self.down_proj):
            parameters += [layer.weight, layer.bias]
        return Steps(parameters, steps, params)(input)

    @torch.jit.unused
    def _plan(self, input: Tensor, function: Optional[tuple[str, list[float]]]) -> Optional[tuple[str, list[float]]]:
        """The steps and the numbers of one ``sequential`` for the whole of it, where the modules are plain."""
        if function is None or not have_dtype((self.gate_proj, self.up_proj, self.down_proj), input):
            return None
        norm, drop = self._modules.get("norm"), self._modules.get("drop")
        if drop is not None and not is_plain_dropout(drop):
            return None
        before, after = (["residual"], ["add"]) if self.residual else ([], [])
        dropout = ["dropout"] if drop is not None and not is_off(drop) else []
        p: list[Any] = [drop.p] if drop is not None and dropout else []
        params = [*function[1], *p, *(p if self.residual else [])]
        if norm is not None:
            step = plain_norm(norm, input.dtype)
            if step is None or input.dim() == 0 or step[1] != input.size(-1):
                return None
            before.append(step[0])
            params = [step[2], *params]
        names = [*before, "gated_linear", function[0], *dropout, "linear", *(dropout if self.residual else []), *after]
        return " ".join(names), params

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
        return ", ".join(f"{name}=True" for name in ("residual", "checkpoint") if getattr(self, name))
