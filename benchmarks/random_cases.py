"""Random cases beside PyTorch eager: which of them are slower?

``python benchmarks/random_cases.py`` makes up activations, gates, networks, gated blocks, ensembles and derivatives of
any sizes, dtypes and layouts, in inference and training, on one thread and on all, for some minutes. It prints those
that take longer than in PyTorch, each with the seed that repeats it, and at the end how the ratios are spread. The
suites of ``fastops.bench`` have sizes that are in use; this finds what lies between them.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor, nn

import fastops
from fastops.bench import models
from fastops.bench.timing import measure, warm_up
from fastops.bench.workloads import dtype_name

Function = Callable[[Tensor], Tensor]

ACTIVATIONS: list[Callable[[], nn.Module]] = [
    *(nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Mish, nn.Hardswish),
    *(nn.Hardtanh, nn.SELU, nn.Softshrink, lambda: nn.GELU(approximate="tanh")),
]
SMOOTH: list[Callable[[], nn.Module]] = [nn.Tanh, nn.SiLU, nn.Softplus, nn.Sigmoid, models.Sin]
COMMON = (1, 2, 8, 10, 16, 32, 64, 100, 128, 256, 300, 512, 768, 1000, 1024)
MOST_OPERATIONS = 100_000_000  # multiplications of a forward pass
MOST_ELEMENTS = 1_000_000
THREADS = torch.get_num_threads()


class Case(NamedTuple):
    """A function as PyTorch has it and as fastops does, what it is called with, and what else has a gradient."""

    text: str
    eager: Function
    own: Function
    input: Tensor
    others: tuple[Tensor, ...] = ()


def size(random: Random, most: int) -> int:
    """A number up to ``most``, small and large ones alike; often one that is in use."""
    drawn = round(math.exp(random.uniform(0, math.log(most))))
    return random.choice([drawn, random.choice([number for number in COMMON if number <= most])])


def any_dtype(random: Random) -> torch.dtype:
    """Mostly float32."""
    return random.choice([*(torch.float32,) * 4, torch.float64, torch.bfloat16, torch.float16])


def rows_of(random: Random, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Rows side by side, or with gaps, or of a transposed matrix, or in three dimensions."""
    gap, parts = random.choice([1, 16]), random.choice([2, 8])
    layouts: list[Callable[[], Tensor]] = [
        *(lambda: torch.randn(rows, columns, dtype=dtype),) * 4,
        lambda: torch.randn(rows, columns + gap, dtype=dtype)[:, :columns],
        lambda: torch.randn(columns, rows, dtype=dtype).t(),
        lambda: torch.randn(max(1, rows // parts), parts, columns, dtype=dtype),
    ]
    return random.choice(layouts)()


def elements(random: Random) -> Tensor:
    """An argument of an elementwise op."""
    columns = size(random, 2048)
    return rows_of(random, size(random, MOST_ELEMENTS // columns), columns, any_dtype(random))


def activation(random: Random) -> Case:
    """An activation by itself."""
    name = random.choice([entry["name"] for entry in fastops._C.activations()])
    return Case(name, models.pytorch_activation(name), getattr(fastops.functional, name), elements(random))


def gate(random: Random) -> Case:
    """An activation and the product with another tensor, or with the other half of the same one."""
    name = random.choice(["relu", "gelu", "silu", "sigmoid", "gelu_tanh"])
    function, x = models.pytorch_activation(name), elements(random)
    if x.size(-1) % 2 == 0 and random.random() < 0.5:

        def eager(x: Tensor) -> Tensor:
            first, second = x.chunk(2, -1)
            return function(first) * second

        return Case(f"gated_act {name}", eager, lambda x: fastops.functional.gated_act(x, name), x)
    up = torch.randn_like(x).requires_grad_()
    own: Function = lambda x: fastops.functional.act_mul(x, up, name)  # noqa: E731
    return Case(f"act_mul {name}", lambda x: function(x) * up, own, x, (up,))


def of_model(random: Random, text: str, model: nn.Module, x_features: int, weights: int, most_rows: int = 4096) -> Case:
    """A model with as many rows as are no more than a fraction of a second's work."""
    dtype = any_dtype(random)
    if isinstance(model, models.Derivative) and dtype.itemsize == 2:
        dtype = torch.float64
    models.initialize(model)
    model = model.to(dtype)
    most = MOST_OPERATIONS if dtype.itemsize > 2 else MOST_OPERATIONS // 10
    rows = size(random, max(1, min(most_rows, most // max(1, weights))))
    if random.random() < 0.2:  # as models have them that compute input @ weight
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.data = layer.weight.data.t().contiguous().t()
        text += ", weights [in, out]"
    x = rows_of(random, rows, x_features, dtype)
    if isinstance(model, (models.Derivative, models.Ensemble)):
        x = x.reshape(-1, x_features)
    return Case(text, model, models.by_fastops(model), x)


def sizes_of(random: Random, most_layers: int, most: int) -> list[int]:
    """The features of a network, the hidden ones often alike."""
    layers = random.randint(1, most_layers)
    first, *others = [size(random, most) for _ in range(layers + 1)]
    return [first, *([others[0]] * (layers - 1) if random.random() < 0.5 else others[:-1]), others[-1]]


def weights_of(sizes: Sequence[int]) -> int:
    """The elements of a network's weights."""
    return sum(a * b for a, b in pairwise(sizes))


def text_of(kind: str, sizes: Sequence[int], activation: nn.Module) -> str:
    """What such a network is called."""
    return f"{kind} {'-'.join(map(str, sizes))} {activation}"


def network(random: Random) -> Case:
    """Linear layers and activations, also with norms and dropout."""
    sizes, function = sizes_of(random, 5, 1500), random.choice(ACTIVATIONS)()
    if len(sizes) > 2 and random.random() < 0.3:
        dropout = random.choice([0.0, 0.1])
        model = models.normalized(sizes, function, dropout)
        text = text_of(f"normalized, dropout {dropout},", sizes, function)
    else:
        model, text = models.sequential(sizes, function), text_of("network", sizes, function)
    return of_model(random, text, model, sizes[0], weights_of(sizes))


def gated_block(random: Random) -> Case:
    """A gated block."""
    features, hidden = size(random, 1024), size(random, 2048)
    model = models.GatedMLP(features, hidden)
    return of_model(random, f"gated {features}-{hidden}", model, features, 3 * features * hidden)


def ensemble(random: Random) -> Case:
    """Networks of one form, over the same input."""
    members, sizes, function = size(random, 64), sizes_of(random, 3, 256), random.choice(ACTIVATIONS)()
    model = models.Ensemble(members, sizes, function)
    text = text_of(f"{members} networks", sizes, function)
    return of_model(random, text, model, sizes[0], members * weights_of(sizes), 512)


def derivative(random: Random) -> Case:
    """Derivatives with respect to the input, beside nested reverse mode."""
    kind = random.choice([models.Laplacian, models.Hessian, models.Divergence, models.Energy])
    inputs, function = size(random, 10), random.choice(SMOOTH)()
    outputs = inputs if kind is models.Divergence else 1
    sizes = [inputs, *[size(random, 200)] * random.randint(1, 3), outputs]
    text = text_of(kind.__name__, sizes, function)
    work = 2 * (inputs + 2) * weights_of(sizes)
    return of_model(random, text, kind(models.sequential(sizes, function)), inputs, work, 2048)


FAMILIES: dict[str, Callable[[Random], Case]] = {
    function.__name__: function for function in (activation, gate, network, gated_block, ensemble, derivative)
}


def call(function: Function, x: Tensor, others: Sequence[Tensor], training: bool) -> Callable[[], object]:
    """A call without gradients, or one with a backward pass."""
    models.set_dropout(function, training)
    if not training:

        def run() -> None:
            with torch.no_grad():
                function(x)

        return run
    parameters = function.parameters() if isinstance(function, nn.Module) else others
    wanted = [*parameters, *([x] if x.requires_grad else [])]
    gradient = torch.randn_like(function(x))
    return lambda: torch.autograd.grad(function(x), wanted, gradient)


def ratio_of(family: str, seed: int, seconds: float) -> tuple[float, str]:
    """How many times as long as fastops PyTorch takes for a case, and what the case is."""
    random = Random(f"{family} {seed}")
    torch.manual_seed(seed)
    threads = random.choice([1, THREADS])
    torch.set_num_threads(threads)
    text, eager, own, x, others = FAMILIES[family](random)
    training = random.random() < 0.5
    if training and (not isinstance(eager, nn.Module) or random.random() < 0.4):
        x.requires_grad_()
    works = {name: call(f, x, others, training) for name, f in {"fastops": own, "eager": eager}.items()}
    warm_up(works)
    timings = measure(works, seconds=seconds, synchronize=lambda: None)
    times = ", ".join(f"{name} {1e6 * timings.spread(name).median:.1f} us" for name in works)
    mode = ("training, input too" if x.requires_grad else "training") if training else "inference"
    given = f"{dtype_name(x.dtype)} {tuple(x.shape)} {x.stride()}"
    return timings.ratio("eager", "fastops").median, f"{text}, {given}, {mode}, threads: {threads}; {times}"


def search(families: Sequence[str], first_seed: int, minutes: float, limit: float) -> dict[str, list[float]]:
    """Prints the cases below the limit, twice; the ratios of all."""
    ratios: dict[str, list[float]] = {family: [] for family in families}
    seed, end = first_seed, time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        for family in families:
            try:
                ratio, text = ratio_of(family, seed, 0.1)
                ratios[family].append(ratio)
                if ratio < limit:  # once more, for longer
                    ratio, text = ratio_of(family, seed, 0.6)
            except Exception as error:
                raise RuntimeError(f"{family} --seed {seed}") from error
            if ratio < limit:
                print(f"{ratio:.2f} {family} --seed {seed}: {text}", flush=True)
        seed += 1
    return ratios


def main() -> None:
    """Parses the command line, and prints what is slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"by default all: {' '.join(FAMILIES)}")
    parser.add_argument("--minutes", type=float, default=10.0, help="default: %(default)s")
    parser.add_argument("--seed", type=int, help="this case alone, of one family")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=0.95, help="prints ratios below it (default: %(default)s)")
    arguments = parser.parse_args()
    for name in arguments.families:
        if name not in FAMILIES:
            parser.error(f"unknown family '{name}': it must be one of {', '.join(FAMILIES)}")
    families = arguments.families or list(FAMILIES)
    if arguments.seed is not None and len(families) > 1:
        parser.error("--seed is for a case of one family: name it")
    warnings.simplefilter("ignore")
    if arguments.seed is not None:
        ratio, text = ratio_of(families[0], arguments.seed, 2.0)
        print(f"{ratio:.2f} {text}")
        return
    for family, ratios in search(families, arguments.first_seed, arguments.minutes, arguments.limit).items():
        if len(ratios) > 1:
            percentiles = statistics.quantiles(ratios, n=100, method="inclusive")
            parts = ", ".join(f"{percent}% {percentiles[percent - 1]:.2f}" for percent in (1, 5, 10, 50))
            print(f"{family}: percentiles of {len(ratios)} ratios: {parts}")


if __name__ == "__main__":
    main()
