"""Solves equations with a physics-informed network, which needs second derivatives: fastops and PyTorch.

Run it with ``python examples/pinn.py --out demo``; it takes well under a minute. The problem is Poisson's equation,
-(u_xx + u_yy) = f in the unit square with u = 0 on its boundary (Raissi, Perdikaris and Karniadakis, Physics-informed
neural networks, 2019), or with ``--equation helmholtz`` Helmholtz's, -(u_xx + u_yy + u_zz) - k^2 u = f in the unit
cube, with an f whose solution is known. The network is a tanh MLP with three hidden layers of 64. In PyTorch each
second derivative comes from a use of torch.autograd.grad on the gradient, and the training differentiates them once
more; in fastops the network's value, gradient and Laplacian are one forward pass, and the training is one backward
pass. Adam finds the shape of the solution, L-BFGS its digits. Expect relative errors of a thousandth from both sides,
and in the --out folder pinn.png. The program fails if the two loss curves differ at the beginning.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from common import (
    FASTOPS,
    PYTORCH,
    Row,
    announce,
    arguments,
    check_beginning,
    comparison,
    console,
    count,
    fail_if,
    folder,
    positive,
    tanh_network,
    turns,
    twins,
)
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from plots import LINES, bars, new_figure, save, tidy
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

import fastops

WIDTH = 64
ROUND = 20  # iterations of L-BFGS after which it is the other side's turn

# The losses of this many first steps are compared. From step to step each side adds the rounding errors of its sums,
# which are as long as a layer is wide; tanh is smooth, so that they add up and nothing tears the two sides apart.
COMPARED_STEPS = 100
TOLERANCE_PER_STEP = WIDTH * torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Equation:
    """-laplacian(u) - k^2 u = f in the unit square or cube, with u = 0 on its boundary, and its solution.

    That is a sum of sines: of an amplitude and a frequency in each dimension.
    """

    text: str
    waves: tuple[tuple[float, tuple[int, ...]], ...]
    k: float = 0.0

    @property
    def dimensions(self) -> int:
        return len(self.waves[0][1])

    def exact(self, points: Tensor) -> Tensor:
        """The solution at points [n, dimensions]."""
        return torch.stack([self._wave(points, *wave) for wave in self.waves]).sum(0)

    def source(self, points: Tensor) -> Tensor:
        """Their f."""
        squares = [math.pi**2 * sum(n * n for n in frequencies) - self.k**2 for _, frequencies in self.waves]
        waves = [square * self._wave(points, *wave) for square, wave in zip(squares, self.waves, strict=True)]
        return torch.stack(waves).sum(0)

    def _wave(self, points: Tensor, amplitude: float, frequencies: tuple[int, ...]) -> Tensor:
        return amplitude * torch.sin(math.pi * points * torch.tensor(frequencies)).prod(1)


EQUATIONS = {
    "poisson": Equation("-(u_xx + u_yy) = f in the unit square", ((1.0, (1, 1)), (0.5, (3, 2)))),
    "helmholtz": Equation(
        "-(u_xx + u_yy + u_zz) - 4 u = f in the unit cube", ((1.0, (1, 1, 1)), (0.5, (2, 1, 1))), k=2.0
    ),
}


def solution(network: nn.Module, points: Tensor) -> Tensor:
    """The network's u, which is zero on the boundary whatever its weights are."""
    free: Tensor = network(points).squeeze(1)
    return 4 ** points.shape[1] * (points * (1 - points)).prod(1) * free


def by_autograd(network: nn.Module, points: Tensor) -> tuple[Tensor, Tensor]:
    """u and its Laplacian from nested reverse mode."""
    points = points.detach().requires_grad_()
    u = solution(network, points)
    (gradient,) = torch.autograd.grad(u.sum(), points, create_graph=True)
    laplacian = torch.zeros_like(gradient[:, 0])
    for dimension in range(points.shape[1]):
        (second,) = torch.autograd.grad(gradient[:, dimension].sum(), points, create_graph=True)
        laplacian = laplacian + second[:, dimension]
    return u, laplacian


def by_propagation(network: fastops.nn.MLP, points: Tensor) -> tuple[Tensor, Tensor]:
    """The same by the product rule, from what the network propagates."""
    free, gradient, laplacian = network.value_gradient_laplacian(points)
    free, gradient, laplacian = free.squeeze(1), gradient.squeeze(1), laplacian.squeeze(1)
    factors, slopes = points * (1 - points), 1 - 2 * points
    dimensions = range(points.shape[1])
    others = torch.stack([factors[:, [e for e in dimensions if e != d]].prod(1) for d in dimensions], 1)
    boundary = factors.prod(1)
    by_boundary = 2 * (slopes * others * gradient).sum(1) - 2 * others.sum(1) * free
    scale = 4 ** points.shape[1]
    return scale * boundary * free, scale * (boundary * laplacian + by_boundary)


def residual_loss(network: nn.Module, equation: Equation, points: Tensor) -> Tensor:
    """The mean square of laplacian(u) + k^2 u + f at the points, relative to that of f."""
    is_own = isinstance(network, fastops.nn.MLP)
    u, laplacian = by_propagation(network, points) if is_own else by_autograd(network, points)
    f = equation.source(points)
    return (laplacian + equation.k**2 * u + f).square().mean() / f.square().mean()


class Training:
    """One side's training, and what was measured of it."""

    def __init__(self, network: nn.Module, equation: Equation, points: Tensor, steps: int) -> None:
        self.network, self.equation, self.points = network, equation, points
        self.adam = torch.optim.Adam(network.parameters(), lr=5e-3)
        self.rate = torch.optim.lr_scheduler.CosineAnnealingLR(self.adam, steps)
        self.lbfgs = torch.optim.LBFGS(
            network.parameters(),
            max_iter=ROUND,
            history_size=50,
            line_search_fn="strong_wolfe",
            tolerance_grad=0,
            tolerance_change=0,
        )
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def adam_step(self) -> None:
        """One timed step of Adam."""
        start = time.perf_counter()
        self.losses.append(self.loss_and_gradients(self.adam).item())
        self.adam.step()
        self.rate.step()
        self.seconds.append(time.perf_counter() - start)

    def lbfgs_round(self) -> None:
        """A round of L-BFGS, whose line search evaluates the loss more than once in some iterations."""

        def closure() -> Tensor:
            loss = self.loss_and_gradients(self.lbfgs)
            self.losses.append(loss.item())
            return loss

        self.lbfgs.step(closure)

    def loss_and_gradients(self, optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad()
        loss = residual_loss(self.network, self.equation, self.points)
        loss.backward()
        return loss.detach()


def grid(dimensions: int, size: int = 101) -> Tensor:
    """Points [size * size, dimensions] that cover the square, or the cube at z = 0.3."""
    line = torch.linspace(0, 1, size)
    square = torch.cartesian_prod(line, line)
    return torch.cat([square, torch.full((len(square), dimensions - 2), 0.3)], 1)


@torch.no_grad()
def relative_error(training: Training) -> float:
    """|u - exact| / |exact| in the L2 norm."""
    equation = training.equation
    points = torch.quasirandom.SobolEngine(equation.dimensions).draw(8192)
    exact = equation.exact(points)
    return float((solution(training.network, points) - exact).norm() / exact.norm())


def train(network: nn.Sequential, options: argparse.Namespace, out: Console) -> dict[str, Training]:
    """Trains both sides, which take turns: step by step in Adam, round by round in L-BFGS."""
    equation = EQUATIONS[options.equation]
    sobol = torch.quasirandom.SobolEngine(equation.dimensions, scramble=True, seed=options.seed)
    points = sobol.draw(options.points)
    trainings = {side: Training(twin, equation, points, options.steps) for side, twin in twins(network).items()}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out) as progress:
        for step in progress.track(range(options.steps), description="Adam, steps"):
            for side in turns(step):
                trainings[side].adam_step()
        for number in progress.track(range(options.rounds), description=f"L-BFGS, rounds of {ROUND}"):
            for side in turns(number):
                trainings[side].lbfgs_round()
    return trainings


def rows(trainings: dict[str, Training]) -> list[Row]:
    return [
        Row.of("relative L2 error", trainings, lambda one: [relative_error(one)], "{:.1e}".format),
        Row.of("final loss", trainings, lambda one: one.losses[-1:], "{:.1e}".format),
        Row.of("seconds per Adam step", trainings, lambda one: one.seconds, "{:.4f}".format),
    ]


def plot(trainings: dict[str, Training], table: Sequence[Row], adam_steps: int, path: Path) -> None:
    """The solution, both errors, the loss curves and the time bars."""
    equation = trainings[FASTOPS].equation
    figure = new_figure(f"{equation.text} by a tanh network: fastops and PyTorch", 13, 7.5)
    axes = figure.subplots(2, 3)
    points = grid(equation.dimensions)
    with torch.no_grad():
        solutions = {side: solution(training.network, points) for side, training in trainings.items()}
    errors = {side: (u - equation.exact(points)).abs() for side, u in solutions.items()}
    largest = max(error.max().item() for error in errors.values())
    what = "u(x, y)" if equation.dimensions == 2 else "u(x, y, 0.3)"
    plot_field(figure, axes[0, 0], solutions[FASTOPS], f"Solution {what} by fastops", "RdBu_r", (-1.5, 1.5))
    error, _, seconds = table
    for axis, side in ((axes[0, 1], FASTOPS), (axes[0, 2], PYTORCH)):
        title = f"Error of {side} (relative: {error.cell(side)})"
        plot_field(figure, axis, errors[side], title, "magma", (0, largest))
    plot_losses(axes[1, 0], trainings, adam_steps)
    plot_differences(axes[1, 1], trainings, adam_steps)
    bars(axes[1, 2], seconds, "Time per Adam step", "seconds (median, quartiles)")
    save(figure, path)


def plot_field(
    figure: Figure, axes: Axes, values: Tensor, title: str, colors: str, limits: tuple[float, float]
) -> None:
    """A function on the grid, in colours."""
    size = math.isqrt(len(values))
    field = values.reshape(size, size).T.numpy()
    image = axes.imshow(field, origin="lower", extent=(0, 1, 0, 1), cmap=colors, vmin=limits[0], vmax=limits[1])
    axes.set(title=title, xlabel="x", ylabel="y")
    figure.colorbar(image, ax=axes, shrink=0.85)


def plot_losses(axes: Axes, trainings: dict[str, Training], adam_steps: int) -> None:
    for side, training in trainings.items():
        axes.semilogy(training.losses, label=side, **LINES[side])
    axes.set(title="Loss", xlabel="evaluation of loss and gradient", ylabel="mean squared residual / f squared")
    mark_lbfgs(axes, adam_steps)


def plot_differences(axes: Axes, trainings: dict[str, Training], adam_steps: int) -> None:
    """Up to the shorter curve: the line searches of L-BFGS may evaluate the loss more often on one side."""
    pairs = zip(trainings[FASTOPS].losses, trainings[PYTORCH].losses, strict=False)
    differences = [max(abs(a - b) / b, 1e-8) for a, b in pairs]
    axes.semilogy(differences, color=LINES[FASTOPS]["color"], linewidth=0.9)
    axes.set(title="Difference of the two losses", xlabel="evaluation of loss and gradient")
    axes.set(ylabel="relative difference (1e-8: none)")
    mark_lbfgs(axes, adam_steps)


def mark_lbfgs(axes: Axes, adam_steps: int) -> None:
    axes.axvline(adam_steps, color="#666666", linewidth=1, linestyle=":", label="from Adam to L-BFGS")
    tidy(axes)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    # A second thread has little to do in a network of this size.
    parser = arguments("Solves an equation with a physics-informed network.", threads=1)
    parser.add_argument("--equation", choices=EQUATIONS, default="poisson", help="which, in two or three variables")
    parser.add_argument("--steps", type=positive, default=800, help="steps of Adam")
    parser.add_argument("--rounds", type=count, default=12, help=f"rounds of {ROUND} iterations of L-BFGS")
    parser.add_argument("--points", type=positive, default=512, help="points at which the equation shall hold")
    parser.add_argument("--out", type=folder, help="folder for pinn.png; no plot without it")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    torch.set_num_threads(options.threads)
    out = console()
    equation = EQUATIONS[options.equation]
    announce(out, f"{equation.text} by a tanh network, at {options.points} points")
    trainings = train(tanh_network(equation.dimensions, WIDTH, 3, options.seed), options, out)
    table = rows(trainings)
    out.print(comparison(f"\n{options.steps} steps of Adam, then {options.rounds * ROUND} iterations of L-BFGS", table))
    losses = {side: training.losses for side, training in trainings.items()}
    failures = check_beginning(losses, min(options.steps, COMPARED_STEPS), TOLERANCE_PER_STEP, out)
    if options.out:
        path = options.out / "pinn.png"
        plot(trainings, table, options.steps, path)
        out.print(f"Solution, errors and curves: {path}")
    fail_if(failures, "pinn")


if __name__ == "__main__":
    main()
