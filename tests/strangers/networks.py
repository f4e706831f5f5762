"""The networks of the programs: one of fastops, one of torch.nn, with the same parameters."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import fastops.nn


def pair(*sizes: int, activation: nn.Module | None = None) -> tuple[fastops.nn.MLP, nn.Sequential]:
    """A multi-layer perceptron, and the Sequential that it stands for."""
    torch.manual_seed(0)
    modules: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        modules += [nn.Linear(inputs, outputs), copy.deepcopy(activation or nn.ReLU())]
    sequential = nn.Sequential(*modules[:-1])
    return fastops.nn.MLP.from_sequential(copy.deepcopy(sequential)), sequential


def batch(rows: int, features: int) -> Tensor:
    """Normally distributed numbers, the same in every call."""
    return torch.randn(rows, features, generator=torch.Generator().manual_seed(1))


def assert_close(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    """The tensors, or lists of tensors, are the same but for rounding."""
    ours, theirs = ([value] if isinstance(value, Tensor) else list(value) for value in (ours, theirs))
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def assert_same_parameters(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-5) -> None:
    """Both were trained to the same."""
    assert_close(parameters(ours), parameters(theirs), tolerance)


def parameters(module: nn.Module) -> Iterable[Tensor]:
    """The values of a module's parameters."""
    return [parameter.detach() for parameter in module.parameters()]


def is_one_op(mlp: nn.Module, x: Tensor) -> bool:
    """Whether nothing but the module's op computes its result."""
    return "Fastops" in mlp(x).grad_fn.name()
