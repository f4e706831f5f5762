"""fastops.fuse without Dynamo: the second call of a kind is a shortcut, and no change goes unnoticed."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fastops
from compiled import rand
from fastops import _torch_internal
from fastops.compile.pointwise import Compiled

scale = 2.0


def scaled(x: Tensor) -> Tensor:
    """With a number of the module."""
    return torch.sin(x) * scale


def helped(x: Tensor) -> Tensor:
    """With another function, which has the number."""
    return scaled(x) + math.pi


def with_numbers(x: Tensor, y: Tensor, a: float = 1.0, *, b: float = 2.0) -> dict[str, Tensor]:
    """Several tensors, numbers and results."""
    return {"first": x * a - torch.exp(y), "second": torch.atan2(y, x) * b}


class Slope:
    """What can change without anybody's notice."""

    value = 1.0


def changeable(x: Tensor) -> Tensor:
    """With an attribute of an object."""
    return torch.cos(x) * Slope.value


@pytest.fixture(autouse=True)
def graphs_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Inductor, which takes seconds for a kernel: test_fuse.py has it."""
    monkeypatch.setattr(_torch_internal, "compile_fx_inner", lambda graph, inputs: lambda tensors: graph(*tensors))


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has one element for each call that went to Dynamo."""
    seen: list[int] = []
    through_dynamo = Compiled._call

    def call(self: Compiled, *arguments: Any, **keywords: Any) -> Any:
        seen.append(1)
        return through_dynamo(self, *arguments, **keywords)

    monkeypatch.setattr(Compiled, "_call", call)
    return seen


def agree(fused: Callable[..., Any], function: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
    """Both give the same."""
    torch.testing.assert_close(fused(*arguments, **keywords), function(*arguments, **keywords))


def test_one_capture_for_each_kind_of_call(captures: list[int]) -> None:
    """By dtype, gradient and numbers; sizes and strides of more dimensions are one kind."""
    fused = fastops.fuse(with_numbers)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((rand(4, 3), rand(4, 3, seed=1)), {}),
        ((rand(4, 3), rand(4, 3, seed=1)), {"b": 3.0}),
        ((rand(4, 3), rand(4, 3, seed=1), 0.0), {}),
        ((rand(4, 3), rand(4, 3, seed=1), -0.0), {}),
        ((rand(4, 3), rand(4, 3, seed=1), 2), {}),
        ((rand(4, 3).requires_grad_(), rand(4, 3, seed=1)), {}),
        ((rand(4, 3, dtype=torch.float32), rand(4, 3, seed=1, dtype=torch.float32)), {}),
    ]
    for count, (arguments, keywords) in enumerate(calls, start=1):
        for _ in range(3):
            agree(fused, with_numbers, *arguments, **keywords)
        assert len(captures) == count
    agree(fused, with_numbers, rand(7, 5), rand(5, seed=1))
    agree(fused, with_numbers, rand(3, 7).t(), rand(7, 3, seed=1))
    assert len(captures) == len(calls)


def test_derivatives(captures: list[int]) -> None:
    """A shortcut has them, too."""
    fused = fastops.fuse(scaled)
    for seed in range(3):
        x = rand(5, seed=seed).requires_grad_()
        (gradient,) = torch.autograd.grad(fused(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), x)
        torch.testing.assert_close([gradient, second], [torch.cos(x) * scale, -torch.sin(x) * scale])
    with torch.no_grad():
        assert not fused(x).requires_grad
    assert len(captures) == 2


@pytest.mark.parametrize("function", [scaled, helped])
def test_numbers_of_the_module(
    function: Callable[..., Tensor], captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new value is seen, in a function that is called, too."""
    fused = fastops.fuse(function)
    for value in (2.0, 3.0, 3, -0.0, 2.5):
        monkeypatch.setitem(globals(), "scale", value)
        for _ in range(3):
            agree(fused, function, rand(4, 3))
    assert len(captures) == 5


def test_another_function(captures: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is called may be replaced."""
    fused = fastops.fuse(helped)
    agree(fused, helped, rand(3))
    monkeypatch.setitem(globals(), "scaled", torch.cos)
    agree(fused, helped, rand(3))
    monkeypatch.setitem(globals(), "scaled", lambda x: x * Slope.value)
    for _ in range(2):
        agree(fused, helped, rand(3))
    assert len(captures) == 4


def test_closures(captures: list[int]) -> None:
    """A variable of a function around it."""
    shift = 1.0
    fused = fastops.fuse(lambda x: torch.tanh(x) + shift)
    for _ in range(2):
        torch.testing.assert_close(fused(rand(3)), torch.tanh(rand(3)) + 1)
    shift = 5.0
    torch.testing.assert_close(fused(rand(3)), torch.tanh(rand(3)) + 5)
    assert len(captures) == 2


@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="there Dynamo itself does not look at classes again")
def test_what_can_change_unseen(captures: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes of objects: Dynamo looks each time."""
    fused = fastops.fuse(changeable)
    for value in (1.0, 2.0, 3.0):
        monkeypatch.setattr(Slope, "value", value)
        for _ in range(2):
            agree(fused, changeable, rand(3))
    assert len(captures) == 6


def test_what_changes_in_place() -> None:
    """The defaults of a function, the type of a tensor, and what a helper in torch's name finds around it."""
    torch._dynamo.reset()

    def with_default(x: Tensor, scale: float = 2.0) -> Tensor:
        return torch.sin(x) * scale

    x = torch.linspace(-1, 1, 6)
    fused = fastops.fuse(with_default)
    for scale in (2.0, 2.0, 3.0):
        with_default.__defaults__ = (scale,)
        torch.testing.assert_close(fused(x), torch.sin(x) * scale)

    fused = fastops.fuse(lambda x: torch.sin(x) * (2.0 if isinstance(x, torch.nn.Parameter) else 1.0))
    parameter = torch.nn.Parameter(x)
    for given, scale in ((parameter, 2.0), (parameter, 2.0), (parameter * 1, 1.0)):
        torch.testing.assert_close(fused(given), torch.sin(given) * scale)

    space: dict[str, Any] = {"torch": torch, "functools": functools, "__name__": None, "scale": 2.0}
    exec(
        "@functools.wraps(torch.nn.functional.silu)\n"
        "def helper(x): return torch.sin(x) * scale\n"
        "def function(x): return helper(x) + 1\n",
        space,
    )
    fused = fastops.fuse(space["function"])
    for space["scale"] in (2.0, 2.0, 3.0):
        torch.testing.assert_close(fused(x), torch.sin(x) * space["scale"] + 1)


def test_effects() -> None:
    """What the function does besides is done at each call."""
    calls = 0

    def counting(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return torch.sin(x) + torch.cos(x)

    fused = fastops.fuse(counting)
    for _ in range(3):
        fused(rand(3))
    assert calls == 3


def test_one_tensor_twice(captures: list[int]) -> None:
    """Is a kind of call of its own: Dynamo makes one argument of it."""
    function = lambda x, y: torch.sin(x) - torch.cos(y)  # noqa: E731
    fused, x, y = fastops.fuse(function), rand(5), rand(5, seed=1)
    for arguments in ((x, x), (x, y), (y, y), (y, x)):
        torch.testing.assert_close(fused(*arguments), function(*arguments))
    assert len(captures) == 2


def test_branches_on_sizes(captures: list[int]) -> None:
    """A graph that is for some sizes only serves no others."""

    def branching(x: Tensor) -> Tensor:
        return torch.sin(x) * x if x.numel() > 10 else torch.cos(x) * x

    fused = fastops.fuse(branching)
    for size in (20, 5, 30, 6):
        agree(fused, branching, rand(size))
    assert len(captures) == 4


def test_default_dtype() -> None:
    """It is a kind of call of its own."""

    def promoted(x: Tensor) -> Tensor:
        return torch.sin(x * 0.5)

    fused = fastops.fuse(promoted)
    whole = torch.arange(6)
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            agree(fused, promoted, whole)
    finally:
        torch.set_default_dtype(torch.float32)
