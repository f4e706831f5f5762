"""fastops.fuse: one kernel for a function and for each of its derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor import metrics

import fastops
from compiled import rand


def classic(x: Tensor) -> Tensor:
    """Not quite 1."""
    return torch.sin(x) ** 2 + torch.cos(x) ** 2 * x


def several(x: Tensor, y: Tensor, scale: float = 2.0) -> tuple[Tensor, dict[str, Tensor]]:
    """Two inputs that broadcast, a number, three results, one of them without gradient."""
    return scale * x * torch.exp(-y), {"tanh": torch.tanh(x - y), "positive": x > y}


def derivatives(function: Callable[..., Any], order: int, x: Tensor, *others: Any) -> list[Tensor]:
    """The value and the derivatives."""
    x = x.clone().requires_grad_()
    values = [function(x, *others)]
    for _ in range(order):
        values += torch.autograd.grad((values[-1] * torch.linspace(1, 2, x.shape[-1])).sum(), x, create_graph=True)
    return values


def test_any_order_one_kernel_each() -> None:
    """Value, gradient and second derivative; three kernels are made, and no more for other shapes."""
    torch._dynamo.reset()
    fused = fastops.fuse(classic)
    x = rand(3, 5)
    metrics.reset()
    for order in range(3):
        torch.testing.assert_close(derivatives(fused, order, x), derivatives(classic, order, x))
        assert metrics.generated_kernel_count == order + 1
    for shape in ((7,), (2, 3, 4), (5, 3)):
        x = rand(*shape)
        torch.testing.assert_close(derivatives(fused, 2, x), derivatives(classic, 2, x))
    x = rand(6, 4).t()
    torch.testing.assert_close(fused(x), classic(x))
    assert metrics.generated_kernel_count == 3


def test_many_elements() -> None:
    """By several threads."""
    x = rand(300, 200, dtype=torch.float32)
    torch.testing.assert_close(fastops.fuse(classic)(x), classic(x))


def test_several_tensors_and_results() -> None:
    """Broadcasting, nested results, numbers by position and by name."""
    fused = fastops.fuse(several)
    for scale in (2.0, 3.0):
        results = []
        for function in (fused, several):
            x, y = rand(4, 3).requires_grad_(), rand(3, seed=1).requires_grad_()
            first, rest = function(x, y, scale=scale)
            gradients = torch.autograd.grad((first * rest["tanh"]).sum(), [x, y])
            results.append([first, rest["tanh"], rest["positive"], *gradients])
        torch.testing.assert_close(*results)
        assert not results[0][2].requires_grad


def test_gradient_of_one_of_two() -> None:
    """The other needs none."""
    x, y = rand(4, 3).requires_grad_(), rand(4, 3, seed=1)
    (gradient,) = torch.autograd.grad(fastops.fuse(several)(x, y)[0].sum(), x)
    torch.testing.assert_close(gradient, 2 * torch.exp(-y))


def test_numbers_of_the_surroundings_count() -> None:
    """A number from around the function may change."""
    scale = 2.0
    fused = fastops.fuse(lambda x: torch.sin(x) * scale)
    for scale in (2.0, 5.0, 7.0):
        torch.testing.assert_close(fused(rand(3)), torch.sin(rand(3)) * scale)


def test_activations_are_ours() -> None:
    """A formula of an activation, a bias before it, a gate after it."""
    x = rand(4, 3).requires_grad_()
    fused = fastops.fuse(lambda x: x * torch.sigmoid(x))
    graph = torch.compiler.disable(fused)
    torch.testing.assert_close(derivatives(graph, 2, x), derivatives(F.silu, 2, x))
    names = []
    node: Any = fused(x).grad_fn
    while node is not None:
        names.append(node.name())
        node = node.next_functions[0][0] if node.next_functions else None
    assert any("fastops" in name.lower() or "Activation" in name for name in names), names


def test_in_place_on_its_own_tensors() -> None:
    """What the function made itself, it may write to."""
    fused = fastops.fuse(lambda x: torch.sin(x).add_(1).mul_(x))
    x = rand(4, 3)
    torch.testing.assert_close(derivatives(fused, 1, x), derivatives(lambda x: (torch.sin(x) + 1) * x, 1, x))


@pytest.mark.parametrize("shape", [(0,), (1,), (), (2, 0)])
def test_small(shape: tuple[int, ...]) -> None:
    """Empty tensors and single elements."""
    torch.testing.assert_close(fastops.fuse(classic)(rand(*shape)), classic(rand(*shape)))


def test_transforms_and_compile() -> None:
    """Where others trace, it is the function itself."""
    fused = fastops.fuse(classic)
    x = rand(3)
    torch.testing.assert_close(torch.func.jacrev(fused)(x), torch.func.jacrev(classic)(x))
    torch.testing.assert_close(torch.func.jvp(fused, (x,), (x,)), torch.func.jvp(classic, (x,), (x,)))
    torch.testing.assert_close(torch.compile(fused, backend="eager", fullgraph=True)(x), classic(x))
    with torch.inference_mode():
        torch.testing.assert_close(fused(x), classic(x))
    assert fused.__name__ == "classic"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.sum(), "aten.sum"),
        (lambda x: x.cumsum(0), "aten.cumsum"),
        (lambda x: x.softmax(-1), "aten._softmax"),
        (lambda x: x[:2], "aten.slice"),
        (lambda x: x.flip(0), "aten.flip"),
        (lambda x: torch.rand_like(x) * x, "aten.rand_like"),
        (lambda x: F.dropout(x, 0.5), "fastops.fuse: .*elementwise"),
        (lambda x: x if x.sum() > 0 else -x, "cannot be captured: Data-dependent"),
        (lambda x: x.add_(1), "writes to its arguments"),
        (lambda x: x.relu_() + 1, "writes to its arguments"),
        (lambda x: x / x.shape[0], "depends on the sizes"),
        (lambda x: 3, "but one is 3"),
        (lambda x: (x, 1.5), "but one is 1.5"),
    ],
)
def test_errors(function: Callable[..., Any], message: str) -> None:
    """What is not elementwise."""
    with pytest.raises(ValueError, match=message):
        fastops.fuse(function)(rand(4, 3))


def test_no_function() -> None:
    """The argument must be callable."""
    with pytest.raises(TypeError, match="must be a function, but is a int"):
        fastops.fuse(3)  # type: ignore[arg-type]
