"""Trains a residual network with norms on a table of features, scikit-learn's digits: fastops and PyTorch.

Run it with ``python examples/tabular.py --out demo``; it takes some seconds. The network is that of Gorishniy et al.,
Revisiting Deep Learning Models for Tabular Data, 2021, with LayerNorm: a linear layer, blocks
``x + Linear(Dropout(ReLU(Linear(LayerNorm(x)))))``, a norm and a linear layer. ``fastops.nn.ResidualMLP`` computes each
block in one op; PyTorch calls its modules. Both begin with the same weights and see the same batches in the same order.

Without dropout (the default) the sides follow the same curve. With ``--dropout 0.1`` each draws random numbers of its
own, and only fastops has them for next to nothing. The program fails if the gradients of the sides differ.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

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
    probability,
    relative_difference,
    turns,
    weights_of,
)
from plots import LINES, curves_beside_times
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import fastops
from fastops.bench.memory import bytes_kept_for_backward

WIDTH, BLOCKS, EXPANSION = 128, 3, 2
BATCH_SIZE = 128
# Of all gradients of a batch together, in float32.
TOLERANCE = 1e-5


class Block(nn.Sequential):
    """What PyTorch calls one by one."""

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return x + output


def block(dropout: float) -> Block:
    drop = [nn.Dropout(dropout)] if dropout else []
    layers = nn.Linear(WIDTH, EXPANSION * WIDTH), nn.Linear(EXPANSION * WIDTH, WIDTH)
    return Block(nn.LayerNorm(WIDTH), layers[0], nn.ReLU(), *drop, layers[1], *drop)


def make_networks(features: int, classes: int, dropout: float, seed: int) -> dict[str, nn.Module]:
    """Both sides with the same weights: the modules and their names are the same."""
    torch.manual_seed(seed)
    blocks = [block(dropout) for _ in range(BLOCKS)]
    plain = nn.Sequential(nn.Linear(features, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes))
    ours = fastops.nn.ResidualMLP(features, WIDTH, classes, blocks=BLOCKS, expansion=EXPANSION, dropout=dropout)
    ours.load_state_dict(plain.state_dict())
    return {FASTOPS: ours, PYTORCH: plain}


class Table:
    """Training and held-out rows, with features of mean 0 and variance 1."""

    def __init__(self, seed: int) -> None:
        data = load_digits()
        parts = train_test_split(data.data, data.target, test_size=0.25, random_state=seed, stratify=data.target)
        x, held_out = (torch.tensor(part, dtype=torch.float32) for part in parts[:2])
        self.y, self.held_out_y = (torch.tensor(part) for part in parts[2:])
        mean, deviation = x.mean(0), x.std(0).clamp(min=1e-3)
        self.x, self.held_out = (x - mean) / deviation, (held_out - mean) / deviation


class Training:
    """One side's network, and what was measured."""

    def __init__(self, network: nn.Module, table: Table, seed: int) -> None:
        self.network, self.table = network, table
        self.order = torch.Generator().manual_seed(seed)
        self.adam = torch.optim.AdamW(network.parameters(), lr=1e-3)
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.seconds: list[float] = []

    def epoch(self) -> None:
        self.network.train()
        start = time.perf_counter()
        for rows in torch.randperm(len(self.table.x), generator=self.order).split(BATCH_SIZE):
            self.adam.zero_grad()
            loss = F.cross_entropy(self.network(self.table.x[rows]), self.table.y[rows])
            loss.backward()
            self.adam.step()
            self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)
        with torch.no_grad():
            predicted = self.network.eval()(self.table.held_out).argmax(1)
        self.accuracies.append((predicted == self.table.held_out_y).double().mean().item())

    def gradients(self) -> list[Tensor]:
        """Those of the first rows, without dropout."""
        loss = F.cross_entropy(self.network.eval()(self.table.x[:BATCH_SIZE]), self.table.y[:BATCH_SIZE])
        return list(torch.autograd.grad(loss, list(self.network.parameters())))

    def bytes_kept(self) -> int:
        rows = self.table.x[:BATCH_SIZE]
        return bytes_kept_for_backward(lambda: self.network.train()(rows), [rows, *self.network.parameters()])


def check(trainings: dict[str, Training], out: Console, when: str) -> list[str]:
    """Compares the gradients of both networks with the weights of fastops's; gives what rounding cannot be."""
    ours, plain = trainings[FASTOPS], trainings[PYTORCH]
    with weights_of(ours.network, plain.network):
        difference = relative_difference(ours.gradients(), plain.gradients())
    out.print(f"Gradients {when}: the sides differ by {difference:.1e}")
    return [] if difference <= TOLERANCE else [f"the gradients {when} differ by {difference:.1e}"]


def rows(trainings: dict[str, Training]) -> list[Row]:
    last = -(-len(trainings[FASTOPS].table.x) // BATCH_SIZE)
    return [
        Row.of("held-out accuracy", trainings, lambda one: one.accuracies[-1:], "{:.1%}".format),
        Row.of("final loss", trainings, lambda one: [statistics.fmean(one.losses[-last:])], "{:.5f}".format),
        Row.of("seconds per epoch", trainings, lambda one: one.seconds, "{:.4f}".format),
        Row.of("KiB kept for backward", trainings, lambda one: [one.bytes_kept() / 1024], "{:.1f}".format),
    ]


def plot(trainings: dict[str, Training], table: Sequence[Row], path: Path) -> None:
    """The losses, and the time."""
    title = "A residual network on a table: fastops and PyTorch"
    with curves_beside_times(title, table[2], "Time per epoch", path) as losses:
        for side, training in trainings.items():
            losses.semilogy(training.losses, label=side, **LINES[side])
        losses.set(title="Loss of each batch", xlabel="step", ylabel="cross entropy")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("Trains a residual network with norms on a table of features.")
    parser.add_argument("--epochs", type=positive, default=20, help="passes over the training rows")
    parser.add_argument("--dropout", type=probability, default=0.0, help="probability of zeroing within the blocks")
    parser.add_argument("--out", type=folder, help="folder for tabular.png; no plot without it")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    torch.set_num_threads(options.threads)
    out = console()
    table = Table(options.seed)
    features, classes = table.x.shape[1], int(table.y.max()) + 1
    announce(out, f"Residual network, {BLOCKS} blocks of {WIDTH}: {len(table.x)} rows of {features} features")
    networks = make_networks(features, classes, options.dropout, options.seed)
    trainings = {side: Training(network, table, options.seed) for side, network in networks.items()}
    failures = check(trainings, out, "before training")
    for epoch in track(range(options.epochs), description="Epochs", console=out):
        for side in turns(epoch):
            trainings[side].epoch()
    failures += check(trainings, out, "after training")
    measured = rows(trainings)
    out.print(comparison("Digits as a table", measured))
    if options.out:
        path = options.out / "tabular.png"
        plot(trainings, measured, path)
        out.print(f"wrote {path}")
    fail_if(failures, "tabular")


if __name__ == "__main__":
    main()
