"""What the examples share: two copies of one network, fair timing, and the table."""

from __future__ import annotations

import argparse
import contextlib
import copy
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import fastops

FASTOPS, PYTORCH = "fastops", "PyTorch"

Training = TypeVar("Training")  # what an example keeps of one side


def twins(network: nn.Sequential) -> dict[str, nn.Module]:
    """Two copies of a network with the same weights: one run by fastops, one by PyTorch."""
    return {FASTOPS: fastops.nn.MLP.from_sequential(copy.deepcopy(network)), PYTORCH: copy.deepcopy(network)}


def tanh_network(inputs: int, width: int, hidden_layers: int, seed: int) -> nn.Sequential:
    """A tanh network with one output, with Glorot's weights and biases of zero."""
    torch.manual_seed(seed)
    sizes = [inputs, *[width] * hidden_layers]
    hidden = [module for pair in pairwise(sizes) for module in (nn.Linear(*pair), nn.Tanh())]
    network = nn.Sequential(*hidden, nn.Linear(width, 1))
    for layer in network:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return network


@contextlib.contextmanager
def weights_of(source: nn.Module, network: nn.Module) -> Iterator[None]:
    """The network has the weights of another one meanwhile."""
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    network.load_state_dict(source.state_dict())
    yield
    network.load_state_dict(weights)


def turns(round_number: int) -> tuple[str, str]:
    """Who goes first in this round: they alternate, so that neither always runs on warm caches or a throttled CPU."""
    return (FASTOPS, PYTORCH) if round_number % 2 == 0 else (PYTORCH, FASTOPS)


def relative_difference(values: Sequence[Tensor], references: Sequence[Tensor]) -> float:
    """|values - references| / |references|, in the norm over all tensors together."""
    value, reference = (torch.cat([tensor.detach().flatten() for tensor in many]) for many in (values, references))
    return float((value - reference).norm() / reference.norm())


def check_beginning(
    losses: Mapping[str, Sequence[float]], steps: int, tolerance_per_step: float, out: Console
) -> list[str]:
    """Compares the first losses of both sides; gives what is more than rounding explains."""
    ours, references = (losses[side][:steps] for side in (FASTOPS, PYTORCH))
    differences = [abs(a - b) / b for a, b in zip(ours, references, strict=True)]
    out.print(
        f"The losses of the first {len(differences)} steps differ by at most {max(differences):.1e} of themselves"
    )
    out.print(f"  (tolerance {tolerance_per_step:.1e} for each step so far: the rounding of float32 sums)")
    return [
        f"the losses of step {step} differ by {difference:.1e}, more than {step * tolerance_per_step:.1e}"
        for step, difference in enumerate(differences, start=1)
        if not difference <= step * tolerance_per_step  # so that a NaN fails
    ][:1]


def fail_if(failures: Sequence[str], example: str) -> None:
    """Ends the program with what the sides do not agree in."""
    if failures:
        raise SystemExit(f"{example}: fastops and PyTorch do not agree: " + "; ".join(failures))


@dataclass(frozen=True)
class Row:
    """One quantity of both sides: a single value or many samples of it, and how to write one."""

    label: str
    samples: dict[str, Sequence[float]]
    show: Callable[[float], str]

    @classmethod
    def of(
        cls,
        label: str,
        trainings: Mapping[str, Training],
        samples: Callable[[Training], Sequence[float]],
        show: Callable[[float], str],
    ) -> Row:
        """With what ``samples`` gives for the training of each side."""
        return cls(label, {side: samples(training) for side, training in trainings.items()}, show)

    def median(self, side: str) -> float:
        return statistics.median(self.samples[side])

    def quartiles(self, side: str) -> tuple[float, float]:
        samples = self.samples[side]
        if len(samples) < 2:
            return samples[0], samples[0]
        lower, _, upper = statistics.quantiles(samples, n=4, method="inclusive")
        return lower, upper

    def cell(self, side: str) -> str:
        text = self.show(self.median(side))
        if len(self.samples[side]) > 1:
            text += " ({} to {})".format(*map(self.show, self.quartiles(side)))
        return text


def comparison(title: str, rows: Iterable[Row]) -> Table:
    """The table of fastops beside PyTorch."""
    caption = "median (quartiles); a ratio of times or memory below 1 is in favour of fastops"
    table = Table(title=title, caption=caption, box=box.SIMPLE)
    table.add_column("", no_wrap=True)
    for heading in (FASTOPS, PYTORCH, f"{FASTOPS} / {PYTORCH}"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        ratio = row.median(FASTOPS) / row.median(PYTORCH) if row.median(PYTORCH) else float("nan")
        table.add_row(row.label, row.cell(FASTOPS), row.cell(PYTORCH), f"{ratio:.2f}")
    return table


def arguments(description: str, *, threads: int | None = None) -> argparse.ArgumentParser:
    """A parser with the options that every example has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--threads", type=positive, default=threads or torch.get_num_threads(), help="CPU threads")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights and of the random numbers")
    return parser


def positive(text: str) -> int:
    """An argparse type: an integer of at least one."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but is {value}")
    return value


def count(text: str) -> int:
    """An argparse type: an integer of at least zero."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, but is {value}")
    return value


def probability(text: str) -> float:
    """An argparse type: a number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1, but is {text}")
    return value


def console() -> Console:
    """A console that does not squeeze the tables when the output goes to a file."""
    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=120)


def announce(out: Console, what: str) -> None:
    """Says what runs, and on what."""
    out.print(f"[bold]{what}[/]")
    out.print(f"fastops {fastops.__version__}, torch {torch.__version__}, {torch.get_num_threads()} CPU thread(s)\n")


def folder(text: str | Path) -> Path:
    """The folder, which is made where it does not exist; as an argparse type, before anything takes long."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return path
