"""Modules for the tests of fastops.nn.convert, and what they all look at."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastops
from checks import CalledOps
from modules import batch, seeded
from sample import close


def ops_of(module: nn.Module, x: Tensor) -> list[str]:
    """The ops of fastops that a call of the module is computed with."""
    with torch.no_grad(), CalledOps() as called:
        module(x)
    return called.names


def assert_same(module: nn.Module, reference: nn.Module, device: Any) -> None:
    """The same value and gradients, of the input and the parameters, and the same dropouts."""
    results = []
    for each in (module, reference):
        torch.manual_seed(1)
        x = batch(device).requires_grad_()
        value = each(x)
        parameters = [parameter for parameter in each.parameters() if parameter.requires_grad]
        results.append([value, *torch.autograd.grad((value**2).sum(), [x, *parameters])])
    close(*results)


def converted(make: Callable[[], nn.Module], device: Any) -> tuple[nn.Module, nn.Module, Any]:
    """The module converted, a copy of what it was, and the report."""
    module = seeded(make, device)
    reference = copy.deepcopy(module)
    return module, reference, fastops.nn.convert(module)


def mixed() -> nn.Sequential:
    """A longer Sequential, with runs that can be fused and layers that cannot."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 5)),
        *(nn.BatchNorm1d(5), nn.Linear(5, 6), nn.Softshrink(0.2), nn.Linear(6, 6)),
    )


def two_layers() -> nn.Sequential:
    """The plainest MLP."""
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6))


class Block(nn.Module):
    """Layers for the forms of ``forward`` below."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)
        self.both, self.act, self.norm, self.drop = nn.Linear(6, 16), nn.SiLU(), nn.LayerNorm(8), nn.Dropout(0.4)
        self.function, self.p, self.gate_last = F.silu, 0.4, True


class Chain(Block):
    def forward(self, x: Tensor) -> Tensor:
        """With a docstring, and names for what is between."""
        hidden = self.act(self.up(x))
        hidden = self.drop(hidden)
        return self.down(hidden)


class Gated(Block):
    def forward(self, x):
        up = self.up(x)
        return self.down(up * self.act(self.gate(x)))


class Packed(Block):
    def forward(self, x):
        a, b = self.both(x).chunk(2, dim=-1)
        return self.down(a * self.act(b) if self.gate_last else self.act(a) * b)


class CustomActivation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.atan()


class AdapterLinear(nn.Linear):
    """A Linear with a forward of its own, as adapters and quantization have."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.sum(-1, keepdim=True)


class ReluSquared(nn.Module):
    def forward(self, x):
        return F.relu(x) ** 2


def layers(kind: Any, activation: nn.Module, wide: int = 8) -> nn.Sequential:
    return nn.Sequential(kind(6, wide), activation, kind(8, 6, bias=False))


class Layers(nn.Module):
    """Layers for methods that do more."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)
        self.drop, self.norm, self.p, self.scale = nn.Dropout(0.4), nn.Softsign(), 0.3, 2.0
