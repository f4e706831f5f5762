"""The dropout of sequential: what is dropped, and who decides."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import fastops
from checks import assert_same_bits
from expected import dropout_factors

ops = torch.ops.fastops
SEED = -0x0123456789ABCDEF


@pytest.mark.parametrize("p", [0.1, 0.5, 0.75])
def test_dropout_is_random(p: float, device: Any) -> None:
    """As many elements are dropped as p says, independently of their neighbours in the row, the column and the step."""
    ones = torch.ones(400, 130, device=device)
    seed = torch.tensor(SEED, device=device)
    first = ops.sequential(ones, [], "dropout", [p], seed).cpu() != 0
    both = ops.sequential(ones, [], "dropout dropout", [p, p], seed).cpu() != 0
    other = ops.sequential(ones, [], "dropout", [p], seed + 1).cpu() != 0

    def assert_share(kept: Tensor, share: float) -> None:
        """Five standard deviations of a mean of independent draws."""
        error = abs(kept.double().mean().item() - share)
        assert error < 5 * math.sqrt(share * (1 - share) / kept.numel())

    assert_share(first, 1 - p)
    # The second dropout is another one, and so is that of another seed, and of each neighbour.
    assert_share(both, (1 - p) ** 2)
    neighbours = [(first[:, 1:], first[:, :-1]), (first[:, 16:], first[:, :-16]), (first[1:], first[:-1])]
    for a, b in [*neighbours, (first, other)]:
        assert_share(a & b, (1 - p) ** 2)


def test_dropout_is_philox(device: Any) -> None:
    """The same elements are dropped as by Philox in numpy's integers, in every row, column and step."""
    ones = torch.ones(3, 5, 150, device=device)
    for seed in (SEED, 0, 2**63 - 1):
        result = ops.sequential(ones, [], "dropout tanh dropout", [0.3, 0.6], torch.tensor(seed, device=device))
        expected = torch.tanh(dropout_factors(ones, seed, 0, 0.3)) * dropout_factors(ones, seed, 1, 0.6)
        torch.testing.assert_close(result, expected)


def test_seeds(device: Any) -> None:
    """Without a seed, each call takes one from the default generator, which torch.manual_seed sets."""
    x = torch.ones(50, 20, device=device)
    call = lambda: fastops.functional.sequential(x, [], "dropout", [0.5])  # noqa: E731
    torch.manual_seed(1)
    first, second = call(), call()
    torch.manual_seed(1)
    assert_same_bits(call(), first)
    assert not torch.equal(first, second)


def test_checkpoint_drops_the_same(device: Any) -> None:
    """torch.utils.checkpoint computes with the same masks again."""
    x = torch.randn(50, 20, device=device, requires_grad=True)
    call = lambda x: fastops.functional.sequential(x, [], "dropout tanh dropout", [0.5, 0.2])  # noqa: E731
    results = []
    for run in (call, lambda x: torch.utils.checkpoint.checkpoint(call, x, use_reentrant=False)):
        torch.manual_seed(2)
        output = run(x)
        results.append([output.detach(), *torch.autograd.grad(output.sum(), x)])
    torch.testing.assert_close(*results)


def test_vmap_randomness(device: Any) -> None:
    """torch.vmap's randomness decides whether examples have one mask or one each."""
    x = torch.ones(4, 50, 20, device=device)
    call = lambda x: fastops.functional.sequential(x, [], "dropout", [0.5])  # noqa: E731
    same = torch.vmap(call, randomness="same")(x)
    different = torch.vmap(call, randomness="different")(x)
    assert all(torch.equal(example, same[0]) for example in same)
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(call)(x)


def test_no_dropout_needs_no_seed(device: Any) -> None:
    """Where p is 0 there is nothing to drop."""
    x = torch.randn(3, 4, device=device)
    assert torch.equal(ops.sequential(x, [], "dropout relu", [0.0]), torch.relu(x))
    call = lambda x: fastops.functional.sequential(x, [], "dropout relu", [0.0])  # noqa: E731
    assert torch.equal(torch.vmap(call, randomness="different")(x), torch.relu(x))
    seeded = lambda x, seed: fastops.functional.sequential(x, [], "dropout relu", [0.0], seed)  # noqa: E731
    for dims in ((0, 0), (None, 0)):
        result = torch.vmap(seeded, dims)(x, torch.arange(3, device=device))
        assert torch.equal(result, torch.relu(x if dims[0] == 0 else x.expand(3, 3, 4)))
