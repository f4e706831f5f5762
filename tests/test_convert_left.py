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


class TwoLayers(nn.Module):
    """Two linear layers, for forwards that are not read."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 9), nn.Linear(9, 6)


class ByName(TwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        for layer in [getattr(self, name) for name in ("up", "down")]:
            x = layer(x)
        return x


class Unnamed(TwoLayers):
    forward = lambda self, x: self.down(self.up(x).cos() * x.sum())  # noqa: E731


class Chosen(nn.Module):
    """Layers in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"up": nn.Linear(6, 9), "down": nn.Linear(9, 6)})

    def forward(self, x: Tensor) -> Tensor:
        return self.layers["down"](self.layers["up"](x).sinh())


class Operator(nn.Module):
    """Matrices that are no layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.zeros(6, 9)), nn.Parameter(torch.zeros(9, 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.up) @ self.down


class Listed(nn.Module):
    """The same in a list, and PyTorch's function for products."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(6, 6) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.einsum("...i,ij->...j", x, weight)
        return x


class Embeds(nn.Module):
    """One product, and a matrix that is only added."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.head = nn.Parameter(torch.zeros(3, 6)), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.positions[: len(x)])


class Adapted(nn.Module):
    """A linear layer of two products, as its name says."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 2), nn.Linear(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x)) * x.mean()


Adapted.__name__ = "LowRankLinear"


class Selects(nn.Module):
    """A softmax and a single product: no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.weight = nn.Linear(6, 3), 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.softmax(self.gate(x), -1)


class Odd(nn.Module):
    """No activation that fastops has."""

    def forward(self, x: Tensor) -> Tensor:
        return x.atan()


class Halves(nn.Module):
    """Gated units of the halves of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.down, self.act, self.odd = nn.Linear(6, 8), nn.Linear(4, 6), nn.GELU(), Odd()

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both(x).chunk(2, -1)
        return self.down(self.odd(a) * b)


class HalvesOfNumber(Halves):
    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both(x).split([4, 4], -1)
        return self.odd(self.act(a) * b)


class HalvesByFunction(Halves):
    def forward(self, x: Tensor) -> Tensor:
        h = self.both(x)
        return self.down(h[..., :4] * F.normalize(h[..., 4:]))


ATTENTION = "its products are those of attention, which is no feed-forward block"

NONE = "is not an activation that fastops has"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Attends, ATTENTION),
        (ScaledDotProduct, ATTENTION),
        (lambda: nn.MultiheadAttention(6, 2), ATTENTION),
        (lambda: nn.MultiheadAttention(6, 2, kdim=3, vdim=3), ATTENTION),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(), nn.Linear(6, 6)), "no activation between them"),
        (ByName, "its forward has `[getattr(self, name) for name in ('up', 'down')]`"),
        (Unnamed, "its forward is not a plain method"),
        (Chosen, "its forward depends on self.layers, which is no list of modules"),
        (Operator, "its forward has `torch.tanh(x @ self.up) @ self.down`"),
        (Listed, "its forward depends on self.weights, which is no list of modules"),
        (Halves, f"odd, after a linear layer, is a {__name__}.Odd, which {NONE}"),
        (HalvesOfNumber, "the product with act is not between two linear layers that can be fused"),
        (
            HalvesByFunction,
            "F.normalize, after a linear layer, is a function, which is not an activation that fastops has",
        ),
        (Selects, None),
        (Embeds, None),
        (Adapted, None),
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


class Headed(nn.Module):
    """A layer behind a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def test_layer_behind_what_is_replaced() -> None:
    """Nothing is wrong with what a Sequential within computes by itself."""
    report = fastops.nn.convert(Headed())
    assert [row.name for row in report.replaced] == ["body"]
    assert not report.left
