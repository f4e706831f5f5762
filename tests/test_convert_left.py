"""What the report of fastops.nn.convert says of products that are no feed-forward block."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastops


class Attends(nn.Module):
    """Attention without a name that says so."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.softmax(self.q(x) @ self.k(x).mT, -1) @ self.v(x))


class ScaledDotProduct(nn.Module):
    """With one layer for all, and PyTorch's function."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1)))


class Selects(nn.Module):
    """A softmax and a single product: no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.weight = nn.Linear(6, 3), 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.softmax(self.gate(x), -1)


ATTENTION = "its products are those of attention, which is no feed-forward block"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Attends, ATTENTION),
        (ScaledDotProduct, ATTENTION),
        (lambda: nn.MultiheadAttention(6, 2), ATTENTION),
        (lambda: nn.MultiheadAttention(6, 2, kdim=3, vdim=3), ATTENTION),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(), nn.Linear(6, 6)), "no activation between them"),
        (Selects, None),
    ],
)
def test_products_that_are_left(make: Callable[[], nn.Module], reason: str | None) -> None:
    """Two or more products in a module are named with the reason why they are left, in one line for all of a kind."""
    model = nn.Sequential(nn.ModuleList(make() for _ in range(3)), nn.Linear(3, 3))
    report = fastops.nn.convert(model)
    assert not report.replaced
    assert [row.name for row in report.left] == (["0.0", "0.1", "0.2"] if reason else [])
    assert all(reason and row.reason.endswith(reason) for row in report.left)
    assert len(str(report).splitlines()) == (3 if reason else 2)
