"""The suites: which workloads each has, and fewer of them for a quick look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

import fastops

from .._propagation import has_rows_of_pairs
from . import models
from .blocks import CONVERTIBLE
from .workloads import Converted, Elementwise, Network, Workload


def tiny(quick: bool) -> Iterator[Workload]:
    """Networks so small that calling ops is most of the work."""
    networks: list[tuple[tuple[int, ...], nn.Module]] = [((5, 15, 1), nn.ReLU()), ((17, 64, 64, 6), nn.Tanh())]
    for sizes, activation in networks:
        for rows in (64,) if quick else (1, 64, 256):
            yield _mlp("tiny", sizes, activation, rows, torch.float32)


def digits(quick: bool) -> Iterator[Workload]:
    """A classifier of handwritten digits."""
    for rows in (64, 512) if quick else (1, 64, 512, 4096):
        yield _mlp("digits", (784, 256, 256, 256, 10), nn.Softshrink(), rows, torch.float32)


def ffn(quick: bool) -> Iterator[Workload]:
    """Feed-forward blocks of transformers; being within a larger model, their input needs a gradient."""
    for dtype in (torch.float32, torch.bfloat16):
        for rows in (128,) if quick else (128, 512, 2048):
            for activation in (nn.GELU("tanh"), nn.GELU()):
                yield _mlp("ffn", (768, 3072, 768), activation, rows, dtype, input_gradient=True)
            build = partial(models.GatedMLP, 1024, 2816)
            yield Network("ffn", "swiglu-1024-2816-1024", rows, dtype, build, input_gradient=True)


def products(quick: bool) -> Iterator[Workload]:
    """Linear layers by themselves; FASTOPS_CPU_PRODUCTS says whose products are timed."""
    for dtype in (torch.float32, torch.bfloat16):
        for features in (256,) if quick else (64, 256, 1024, 4096):
            for rows in (32, 512) if quick else (1, 8, 32, 128, 512, 2048):
                yield _mlp("products", (features, features), nn.ReLU(), rows, dtype, input_gradient=True)


def derivatives(quick: bool) -> Iterator[Workload]:
    """Derivatives of networks in their input, and the training on them: equations, flows."""
    cases: list[tuple[type[models.Derivative], tuple[int, ...], nn.Module, int]] = [
        (models.Laplacian, (2, 64, 64, 64, 1), nn.Tanh(), 512),
        (models.Laplacian, (10, 128, 128, 128, 1), nn.Tanh(), 512),
        (models.Laplacian, (3, 128, 128, 1), nn.SiLU(), 1024),
        (models.Laplacian, (2, 256, 256, 256, 1), models.Sin(), 1024),
        (models.NestedLaplacian, (2, 64, 64, 64, 1), nn.Tanh(), 512),
        (models.NestedLaplacian, (3, 128, 128, 1), nn.SiLU(), 1024),
        (models.Hessian, (2, 64, 64, 64, 1), nn.Tanh(), 512),
        (models.Hessian, (3, 128, 128, 3), nn.Tanh(), 512),
        (models.Hessian, (10, 128, 128, 128, 1), nn.Tanh(), 512),
        (models.Divergence, (64, 128, 128, 64), nn.Tanh(), 128),
        (models.Divergence, (16, 64, 64, 64, 16), nn.Tanh(), 256),
        (models.Energy, (30, 128, 128, 1), nn.Tanh(), 512),
        (models.NestedEnergy, (30, 128, 128, 1), nn.Tanh(), 512),
    ]
    for kind, sizes, activation, points in cases[: 1 if quick else None]:
        build = partial(_derivative, kind, sizes, activation)
        name = f"{kind.__name__.lower()}-{'-'.join(map(str, sizes))}-{type(activation).__name__.lower()}"
        rows = sizes[0] + 2
        if kind is models.Divergence:
            rows = sizes[0] + 1 if len(sizes) > 4 else 1  # with two hidden layers it is a bilinear form
        elif kind is models.Hessian:
            # Each pair of inputs has a row, or each output, in reverse mode.
            by_pairs = has_rows_of_pairs(sizes[0], sizes[-1])
            rows = sizes[0] + 1 + (sizes[0] * (sizes[0] + 1) // 2 if by_pairs else sizes[-1])
        elif issubclass(kind, models.Energy):
            rows = 2  # in reverse mode
        yield Network("derivatives", name, points, torch.float32, build, propagated=rows)


def _derivative(kind: type[models.Derivative], sizes: tuple[int, ...], activation: nn.Module) -> nn.Module:
    return kind(models.sequential(sizes, activation))


def ensembles(quick: bool) -> Iterator[Workload]:
    """Several networks at once, over the same input."""
    cases = [(100, (5, 15, 1)), (8, (17, 64, 64, 6)), (5, (17, 256, 256, 6))]
    for members, sizes in cases[: 2 if quick else None]:
        for rows in (64,) if quick else (1, 64, 256):
            build = partial(models.Ensemble, members, sizes, nn.Tanh())
            name = f"{members}x{'-'.join(map(str, sizes))}-tanh"
            yield Network("ensembles", name, rows, torch.float32, build)


def networks(quick: bool) -> Iterator[Workload]:
    """Networks with norms and dropout, and the feed-forward half of a transformer's block."""
    cases: list[tuple[tuple[int, ...], nn.Module, float]] = [
        ((256, 256, 256), nn.ReLU(), 0.1),
        ((17, 64, 64, 6), nn.Tanh(), 0.0),
        ((17, 64, 64, 6), nn.ReLU(), 0.1),
    ]
    for sizes, activation, dropout in cases:
        for rows in (256,) if quick else (1, 64, 256, 1024):
            build = partial(models.normalized, sizes, activation, dropout)
            name = f"{'-'.join(map(str, sizes))}-layer_norm-{type(activation).__name__.lower()}"
            yield Network("networks", f"{name}-dropout" if dropout else name, rows, torch.float32, build)
    for rows in (256,) if quick else (64, 256, 1024):
        block = partial(models.Residual, 64, 128, nn.GELU(), 0.1)
        yield Network("networks", "block-64-128-gelu-dropout", rows, torch.float32, block, input_gradient=True)
    for dtype in (torch.float32, torch.bfloat16):
        for dropout in (0.1, 0.0):
            for rows in (128,) if quick else (128, 512):
                block = partial(models.Residual, 768, 3072, nn.GELU(), dropout)
                name = "block-768-3072-gelu-dropout" if dropout else "block-768-3072-gelu"
                yield Network("networks", name, rows, dtype, block, input_gradient=True)


def converted(quick: bool) -> Iterator[Workload]:
    """Models that fastops.nn.convert has converted, of sizes at which calls count."""
    for name, build in CONVERTIBLE.items():
        for rows in (32,) if quick else (32, 256):
            yield Converted("converted", name, rows, torch.float32, build)


def small(quick: bool) -> Iterator[Workload]:
    """Networks as tables, agents and equations have them, with enough rows for products to be most of the work."""
    networks: list[tuple[tuple[int, ...], nn.Module]] = [
        ((2, 64, 64, 64, 1), nn.Tanh()),
        ((3, 128, 128, 1), nn.SiLU()),
        ((32, 128, 128, 128, 1), nn.GELU()),
        ((32, 256, 256, 8), nn.ReLU()),
    ]
    for dtype in (torch.float32, torch.bfloat16):
        for sizes, activation in networks:
            for rows in (1024,) if quick else (256, 1024, 4096):
                yield _mlp("small", sizes, activation, rows, dtype)


_QUICK_ACTIVATIONS = ("relu", "softshrink", "silu", "gelu", "gelu_tanh", "tanh", "mish")


def elementwise(quick: bool) -> Iterator[Workload]:
    """Every activation by itself, from what one core holds in its first cache to what only memory does."""
    names = _QUICK_ACTIVATIONS if quick else [entry["name"] for entry in fastops._C.activations()]
    for exponent in (12, 20) if quick else (12, 16, 20, 24, 26):
        for name in names:
            yield Elementwise("elementwise", name, 2**exponent, torch.float32)
    for name in names:
        yield Elementwise("elementwise", name, 2**20, torch.bfloat16)


SUITES: dict[str, Callable[[bool], Iterator[Workload]]] = {
    "tiny": tiny,
    "digits": digits,
    "ffn": ffn,
    "elementwise": elementwise,
    "products": products,
    "derivatives": derivatives,
    "ensembles": ensembles,
    "networks": networks,
    "converted": converted,
    "small": small,
}


def _mlp(
    suite: str,
    sizes: tuple[int, ...],
    activation: nn.Module,
    rows: int,
    dtype: torch.dtype,
    input_gradient: bool = False,
) -> Network:
    label = type(activation).__name__.lower() + ("_tanh" if getattr(activation, "approximate", "") == "tanh" else "")
    name = f"{'-'.join(map(str, sizes))}-{label}"
    return Network(suite, name, rows, dtype, partial(models.sequential, sizes, activation), input_gradient)
