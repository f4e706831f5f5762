"""Blocks as libraries have them, for :func:`fastops.nn.convert`: which layers are together, and what separates them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from . import models


def separated(features: int, hidden_features: int) -> nn.Sequential:
    """Two linear layers with a norm and a dropout between them."""
    layers = [nn.Linear(features, hidden_features), nn.ReLU(), nn.Dropout(0.1), nn.LayerNorm(hidden_features)]
    return nn.Sequential(*layers, nn.Linear(hidden_features, features))


def encoder_layer(features: int, hidden_features: int, dropout: float) -> nn.Module:
    """PyTorch's layer of a transformer, with the rows as one sequence."""
    return nn.TransformerEncoderLayer(features, 4, hidden_features, dropout, batch_first=True)


class Tabular(nn.Module):
    """An MLP of blocks in a list, as rtdl has it."""

    def __init__(self, sizes: Sequence[int], dropout: float) -> None:
        super().__init__()
        *pairs, (last, outputs) = pairwise(sizes)
        blocks = [nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout)) for a, b in pairs]
        self.blocks: nn.ModuleList = nn.ModuleList(blocks)
        self.output: nn.Linear = nn.Linear(last, outputs)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.output(x)


class Intermediate(nn.Module):
    """A linear layer and its activation: BERT's, which has the next layer in another module."""

    def __init__(self, features: int, hidden_features: int) -> None:
        super().__init__()
        self.dense: nn.Linear = nn.Linear(features, hidden_features)
        self.act: nn.GELU = nn.GELU()

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.dense(hidden_states)
        hidden_states = self.act(hidden_states)
        return hidden_states


class Packed(nn.Module):
    """A gated block with both halves from one layer, as Phi-3 has it."""

    def __init__(self, features: int, hidden_features: int) -> None:
        super().__init__()
        self.gate_up: nn.Linear = nn.Linear(features, 2 * hidden_features, bias=False)
        self.down: nn.Linear = nn.Linear(hidden_features, features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Residual(nn.Module):
    """A feed-forward block with its norm, and the input added: a method that does more than call layers."""

    def __init__(self, features: int, hidden_features: int, dropout: float) -> None:
        super().__init__()
        self.norm: nn.LayerNorm = nn.LayerNorm(features)
        self.fc1: nn.Linear = nn.Linear(features, hidden_features)
        self.fc2: nn.Linear = nn.Linear(hidden_features, features)
        self.dropout: nn.Dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(self.dropout(F.gelu(self.fc1(self.norm(x)))))


CONVERTIBLE: dict[str, Callable[[], nn.Module]] = {
    "4-64-64-2-tanh": lambda: models.sequential((4, 64, 64, 2), nn.Tanh()),
    "separated-64-256": lambda: separated(64, 256),
    "encoder-64-256-dropout": lambda: encoder_layer(64, 256, 0.1),
    "encoder-64-256": lambda: encoder_layer(64, 256, 0.0),
    "tabular-32-128-128-1-dropout": lambda: Tabular((32, 128, 128, 1), 0.1),
    "intermediate-64-256": lambda: Intermediate(64, 256),
    "gated-64-256": lambda: models.GatedMLP(64, 256),
    "packed-64-256": lambda: Packed(64, 256),
    "residual-64-256-dropout": lambda: Residual(64, 256, 0.1),
}
