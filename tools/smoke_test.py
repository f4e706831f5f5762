"""Whether an installed fastops works: one training step against PyTorch, and an op. Needs only torch.

Run from any directory: python tools/smoke_test.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import fastops


def main() -> None:
    location = Path(fastops.__file__).resolve()
    assert location.is_relative_to(Path(sys.prefix).resolve()), f"{location} is not part of {sys.prefix}"

    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(20, 30), nn.GELU(), nn.Linear(30, 30), nn.GELU(), nn.Linear(30, 4))
    model = fastops.nn.MLP(20, [30, 30], 4, activation="gelu")
    model.load_state_dict(reference.state_dict())
    x, y = torch.randn(64, 20), torch.randn(64, 4)
    torch.testing.assert_close(train_step(model, x, y), train_step(reference, x, y))
    torch.testing.assert_close(model.state_dict(), reference.state_dict())

    torch.testing.assert_close(torch.ops.fastops.softshrink(x, lambd=0.3), nn.functional.softshrink(x, 0.3))
    print(f"fastops {fastops.__version__} in {location.parent} works")


def train_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss of one step of gradient descent, which changes the model."""
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss.detach()


if __name__ == "__main__":
    main()
