"""fastops.nn.convert of gated units of the halves of one layer, however these are taken."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastops
from convertible import Block, assert_same, converted, ops_of
from modules import batch


class Halves(Block):
    """With the number of features of a half."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = 8


class Dropped(Halves):
    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both(x).chunk(2, dim=-1)
        return self.down(self.drop(self.act(a) * b))


class Chunk(Halves):
    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.chunk(self.both(x), 2, dim=-1)
        hidden = F.gelu(a) * b
        hidden = self.drop(hidden)
        return self.down(hidden)


class Split(Halves):
    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both(x).split(self.hidden, dim=-1)
        return self.down(self.act(b) * a)


class SplitBySizes(Halves):
    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.split(self.both(x), [self.hidden, self.hidden], -1)
        return self.down(a * self.act(b))


class SplitByHalf(Halves):
    def forward(self, x: Tensor) -> Tensor:
        h = self.both(x)
        a, b = h.split(h.size(-1) // 2, -1)
        return self.down(self.act(a) * b)


class Sliced(Halves):
    def forward(self, x: Tensor) -> Tensor:
        h = self.both(x)
        return self.down(self.drop(self.act(h[..., : self.hidden]) * h[..., self.hidden :]))


class SlicedByHalf(Halves):
    def forward(self, x: Tensor) -> Tensor:
        h = self.both(x)
        d = h.shape[-1] // 2
        return self.down(F.silu(h[..., d:]) * h[..., :d])


class FunctionWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        a, b = torch.chunk(self.both(x), 2, -1)
        hidden = self.down(F.gelu(a) * b)
        return x + scale * hidden


class SplitWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        for _ in range(2):
            h = self.both(x)
            a, b = h.split(self.hidden, dim=-1)
            hidden = self.act(b) * a
            hidden = self.down(hidden)
            x = x + scale * hidden
        return x


class SplitBySizesWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        h = self.both(x)
        a, b = torch.split(h, (self.hidden, self.hidden), dim=-1)
        hidden = self.down(self.drop(a * self.act(b)))
        return x + scale * hidden


class SplitByHalfWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        h = self.both(x)
        a, b = h.split(h.size(-1) // 2, -1)
        hidden = self.down(self.act(a) * b)
        return x + scale * hidden


class PairWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        halves = self.both(x).split([self.hidden, self.hidden], -1)
        hidden = self.down(self.act(halves[0]) * halves[1])
        return x + scale * hidden


class SlicedWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        h = self.both(x)
        hidden = self.down(self.drop(self.act(h[..., : 4 * 2]) * h[..., 4 * 2 :]))
        return x + scale * hidden


class SlicedByHalfWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        y = F.dropout(x, 0.0)
        h = self.both(y)
        d = h.shape[-1] // 2
        a = h[..., :d]
        b = h[..., d:]
        hidden = F.silu(b) * a
        hidden = self.down(hidden)
        return x + scale * hidden


WITHIN = [
    *(FunctionWithin, SplitWithin, SplitBySizesWithin),
    *(SplitByHalfWithin, PairWithin, SlicedWithin, SlicedByHalfWithin),
]
FORMS = [Dropped, Chunk, Split, SplitBySizes, SplitByHalf, Sliced, SlicedByHalf, *WITHIN]


def freeze_others(block: nn.Module) -> nn.Module:
    """Those parameters are left that the forms above use."""
    for name, parameter in block.named_parameters():
        parameter.requires_grad_(name.startswith(("both", "down")))
    return block


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("form", FORMS)
def test_form(form: Any, training: bool, device: Any) -> None:
    """The block is one op, unless a dropout within it is on; so is a copy by pickle."""
    model, reference, report = converted(lambda: freeze_others(form()).train(training), device)
    assert [row.original for row in report.replaced] == [form]
    assert report.replaced[0].ops.startswith("gated_mlp(both, ")
    assert_same(model, reference, device)
    assert set(ops_of(model.eval(), batch(device))) == {"gated_mlp"}
    assert set(ops_of(pickle.loads(pickle.dumps(model)), batch(device))) == {"gated_mlp"}


@pytest.mark.parametrize("form", [Chunk, Split, SplitBySizes, Sliced])
def test_recorded(form: Any, device: Any) -> None:
    """torch.fx records what it computes."""
    model, reference, _ = converted(lambda: freeze_others(form()).eval(), device)
    x = batch(device)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), reference(x))


@pytest.mark.parametrize("features", [8, 9, 12, 15, 17, 18])
@pytest.mark.parametrize("form", FORMS)
def test_other_sizes(form: Any, features: int, device: Any) -> None:
    """A layer of which these are no halves comes to what PyTorch makes of it, its errors too."""
    model, reference, _ = converted(lambda: freeze_others(form()).eval(), device)
    assert set(ops_of(model, batch(device))) == {"gated_mlp"}
    for each in (model, reference):
        torch.manual_seed(3)
        each.both = nn.Linear(6, features).to(device, torch.float64)
        each.down = nn.Linear(features // 2, 6).to(device, torch.float64)
    try:
        expected = reference(batch(device))
    except Exception as error:
        with pytest.raises(type(error)) as found:
            model(batch(device))
        assert sorted(str(found.value)) == sorted(str(error))  # which factor is the first is not kept
        return
    torch.testing.assert_close(model(batch(device)), expected)


def test_broadcast_halves(device: Any) -> None:
    """One feature and two: the halves that a form takes, which PyTorch multiplies, are not those of chunk."""
    model, reference, _ = converted(lambda: freeze_others(SlicedByHalf()).eval(), device)
    for each in (model, reference):
        torch.manual_seed(3)
        each.both = nn.Linear(6, 3).to(device, torch.float64)
        each.down = nn.Linear(2, 6).to(device, torch.float64)
    torch.testing.assert_close(model(batch(device)), reference(batch(device)))


@pytest.mark.parametrize("form", [Sliced, SplitWithin])
def test_size_that_changes(form: Any, device: Any) -> None:
    """The number of features of a half is the module's in each call."""
    model, reference, _ = converted(lambda: freeze_others(form()).eval(), device)
    for each in (model, reference):
        each.hidden = 15
        each.both = nn.Linear(6, 30 if form is SplitWithin else 16).to(device, torch.float64).requires_grad_(False)
        each.down = nn.Linear(15, 6).to(device, torch.float64).requires_grad_(False)
        for layer in (each.both, each.down):
            layer.weight.copy_(torch.arange(layer.weight.numel()).view_as(layer.weight) % 7 - 3), layer.bias.zero_()
    torch.testing.assert_close(model(batch(device)), reference(batch(device)))
    assert set(ops_of(model, batch(device))) == ({"gated_mlp"} if form is SplitWithin else set())
    for each in (model, reference):
        each.hidden = 14 if form is SplitWithin else 9
    results = []
    for each in (model, reference):
        with pytest.raises((ValueError, RuntimeError)) as found:  # three parts, and a product of 9 and 7 features
            each(batch(device))
        results.append(str(found.value))
    assert sorted(results[0]) == sorted(results[1])


@pytest.mark.parametrize("size", [[8, 8], torch.tensor(8), np.int64(8), 8.0, True])
def test_size_of_another_kind(size: Any, device: Any) -> None:
    """What is no number of features is for PyTorch: it may take it, or not."""
    model, reference, _ = converted(lambda: freeze_others(SplitWithin()).eval(), device)
    assert set(ops_of(model, batch(device))) == {"gated_mlp"}
    for each in (model, reference):
        each.hidden = size
    try:
        expected = reference(batch(device))
    except Exception as error:
        with pytest.raises(type(error)):
            model(batch(device))
        return
    torch.testing.assert_close(model(batch(device)), expected)
    assert ops_of(model, batch(device)) == []


@pytest.mark.parametrize(
    ("form", "name"),
    [(Chunk, "chunk"), (SplitBySizes, "split"), (FunctionWithin, "chunk"), (SplitBySizesWithin, "split")],
)
def test_replaced_function(form: Any, name: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody put in the place of torch.chunk or torch.split is called, as long as it is there."""
    model, reference, _ = converted(lambda: freeze_others(form()).eval(), device)
    assert ops_of(model, batch(device)) == ["gated_mlp"]
    original = getattr(torch, name)
    with monkeypatch.context() as patch:
        patch.setattr(torch, name, lambda *args, **keywords: [2 * half for half in original(*args, **keywords)])
        torch.testing.assert_close(model(batch(device)), reference(batch(device)))
        assert ops_of(model, batch(device)) == []
    assert ops_of(model, batch(device)) == ["gated_mlp"]


class Overlapping(Halves):
    def forward(self, x: Tensor) -> Tensor:
        h = self.both(x)
        return self.down(self.act(h[..., : self.hidden]) * h[..., 7:15])


class TwoOfMore(Halves):
    def forward(self, x: Tensor) -> Tensor:
        parts = self.both(x).split(self.hidden, -1)
        return self.down(self.act(parts[0]) * parts[1])


class Different(Halves):
    def forward(self, x: Tensor) -> Tensor:
        h = self.both(x)
        return self.down(self.act(h[..., :8]) * h.split(8, -1)[1])


class OtherDimension(Halves):
    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both(x).split(1, 0)
        return self.down(self.act(a) * b)


class HalfOfAnother(Halves):
    def forward(self, x: Tensor) -> Tensor:
        d = x.shape[-1] // 2
        h = self.both(x)
        return self.down(self.act(h[..., :d]) * h[..., d:])


@pytest.mark.parametrize("form", [Overlapping, TwoOfMore, Different, OtherDimension, HalfOfAnother])
def test_left(form: Any) -> None:
    """What is no pair of halves of the layer's features is left, with the line in the report."""
    report = fastops.nn.convert(form())
    assert not report.replaced
    assert [row.reason.startswith("its forward has `") for row in report.left] == [True]


class TwoOfMoreWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        parts = self.both(x).split(self.hidden, -1)
        hidden = self.down(self.act(parts[0]) * parts[1])
        return x + scale * hidden


class OverlappingWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        h = self.both(x)
        hidden = self.down(self.act(h[..., : self.hidden]) * h[..., 7:15])
        return x + scale * hidden


class DifferentWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        h = self.both(x)
        hidden = self.down(self.act(h[..., :8]) * h[..., -8:])
        return x + scale * hidden


class OtherDimensionWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        h = self.both(torch.cat([x, x])).view(2, -1, 8)
        a, b = h.split(1, 0)
        hidden = self.down(self.act(a) * b)
        return x + scale * hidden.sum()


class OneHalfTwiceWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        h = self.both(x)
        hidden = self.down(self.act(h[..., :8]) * h[..., :8])
        return x + scale * hidden


class HalfOfAnotherWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        y = torch.cat([x, x, x[..., :4]], -1)
        h = self.both(x)
        d = y.shape[-1] // 2
        hidden = self.down(self.act(h[..., :d]) * h[..., d:])
        return x + scale * hidden


class CalledTwiceWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        hidden = self.down(self.act(self.both(x)[..., :8]) * self.both(x)[..., 8:])
        return x + scale * hidden


class ReadAgainWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        h = self.both(x)
        hidden = self.down(self.act(h[..., :8]) * h[..., 8:])
        return x + scale * hidden + h.sum()


class SizeReadAgainWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        h = self.both(x)
        d = h.shape[-1] // 2
        hidden = F.leaky_relu(self.down(self.act(h[..., :d]) * h[..., d:]), d)
        return x + scale * hidden


class LastRoundWithin(Halves):
    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        a = x
        for _ in range(2):
            h = self.both(a[..., :6])
            a, b = h.chunk(2, -1)
            hidden = self.down(self.act(a) * b)
            x = x + scale * hidden
        return x


class OverwrittenWithin(Halves):
    def forward(self, h: Tensor, scale: float = 0.5) -> Tensor:
        for _ in range(2):
            h = torch.cat([h, h, h[..., :4]], -1)
            a = h[..., :8]
            h = h[..., 8:]
            hidden = self.up(self.down(self.act(a) * h))
            h = self.down(hidden)
        return h


@pytest.mark.parametrize(
    "form",
    [
        *(TwoOfMoreWithin, OverlappingWithin, DifferentWithin, OtherDimensionWithin, OneHalfTwiceWithin),
        *(HalfOfAnotherWithin, CalledTwiceWithin, ReadAgainWithin, SizeReadAgainWithin, LastRoundWithin),
    ],
)
def test_left_within(form: Any, device: Any) -> None:
    """So it is within a method that does more: what only looks like the two halves of a layer, or is read elsewhere."""
    model, reference, report = converted(lambda: form().requires_grad_(False).eval(), device)
    assert not report.replaced
    assert [row.name for row in report.left] == [""]
    assert_same(model, reference, device)


def test_overwritten_within(device: Any) -> None:
    """Nothing but what is read nowhere else is left out."""
    model, reference, _ = converted(lambda: OverwrittenWithin().requires_grad_(False).eval(), device)
    assert_same(model, reference, device)


def test_a_chunk_is_not_written_to() -> None:
    """PyTorch refuses to where gradients are wanted, converted or not; of slices it does not."""
    chunked, sliced = Dropped().eval(), Sliced().eval()
    chunked.act = sliced.act = nn.ReLU(inplace=True)
    fastops.nn.convert(chunked)
    x = torch.randn(3, chunked.both.in_features)
    with pytest.raises(RuntimeError, match="is a view"):
        chunked(x)
    expected = sliced(x)
    fastops.nn.convert(sliced)
    torch.testing.assert_close(sliced(x), expected)
