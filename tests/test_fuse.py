"""fastops.fuse: one kernel for a function and for each of its derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor import metrics

import fastops
from compiled import rand
from processes import run


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


def test_reversed_subtraction() -> None:
    """Which PyTorch does not count as elementwise."""
    function = lambda x, y: torch.rsub(x, y, alpha=3) * x  # noqa: E731
    results = []
    for f in (fastops.fuse(function), function):
        x, y = rand(5).requires_grad_(), rand(5, seed=1).requires_grad_()
        value = f(x, y)
        results.append([value, *torch.autograd.grad(value.sum(), [x, y])])
    torch.testing.assert_close(*results)


def test_one_result_twice_and_detached() -> None:
    """Each result has the gradient that it has in the function itself."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        t = torch.sin(x) * y
        return t, t.detach(), t, t.detach() * 2, y * 3

    fused = fastops.fuse(function)
    for needed in ((True, False), (False, True), (True, True)):
        results = []
        for f in (fused, function):
            tensors = [rand(5, seed=i).requires_grad_(needs) for i, needs in enumerate(needed)]
            made = f(*tensors)
            leaves = [tensor for tensor in tensors if tensor.requires_grad]
            gradients = torch.autograd.grad((made[0] * made[1]).sum() + made[2].sum(), leaves)
            results.append([*made, *gradients])
            assert [value.requires_grad for value in made] == [True, False, True, False, needed[1]]
        torch.testing.assert_close(*results)


def test_lazy_negation_and_conjugation() -> None:
    """Tensors whose elements are only marked as negated or conjugated."""
    fused, x = fastops.fuse(lambda x: torch.sin(x) * x + 1), rand(6)
    z = torch.complex(x, rand(6, seed=1))
    for tensor in (torch._neg_view(x), z.conj().imag, z.conj()):
        torch.testing.assert_close(fused(tensor), torch.sin(tensor) * tensor + 1)


def test_second_derivatives_through_abs() -> None:
    """PyTorch's of the sign asks for sizes: for each there is a kernel."""
    function = lambda x: x / (1 + x.abs())  # noqa: E731
    fused = fastops.fuse(function)
    for size in (7, 9, 7):
        torch.testing.assert_close(derivatives(fused, 3, rand(size)), derivatives(function, 3, rand(size)))


def test_unused_result() -> None:
    """Adds nothing to a gradient, not even the NaN that it has there."""
    x = torch.zeros(5, requires_grad=True)
    twice, _ = fastops.fuse(lambda x: (x * 2, torch.sqrt(x)))(x)
    (gradient,) = torch.autograd.grad(twice.sum(), x)
    assert torch.equal(gradient, torch.full_like(x, 2))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.sin(x) * x.ndim,
        lambda x: torch.sin(x) if x.shape[0] > 10 else torch.cos(x),
        lambda x: torch.sin(x) if x.numel() > 10 else torch.cos(x),
        lambda x: torch.sin(x) * 2 if x.is_contiguous() else torch.cos(x) * 2,
    ],
)
def test_shapes_that_are_asked_for(function: Callable[[Tensor], Tensor]) -> None:
    """Are those of the tensors, although kernels have flat ones."""
    fused = fastops.fuse(function)
    for x in (rand(12), rand(4, 3), rand(4, 3).t(), rand(2, 3)):
        torch.testing.assert_close(fused(x), function(x))


def size_of(x: Tensor) -> int:
    """Asks for a shape where nobody sees it."""
    return x.shape[0]


def test_shapes_that_helpers_ask_for() -> None:
    """They are right, with one dimension and with more; a kernel for a size alone is refused."""
    function = lambda x: torch.sin(x) if size_of(x) > 10 else torch.cos(x)  # noqa: E731
    fused = fastops.fuse(function)
    for _ in range(2):
        for x in (rand(12), rand(4, 3), rand(11, 2)):
            torch.testing.assert_close(fused(x), function(x))
    x = rand(12)
    with pytest.raises(ValueError, match="depends on the sizes of its tensors"):
        fastops.fuse(lambda x: x / x.shape[0])(x)


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        (torch.float32, torch.tensor(2.0, dtype=torch.float64)),
        (torch.bfloat16, torch.tensor(2.0)),
        (torch.int8, torch.tensor(3)),
    ],
)
def test_dtypes_of_tensors_without_dimensions(dtype: torch.dtype, number: Tensor) -> None:
    """They count less than others, as in PyTorch."""
    x = torch.arange(12).view(4, 3).to(dtype)
    function = lambda x, s: x * s + x  # noqa: E731
    torch.testing.assert_close(fastops.fuse(function)(x, number), function(x, number), rtol=0, atol=0)


@pytest.mark.parametrize("function", [lambda x, s: torch.sigmoid(x.half()) + s, lambda x, s: x.to(torch.double) * s])
def test_casts_with_tensors_without_dimensions(function: Any) -> None:
    """They count less than what is cast, too."""
    x, s = rand(3, 2, dtype=torch.float32), torch.tensor(2.0)
    torch.testing.assert_close(fastops.fuse(function)(x, s), function(x, s), rtol=0, atol=0)


def test_broadcast_after_another_size() -> None:
    """One compilation serves all shapes, broadcast or not."""
    for first in ((7, 7), (7, 1), ((4, 3), 3)):
        torch._dynamo.reset()
        fused = fastops.fuse(lambda x, g: torch.sin(x) * g)
        for sizes in (first, (4, ()), (5, 1), ((5, 3), 3), ((4, 3), ()), (9, ()), (2, 1), (6, 6)):
            x, g = (rand(*(size if isinstance(size, tuple) else (size,))) for size in sizes)
            torch.testing.assert_close(fused(x, g), torch.sin(x) * g)
    fused(rand(30)[::3], rand(40)[::4])


def test_another_kind_with_another_size() -> None:
    """Tensors that have one size are not captured as having two."""
    torch._dynamo.reset()
    fused = fastops.fuse(lambda x, y: torch.sin(x) * y)
    for sizes in (((4, 5), (4, 5)), ((2, 3), (2, 3)), ((4, 1), (1, 5)), ((6,), (6,)), ((3, 4), ()), ((7, 2), (2,))):
        for dtype in (torch.float64, torch.float32):
            for needs in (False, True):
                x, y = (rand(*size, dtype=dtype).requires_grad_(needs) for size in sizes)
                torch.testing.assert_close(fused(x, y), torch.sin(x) * y)


class Asking(torch.nn.Module):
    """A function that is a module, and one that is an object."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x) * x if x.ndim == 2 else torch.cos(x)


class Called:
    def __call__(self, x: Tensor) -> Tensor:
        return torch.sin(x) * x.dim()


def asking(x: Tensor) -> Tensor:
    return x * x.ndimension()


@pytest.mark.parametrize(
    "function",
    [
        Asking(),
        Called(),
        asking,
        functools.partial(asking),
        lambda x: torch.sin(asking(x)),
        lambda x: (lambda y: y * x.dim() + 1)(torch.sin(x)),
        lambda x: x.T + x,
        lambda x: torch.sin(x) * (2.0 if x.is_leaf else 1.0),
    ],
)
def test_shapes_that_are_asked_for_elsewhere(function: Callable[[Tensor], Tensor]) -> None:
    """In a module, an object, a function within or one that is called: of the tensor as it was given."""
    x = rand(3, 3).requires_grad_()
    torch.testing.assert_close(fastops.fuse(function)(x), function(x))


def test_attributes_of_tensors() -> None:
    """What a program has put on a tensor is there."""
    x = rand(2, 3)
    x.scale = 3.0  # type: ignore[attr-defined]
    fused = fastops.fuse(lambda x: torch.sin(x) * getattr(x, "scale", 1.0))
    torch.testing.assert_close(fused(x), torch.sin(x) * 3)
    torch.testing.assert_close(fused(x.clone()), torch.sin(x))


def test_threads() -> None:
    """First calls at once, each with kernels and derivatives of its own: PyTorch's tracing is for one at a time."""
    done = run(
        "-c",
        "import threading, torch, fastops\n"
        "def f(x, a): return x * torch.sigmoid(a * x) + torch.sin(x) * a\n"
        "fused, problems, call = fastops.fuse(f), [], torch.nn.Module.__call__\n"
        "def work(dtype):\n"
        "    try:\n"
        "        x = torch.linspace(-1, 1, 24, dtype=dtype).view(4, 6).requires_grad_()\n"
        "        y, expected = (function(x, torch.ones(6, dtype=dtype)) for function in (fused, f))\n"
        "        torch.testing.assert_close(y, expected)\n"
        "        torch.testing.assert_close(*(torch.autograd.grad(out.sum(), x) for out in (y, expected)))\n"
        "    except BaseException as error:\n"
        "        problems.append(error)\n"
        "dtypes = 2 * [torch.float32, torch.float64]\n"
        "threads = [threading.Thread(target=work, args=(dtype,)) for dtype in dtypes]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "assert not problems, problems\n"
        "assert torch.nn.Module.__call__ is call\n"
        "torch.compile(lambda x: x.sin(), backend='eager')(torch.ones(3))\n",
    )
    assert done.returncode == 0, done.stderr


def test_autocast() -> None:
    """Which of its functions change dtypes is PyTorch's to say, whatever was compiled before."""

    def distance(x: Tensor, y: Tensor) -> Tensor:
        return F.l1_loss(x * y, y, reduction="none") + torch.sin(x)

    x, y = rand(5).bfloat16().requires_grad_(), rand(5).bfloat16()
    fused = fastops.fuse(distance)
    for is_on in (False, True, False):
        with torch.autocast("cpu", enabled=is_on):
            actual, expected = fused(x, y), distance(x, y)
        torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
        assert (actual.dtype is torch.float32) == is_on
        gradients = [torch.autograd.grad(out.sum(), x) for out in (actual, expected)]
        torch.testing.assert_close(*gradients, rtol=0.1, atol=0.1)


def test_more_kinds_of_calls_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is new then is computed by the function itself, with one warning; what is known stays fused."""

    def scaled(x: Tensor, scale: float) -> Tensor:
        return scale * torch.sin(x)

    from fastops.compile import pointwise

    monkeypatch.setattr(pointwise, "_MOST_KINDS", 3)
    torch._dynamo.reset()
    fused, x = fastops.fuse(scaled), rand(7)
    with pytest.warns(UserWarning, match=r"scaled was compiled for 3 kinds of calls") as warnings:
        for scale in range(10):
            torch.testing.assert_close(fused(x, scale + 0.5), scaled(x, scale + 0.5))
    assert len(warnings) == 1
    metrics.reset()
    torch.testing.assert_close(fused(x, 0.5), scaled(x, 0.5))
    assert metrics.generated_kernel_count == 0


def test_many_kinds_of_calls() -> None:
    """More than Dynamo captures of other functions, such as a number that changes with every step."""
    fused, x = fastops.fuse(lambda x, k: torch.sin(x) * k + torch.cos(x)), rand(5)
    for k in range(12):
        torch.testing.assert_close(fused(x, float(k)), torch.sin(x) * k + torch.cos(x))


def test_masks_and_dtypes() -> None:
    """Logic of bools, whose functions are named as what writes is, and casts."""
    function = lambda m, n, x: torch.where((m & n) | ~m, x.double(), x.to(torch.float16) * 2)  # noqa: E731
    m, n, x = rand(6) > 0.5, rand(6, seed=1) > 0.5, rand(6, dtype=torch.float32).requires_grad_()
    fused = fastops.fuse(function)
    torch.testing.assert_close(fused(m, n, x), function(m, n, x))
    gradients = [torch.autograd.grad(f(m, n, x).sum(), x) for f in (fused, function)]
    torch.testing.assert_close(*gradients)


def test_rounding_by_a_large_number() -> None:
    """Is no formula without it."""
    function = lambda x: torch.relu((x + 12582912.0) - 12582912.0)  # noqa: E731
    x = rand(20, dtype=torch.float32) * 8
    assert torch.equal(fastops.fuse(function)(x), function(x))


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
        (lambda x: F.logsigmoid(x) * x, "log_sigmoid_forward.* that fuse knows"),
        (lambda x: x if x.sum() > 0 else -x, "cannot be captured: Data-dependent"),
        (lambda x: x.add_(1), "writes to its arguments"),
        (lambda x: x.relu_() + 1, "writes to its arguments"),
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
