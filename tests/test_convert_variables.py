"""fastops.nn.convert of methods whose variables are read, deleted or changed between layers, or seen by others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from convertible import Layers, assert_same, converted
from modules import batch


class UsedTwice(Layers):
    """What is used once more remains a variable."""

    def forward(self, x):
        hidden = self.act(self.fc1(x))
        out = self.fc2(hidden)
        return out + hidden[..., :6]


class NextRound(Layers):
    """What the next round of a loop reads remains a variable."""

    def forward(self, x):
        kept = self.act(x)
        for _ in range(2):
            x = x + kept
            kept = self.act(self.fc1(x))
            out = self.fc2(kept)
            kept = kept[..., :6]
        return out


class Closed(Layers):
    """A variable that a function within takes from around it."""

    def forward(self, x):
        hidden = self.fc1(x)
        peek = lambda: hidden.mean()  # noqa: E731
        hidden = self.act(hidden)
        hidden = self.fc2(hidden)
        return hidden * peek() + super().__getattr__("norm")(x)


class Deleted(Layers):
    """A variable that is deleted remains one."""

    def forward(self, x):
        hidden = self.act(self.fc1(x))
        out = self.fc2(hidden)
        del hidden
        return x + out


class Added(Layers):
    """A variable that is added to is read."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)  # whose gradients need it as it was

    def forward(self, x):
        hidden = self.act(self.fc1(x))
        out = self.fc2(hidden)
        hidden += 1
        return x + out


class Global(Layers):
    """A variable for others."""

    def forward(self, x):
        global last
        last = self.act(self.fc1(x))
        out = self.fc2(last)
        return x + out


class Evaluated(Layers):
    """A variable that is read by its name."""

    def forward(self, x):
        hidden = self.act(self.fc1(x))
        out = self.fc2(hidden)
        return out + eval("hidden.mean()") + len(locals())


@pytest.mark.parametrize("form", [UsedTwice, NextRound, Closed, Deleted, Added, Global, Evaluated])
def test_variables(form: Any, device: Any) -> None:
    """Layers whose results are needed in between are not computed together."""
    module, reference, report = converted(form, device)
    assert type(module) is form
    assert [row.name for row in report.left] == [""]
    assert_same(module, reference, device)


class Local(Layers):
    """The names of all variables."""

    def forward(self, x):
        return x + self.fc2(self.act(self.fc1(x))) * len(locals())


def test_names_of_variables(device: Any) -> None:
    """A method that may look at its variables has no more than its own."""
    module, reference, _ = converted(Local, device)
    assert_same(module, reference, device)


class Unbound(Layers):
    """A variable that is read before it has a value."""

    def forward(self, x):
        hidden = self.act(self.fc1(hidden(x)))  # noqa: F821
        return self.fc2(hidden)


class UnboundBefore(Layers):
    """The same in another statement."""

    def forward(self, x):
        x = hidden(x)  # noqa: F821
        hidden = self.act(self.fc1(x))
        return self.fc2(hidden)


@pytest.mark.parametrize("is_global", [False, True])
@pytest.mark.parametrize("form", [Unbound, UnboundBefore])
def test_unbound_variable(form: Any, is_global: bool, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not become the global one of its name."""
    if is_global:
        monkeypatch.setitem(globals(), "hidden", torch.cos)
    module, _, _ = converted(form, device)
    with pytest.raises(UnboundLocalError):
        module(batch(device))
