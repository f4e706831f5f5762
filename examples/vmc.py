"""Finds a ground state by variational Monte Carlo, which needs Laplacians of a wave function: fastops and PyTorch.

Run it with ``python examples/vmc.py --out demo``; it takes well under a minute. N particles in three dimensions, each
in a harmonic trap, attract each other by springs (Moshinsky, How good is the Hartree-Fock approximation, 1968):

    H = sum_i (-1/2 laplacian_i + 1/2 r_i^2) + 1/2 k sum_{i<j} |r_i - r_j|^2

has the ground state energy 3/2 (1 + (N - 1) sqrt(1 + N k)). The wave function is psi(x) = exp(-1/2 |x|^2 + network(x))
with a tanh MLP; walkers sample its square by Metropolis steps, and Adam lowers the mean of their local energies

    H psi / psi = -1/2 (laplacian(log psi) + |gradient(log psi)|^2) + potential

(McMillan, Ground state of liquid He4, 1965). In PyTorch the Laplacian comes from as many uses of torch.autograd.grad as
there are coordinates; in fastops value, gradient and Laplacian are one forward pass. Expect an error of about a
thousandth from both sides, and in the --out folder vmc.png. The program fails if their local energies differ.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
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
    tanh_network,
    turns,
    twins,
    weights_of,
)
from plots import LINES, curves_beside_times
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

import fastops

WIDTH = 64
SPRING = 1.0  # k
METROPOLIS_STEPS = 10  # between two steps of Adam
BURN_IN = 200
STEP_SIZE = 0.4
LAST = 0.25  # of the training, whose energies are averaged

# Of the local energies of both sides: sums of squares over all coordinates, in float32.
TOLERANCE = 1e-4


def exact_energy(particles: int) -> float:
    return 1.5 * (1 + (particles - 1) * math.sqrt(1 + particles * SPRING))


def potential(x: Tensor) -> Tensor:
    """That of walkers [n, 3 * particles]."""
    positions = x.unflatten(1, (-1, 3))
    squares = positions.square().sum((1, 2))
    # The sum over pairs of |r_i - r_j|^2.
    pairs = positions.shape[1] * squares - positions.sum(1).square().sum(1)
    return 0.5 * (squares + SPRING * pairs)


def log_psi(network: nn.Module, x: Tensor) -> Tensor:
    free: Tensor = network(x).squeeze(1)
    return free - 0.5 * x.square().sum(1)


def gradient_and_laplacian(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Those of the network."""
    if isinstance(network, fastops.nn.MLP):
        with torch.no_grad():
            _, gradient, laplacian = network.value_gradient_laplacian(x)
        return gradient.squeeze(1), laplacian.squeeze(1)
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(network(x).sum(), x, create_graph=True)
    parts = gradient.sum(0).unbind()  # each walker has a part in its own gradient alone
    seconds = [torch.autograd.grad(part, x, retain_graph=True)[0][:, d] for d, part in enumerate(parts)]
    return gradient.detach(), torch.stack(seconds).sum(0)


def local_energy(network: nn.Module, x: Tensor) -> Tensor:
    gradient, laplacian = gradient_and_laplacian(network, x)
    return -0.5 * (laplacian - x.shape[1] + (gradient - x).square().sum(1)) + potential(x)


class Training:
    """One side's wave function, its walkers, and what was measured."""

    def __init__(self, network: nn.Module, walkers: Tensor, steps: int, seed: int) -> None:
        self.network = network
        self.walkers = walkers.clone()
        self.random = torch.Generator().manual_seed(seed)
        self.adam = torch.optim.Adam(network.parameters(), lr=1e-2)
        self.rate = torch.optim.lr_scheduler.CosineAnnealingLR(self.adam, steps)
        self.energies: list[float] = []
        self.seconds: list[float] = []
        self.energy_seconds: list[float] = []
        self.sample(BURN_IN)

    @torch.no_grad()
    def sample(self, steps: int) -> None:
        """Moves the walkers, each by itself, so that they are distributed as psi squared."""
        log = log_psi(self.network, self.walkers)
        for _ in range(steps):
            moves = torch.randn(self.walkers.shape, generator=self.random)
            chances = torch.rand(len(self.walkers), generator=self.random)
            moved = self.walkers + STEP_SIZE * moves
            log_moved = log_psi(self.network, moved)
            accepted = chances.log() < 2 * (log_moved - log)
            self.walkers = torch.where(accepted.unsqueeze(1), moved, self.walkers)
            log = torch.where(accepted, log_moved, log)

    def step(self) -> None:
        """Samples, and takes a step down the gradient of the mean energy."""
        start = time.perf_counter()
        self.sample(METROPOLIS_STEPS)
        before = time.perf_counter()
        energies = local_energy(self.network, self.walkers)
        self.energy_seconds.append(time.perf_counter() - before)
        mean = energies.mean()
        self.adam.zero_grad()
        (2 * ((energies - mean) * log_psi(self.network, self.walkers)).mean()).backward()
        self.adam.step()
        self.rate.step()
        self.energies.append(mean.item())
        self.seconds.append(time.perf_counter() - start)

    def energy(self) -> float:
        """The mean over the end of the training."""
        last = self.energies[-max(1, int(LAST * len(self.energies))) :]
        return sum(last) / len(last)


def check(trainings: dict[str, Training], out: Console) -> list[str]:
    """Compares the sides' local energies, with each side's weights at its walkers; gives what rounding cannot be."""
    failures = []
    for side, training in trainings.items():
        peers = {FASTOPS: PYTORCH, PYTORCH: FASTOPS}
        other = trainings[peers[side]].network
        values = local_energy(training.network, training.walkers)
        with weights_of(training.network, other):
            difference = relative_difference([values], [local_energy(other, training.walkers)])
        out.print(f"Local energies with the weights of {side}: the sides differ by {difference:.1e}")
        if not difference <= TOLERANCE:  # so that a NaN fails
            failures.append(f"the local energies with the weights of {side} differ by {difference:.1e}")
    return failures


def rows(trainings: dict[str, Training], exact: float) -> list[Row]:
    return [
        Row.of("energy", trainings, lambda one: [one.energy()], "{:.4f}".format),
        Row.of("relative error", trainings, lambda one: [abs(one.energy() / exact - 1)], "{:.1e}".format),
        Row.of("seconds for local energies", trainings, lambda one: one.energy_seconds, "{:.5f}".format),
        Row.of("seconds per step", trainings, lambda one: one.seconds, "{:.4f}".format),
    ]


def plot(trainings: dict[str, Training], table: Sequence[Row], exact: float, path: Path) -> None:
    """The energies, and the time."""
    title = "Particles in a trap by variational Monte Carlo: fastops and PyTorch"
    with curves_beside_times(title, table[2], "Time for the local energies", path) as energies:
        for side, training in trainings.items():
            energies.plot(training.energies, label=side, **LINES[side])
        energies.axhline(exact, color="#666666", linewidth=1, linestyle=":", label=f"exact: {exact:.4f}")
        energies.set(title="Energy", xlabel="step", ylabel="mean local energy")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("Finds a ground state by variational Monte Carlo.")
    parser.add_argument("--particles", type=positive, default=2, help="how many there are, in three dimensions")
    parser.add_argument("--walkers", type=positive, default=1024, help="samples of the wave function")
    parser.add_argument("--steps", type=positive, default=400, help="steps of Adam")
    parser.add_argument("--out", type=folder, help="folder for vmc.png; no plot without it")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    torch.set_num_threads(options.threads)
    out = console()
    exact = exact_energy(options.particles)
    announce(out, f"{options.particles} particles in a trap, {options.walkers} walkers; ground state {exact:.4f}")
    coordinates = 3 * options.particles
    network = tanh_network(coordinates, WIDTH, 2, options.seed)
    walkers = torch.randn(options.walkers, coordinates)
    trainings = {side: Training(one, walkers, options.steps, options.seed) for side, one in twins(network).items()}
    failures = check(trainings, out)
    for step in track(range(options.steps), description="Adam, steps", console=out):
        for side in turns(step):
            trainings[side].step()
    failures += check(trainings, out)
    table = rows(trainings, exact)
    out.print(comparison(f"\n{options.steps} steps", table))
    if options.out:
        path = options.out / "vmc.png"
        plot(trainings, table, exact, path)
        out.print(f"Energies and times: {path}")
    fail_if(failures, "vmc")


if __name__ == "__main__":
    main()
