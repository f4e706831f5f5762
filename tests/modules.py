"""Every module of fastops.nn, with its equivalent in terms of torch.nn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastops.nn
from fastops.nn import MLP, GatedMLP, LinearAct, ResidualMLP
from reference import ACTIVATIONS
from strategies import WIDEST

CLASSES = {entry["class_name"]: name for name, entry in ACTIVATIONS.items()}


class ReferenceGatedMLP(nn.Module):
    """GatedMLP in terms of torch.nn."""

    def __init__(self, in_features: int, hidden_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(in_features, hidden_features, bias)
        self.up_proj = nn.Linear(in_features, hidden_features, bias)
        self.down_proj = nn.Linear(hidden_features, out_features, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class ReferenceGatedBlock(ReferenceGatedMLP):
    """The same with a norm before it and a residual connection."""

    def __init__(self, in_features: int, hidden_features: int) -> None:
        super().__init__(in_features, hidden_features, in_features)
        self.norm = nn.LayerNorm(in_features)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(x)
        return x + self.down_proj(nn.functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class ReferenceLinearAct(nn.Linear):
    """LinearAct with softshrink in terms of torch.nn."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softshrink(super().forward(x), 0.3)


def deep() -> nn.Sequential:
    """Three layers with softshrink between and tanh after them."""
    return nn.Sequential(
        *(nn.Linear(6, 8), nn.Softshrink(0.1), nn.Linear(8, 5), nn.Softshrink(0.1), nn.Linear(5, 3), nn.Tanh())
    )


def dropping() -> nn.Sequential:
    """Two hidden layers with dropout."""
    return nn.Sequential(
        *(nn.Linear(6, 8), nn.SiLU(), nn.Dropout(0.4), nn.Linear(8, 8), nn.SiLU(), nn.Dropout(0.4), nn.Linear(8, 3))
    )


def normalized() -> nn.Sequential:
    """Two hidden layers with norms before their activations."""
    return nn.Sequential(
        *(nn.Linear(6, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 5), nn.LayerNorm(5), nn.SiLU(), nn.Linear(5, 3))
    )


class Residual(nn.Sequential):
    """A Sequential whose input is added to its result."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def rms_norm(features: int) -> nn.RMSNorm:
    """With the eps that fastops' modules give it, for all dtypes."""
    return nn.RMSNorm(features, torch.finfo(torch.float32).eps)


def block(features: int) -> Residual:
    """A norm and two layers."""
    return Residual(rms_norm(features), nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, features))


# A module of each kind and its equivalent in torch.nn.
PAIRS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "MLP": (lambda: MLP(6, [8, 5], 3, activation=nn.Softshrink(0.1), output_activation="tanh"), deep),
    "MLP without bias": (
        lambda: MLP(6, 8, bias=False),
        lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.GELU(), nn.Linear(8, 6, bias=False)),
    ),
    "MLP of one layer": (lambda: MLP(6, [], 3), lambda: nn.Sequential(nn.Linear(6, 3))),
    "MLP with dropout": (lambda: MLP(6, (8, 8), 3, activation="silu", dropout=0.4), dropping),
    "MLP with norms": (lambda: MLP(6, (8, 5), 3, activation="silu", norm="layer"), normalized),
    "MLP with residual": (
        lambda: MLP(6, 8, activation="relu", norm="rms", norm_first=True, residual=True),
        lambda: block(6),
    ),
    "ResidualMLP": (
        lambda: ResidualMLP(6, 4, 3, expansion=2, norm="rms"),
        lambda: nn.Sequential(nn.Linear(6, 4), block(4), block(4), rms_norm(4), nn.Linear(4, 3)),
    ),
    "GatedMLP": (lambda: GatedMLP(6, 8), lambda: ReferenceGatedMLP(6, 8, 6)),
    "GatedMLP with bias": (lambda: GatedMLP(6, 8, 3, bias=True), lambda: ReferenceGatedMLP(6, 8, 3, bias=True)),
    "GatedMLP with norm": (
        lambda: GatedMLP(6, 8, norm="layer", residual=True),
        lambda: ReferenceGatedBlock(6, 8),
    ),
    "LinearAct": (lambda: LinearAct(6, 3, nn.Softshrink(0.3)), lambda: ReferenceLinearAct(6, 3)),
    "LinearAct without bias": (
        lambda: LinearAct(6, 3, fastops.nn.Softshrink(0.3), bias=False),
        lambda: ReferenceLinearAct(6, 3, bias=False),
    ),
}
MODULES = {kind: make for kind, (make, _) in PAIRS.items()} | {
    name: (lambda name=name: getattr(fastops.nn, name)()) for name in CLASSES
}

each_pair = pytest.mark.parametrize("kind", PAIRS)
each_module = pytest.mark.parametrize("kind", MODULES)


def seeded(make: Callable[[], nn.Module], device: Any, dtype: torch.dtype = WIDEST) -> nn.Module:
    """The module with the same initial parameters in every call."""
    torch.manual_seed(0)
    return make().to(device, dtype)


def batch(device: Any, *shape: int, dtype: torch.dtype = WIDEST) -> Tensor:
    """Normally distributed numbers, the same in every call."""
    generator = torch.Generator().manual_seed(4)
    return torch.randn(shape or (7, 6), generator=generator, dtype=torch.float64).to(device, dtype)


def value_and_gradients(module: Callable[[Tensor], Tensor], parameters: Any, x: Tensor) -> list[Tensor]:
    """The value and the gradients of input and parameters."""
    x = x.detach().clone().requires_grad_()
    value = module(x)
    return [value, *torch.autograd.grad((value**2).sum(), [x, *parameters])]
