"""Trains a 5-15-1 ReLU regression network, and times its forward and backward passes: fastops and PyTorch.

Run it with ``python examples/regression.py``; it takes seconds. In so small a network nearly all of the time goes into
calling ops, of which fastops has one where PyTorch has three. Expect both sides to come near the noise of the data,
whose variance is 1.

It is the network of AMD's post "PyTorch C++ Extension on AMD GPU"
(https://rocm.blogs.amd.com/artificial-intelligence/cpp-extn/readme.html), whose backward pass does not apply the mask
of the ReLU. Here the gradients are checked against PyTorch's before anything is timed. The data are those of Friedman,
Multivariate Adaptive Regression Splines, 1991.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from common import (
    FASTOPS,
    PYTORCH,
    Row,
    announce,
    arguments,
    comparison,
    console,
    positive,
    relative_difference,
    turns,
    twins,
)
from rich.console import Console
from torch import Tensor, nn

FEATURES, HIDDEN = 5, 15
BATCH_SIZE = 64

# Both sides sum the same float32 products, in another order: at most a batch of them.
GRADIENT_TOLERANCE = BATCH_SIZE * torch.finfo(torch.float32).eps


class Data(NamedTuple):
    """Features [n, 5] and targets [n, 1], to train with and held out; ``scale`` is the targets' standard deviation."""

    features: Tensor
    targets: Tensor
    held_out_features: Tensor
    held_out_targets: Tensor
    scale: float


def make_data(generator: torch.Generator, samples: int = 4000, held_out: int = 1000) -> Data:
    """Friedman's first function of five uniform features, with noise of variance 1; all standardized."""
    x = torch.rand(samples + held_out, FEATURES, generator=generator)
    clean = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5).square() + 10 * x[:, 3] + 5 * x[:, 4]
    noisy = clean + torch.randn(len(x), generator=generator)
    features, targets = (x - 0.5) * math.sqrt(12), ((noisy - noisy.mean()) / noisy.std()).unsqueeze(1)
    return Data(features[held_out:], targets[held_out:], features[:held_out], targets[:held_out], noisy.std().item())


def make_network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


def gradients(network: nn.Module, features: Tensor, targets: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(F.mse_loss(network(features), targets), list(network.parameters())))


def gradients_without_mask(network: nn.Sequential, features: Tensor, targets: Tensor) -> list[Tensor]:
    """What a backward pass gives that forgets the mask of the ReLU."""
    first, relu, last = network
    with torch.no_grad():
        hidden = relu(first(features))
        output = 2 * (last(hidden) - targets) / len(targets)
        inner = output @ last.weight  # here the mask is missing: * (hidden > 0)
        return [inner.T @ features, inner.sum(0), output.T @ hidden, output.sum(0)]


def check_gradients(network: nn.Sequential, data: Data, out: Console) -> None:
    """Compares fastops's gradients with PyTorch's; shows that the check would see a forgotten mask."""
    batch = data.features[:BATCH_SIZE], data.targets[:BATCH_SIZE]
    sides = {side: gradients(twin, *batch) for side, twin in twins(network).items()}
    difference = relative_difference(sides[FASTOPS], sides[PYTORCH])
    unmasked = relative_difference(gradients_without_mask(network, *batch), sides[PYTORCH])
    if not difference <= GRADIENT_TOLERANCE:
        raise SystemExit(f"regression: the gradients differ from PyTorch's by {difference:.1e}, relative to their size")
    out.print(
        f"Gradients checked against PyTorch's: they differ by {difference:.1e} of their size (tolerance "
        f"{GRADIENT_TOLERANCE:.1e}; without the ReLU's mask, as in AMD's post, it would be {unmasked:.1e})."
    )


class Training:
    """One side's training, and the microseconds of each of its passes."""

    def __init__(self, network: nn.Module, steps: int) -> None:
        self.network = network
        self.optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
        self.rate = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.forward: list[float] = []
        self.backward: list[float] = []

    def step(self, features: Tensor, targets: Tensor) -> None:
        """One step of Adam. Forward is the network's prediction; backward all from the loss to the gradients."""
        self.optimizer.zero_grad()
        started = time.perf_counter()
        prediction = self.network(features)
        predicted = time.perf_counter()
        loss = F.mse_loss(prediction, targets)
        begun = time.perf_counter()
        loss.backward()
        ended = time.perf_counter()
        self.optimizer.step()
        self.rate.step()
        self.forward.append(1e6 * (predicted - started))
        self.backward.append(1e6 * (ended - begun))

    def held_out_loss(self, data: Data) -> float:
        """The mean squared error in the targets' own unit, in which the noise has variance 1."""
        with torch.no_grad():
            loss = F.mse_loss(self.network(data.held_out_features), data.held_out_targets)
        return loss.item() * data.scale**2


def train(network: nn.Sequential, data: Data, steps: int, generator: torch.Generator) -> dict[str, Training]:
    """Trains both sides on the same batches; they take turns step by step."""
    trainings = {side: Training(twin, steps) for side, twin in twins(network).items()}
    for step in range(steps):
        batch = torch.randint(len(data.features), (BATCH_SIZE,), generator=generator)
        features, targets = data.features[batch], data.targets[batch]
        for side in turns(step):
            trainings[side].step(features, targets)
    return trainings


def rows(trainings: dict[str, Training], data: Data) -> list[Row]:
    return [
        Row.of("forward, microseconds", trainings, lambda one: one.forward, "{:.1f}".format),
        Row.of("backward, microseconds", trainings, lambda one: one.backward, "{:.1f}".format),
        Row.of("held-out squared error", trainings, lambda one: [one.held_out_loss(data)], "{:.3f}".format),
    ]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    # A second thread has nothing to do in a network of this size.
    parser = arguments("Trains a 5-15-1 ReLU network and times its forward and backward passes.", threads=1)
    parser.add_argument("--steps", type=positive, default=4000, help="steps of each side")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    torch.set_num_threads(options.threads)
    out = console()
    announce(out, f"{FEATURES}-{HIDDEN}-1 ReLU regression in batches of {BATCH_SIZE}")
    generator = torch.Generator().manual_seed(options.seed)
    data, network = make_data(generator), make_network(options.seed)
    check_gradients(network, data, out)
    untrained = Training(network, options.steps).held_out_loss(data)
    trainings = train(network, data, options.steps, generator)
    out.print(comparison(f"\n{options.steps} steps", rows(trainings, data)))
    out.print(f"The squared error was {untrained:.1f} before; the noise, which nothing can predict, is 1 of it.")


if __name__ == "__main__":
    main()
