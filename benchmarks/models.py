"""What the benchmarks of whole models share: their sizes and batches, and the passes that are timed.

After it is imported, so can be ``tests/zoo.py``; timm and transformers find what they need of torchvision.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from torchvision_python import import_torchvision

with suppress(ModuleNotFoundError):
    import_torchvision()

WIDTH, HEADS, LAYERS = 384, 6, 2
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "vocab_size": 1000,
    "attention_dropout": 0.0,
}


def features(rows: int, columns: int) -> Callable[[], Tensor]:
    """A batch for an MLP."""
    return lambda: torch.randn(rows, columns)


def tokens() -> Tensor:
    """Four texts of 64 tokens."""
    return torch.randint(3, 1000, (4, 64))


def images() -> Tensor:
    """Four images of 224 x 224."""
    return torch.randn(4, 3, 224, 224)


def output_of(result: Any) -> Tensor:
    """What the loss is computed of: all of several tensors, the first of what is returned with names."""
    if type(result) is tuple:
        return torch.cat(result, -1)
    return result if isinstance(result, Tensor) else result[0]


def step(call: Callable[..., Any], batch: Tensor) -> Callable[[], None]:
    """A forward and backward pass."""

    def run() -> None:
        output_of(call(batch)).square().mean().backward()

    return run


def infer(call: Callable[..., Any], batch: Tensor) -> Callable[[], None]:
    """A forward pass without gradients."""

    def run() -> None:
        with torch.no_grad():
            call(batch)

    return run
