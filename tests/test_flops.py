"""FlopCounterMode counts what it counts for the equivalent torch.nn modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from modules import PAIRS, each_pair, seeded

# Which parameters, by their place, and whether the input need a gradient.
WANTED: dict[str, Callable[[int], bool]] = {
    "all": lambda place: True,
    "first weight": lambda place: place == 0,
    "second": lambda place: place == 1,
    "last": lambda place: place == -1,
    "none": lambda place: False,
}


def count(module: nn.Module, wanted: str, input_gradient: bool, device: Any) -> int:
    """The operations of a forward pass, and of a backward pass if there is one."""
    parameters = list(module.parameters())
    for place, parameter in enumerate(parameters):
        parameter.requires_grad_(WANTED[wanted](place) or WANTED[wanted](place - len(parameters)))
    x = torch.randn(4, 7, 6, device=device, requires_grad=input_gradient)
    with FlopCounterMode(display=False) as counter:
        y = module(x)
        if y.requires_grad:
            y.sum().backward()
    return counter.get_total_flops()


@each_pair
@pytest.mark.parametrize("input_gradient", [False, True])
@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.feature("FLOPs")
def test_modules(kind: str, wanted: str, input_gradient: bool, device: Any) -> None:
    """Forward and backward, whichever gradients are wanted."""
    ours, reference = (seeded(make, device, torch.float32) for make in PAIRS[kind])
    expected = count(reference, wanted, input_gradient, device)
    assert expected > 0
    assert count(ours, wanted, input_gradient, device) == expected


def test_functions(device: Any) -> None:
    """The ops by themselves, with an mlp's gradient in terms of its parts."""
    x, weight, down = (torch.randn(size, device=device) for size in ((3, 6), (5, 6), (6, 5)))
    ops = torch.ops.fastops
    for expected, call in (
        (2 * 3 * 5 * 6, lambda: ops.linear_act(x, weight, None, "relu")),
        (2 * 2 * 3 * 5 * 6, lambda: ops.mlp(x, [weight, down], [None, None], "relu")),
        (3 * 2 * 3 * 5 * 6, lambda: ops.gated_mlp(x, weight, weight, down)),
        (0, lambda: ops.bias_act(x, None, "gelu")),
    ):
        with FlopCounterMode(display=False) as counter:
            call()
        assert counter.get_total_flops() == expected


@pytest.mark.parametrize("wanted", [(True,) * 5, (False,) * 3 + (True, False), (True,) + (False,) * 4])
@pytest.mark.feature("FLOPs", ops=["mlp_jet", "mlp_jet_forward", "mlp_jet_backward"])
def test_jet(wanted: tuple[bool, ...], device: Any) -> None:
    """mlp_jet counts as an mlp of as many rows, forward and backward."""
    counts = []
    for op, more in ((torch.ops.fastops.mlp, ()), (torch.ops.fastops.mlp_jet, (2,))):
        x, w, b, v, c = (torch.ones(size, device=device) for size in ((7, 4, 6), (5, 6), (5,), (3, 5), (3,)))
        for tensor, needed in zip((x, w, b, v, c), wanted, strict=True):
            tensor.requires_grad_(needed)
        with FlopCounterMode(display=False) as counter:
            op(x, *more, [w, v], [b, c], "tanh").sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize(
    "wanted", [(True,) * 7, (False, *[True] * 6), (True, *[False] * 6), (False,) * 3 + (True,) * 4]
)
@pytest.mark.feature("FLOPs", ops=["sequential", "sequential_forward", "sequential_backward"])
def test_sequential(wanted: tuple[bool, ...], device: Any) -> None:
    """It counts as its layers one by one, forward and backward."""
    sizes = [(7, 6), (5, 6), (5,), (8, 5), (8, 5), (8,), (3, 8)]
    leaves = [torch.ones(size, device=device, requires_grad=needed) for size, needed in zip(sizes, wanted, strict=True)]
    x, weight, norm, gate, up, up_bias, last = leaves

    def by_op() -> torch.Tensor:
        parameters = [weight, None, norm, gate, None, up, up_bias, last, None]
        return torch.ops.fastops.sequential(x, parameters, "linear rms_norm gated_linear silu linear", [1e-6])

    def by_layers() -> torch.Tensor:
        hidden = F.rms_norm(F.linear(x, weight), [5], norm, 1e-6)
        return F.linear(F.silu(F.linear(hidden, gate)) * F.linear(hidden, up, up_bias), last)

    counts = []
    for call in (by_op, by_layers):
        with FlopCounterMode(display=False) as counter:
            call().sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
