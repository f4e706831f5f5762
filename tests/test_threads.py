"""Threads that compute at once. `make sanitize` runs these tests under ThreadSanitizer, too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastops
from strategies import DEVICE

THREADS = 3

pytestmark = [
    pytest.mark.skipif(DEVICE != "cpu", reason="the CPU's threads"),
    pytest.mark.usefixtures("restore_threads"),
]

# Threads of each op; inputs of one row, of some, and of so many that memory of results is kept.
each_number = pytest.mark.parametrize("intra_op", [1, 2])
ROWS = [1, 7, 300, 3000]

MODULES: dict[str, Callable[..., nn.Module]] = {
    "mlp": lambda **options: fastops.nn.MLP(24, [40, 33], 24, **options),
    "checkpointed mlp": lambda **options: fastops.nn.MLP(24, [40, 33], 24, checkpoint=True, **options),
    "gated_mlp": lambda **options: fastops.nn.GatedMLP(24, 40, 24, bias=True, **options),
    "linear_act": lambda **options: fastops.nn.LinearAct(24, 24, "relu", **options),
    "activations": lambda **options: nn.Sequential(fastops.nn.GELU(), fastops.nn.Softshrink(), fastops.nn.Tanh()),
    "bias_act": lambda **options: BiasAct(**options),
}
each_module = pytest.mark.parametrize("name", MODULES)


class BiasAct(nn.Module):
    """bias_act and act_mul, whose bias gradient is a sum over rows."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-1, 1, 24, **options))

    def forward(self, x: Tensor) -> Tensor:
        """Of rows of 24 features."""
        y = fastops.functional.bias_act(x, self.bias, "silu")
        return fastops.functional.act_mul(y, x, "gelu")


def at_once(work: Callable[[int], Any]) -> list[Any]:
    """What ``work(number)`` returns to each thread; the memory that is kept is given back all the while."""
    results: list[Any] = [None] * THREADS
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        start.wait()
        results[number] = work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        fastops.memory.empty_cache()
        time.sleep(0.001)
    return results


def inputs(dtype: torch.dtype) -> list[Tensor]:
    """One for each number of rows."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, 24, generator=generator).to(dtype) for rows in ROWS]


def gradients(module: nn.Module, x: Tensor) -> Sequence[Tensor]:
    """The output and the gradients of input and parameters."""
    x = x.detach().requires_grad_()
    y = module(x)
    return [y.detach(), *torch.autograd.grad(y.sum(), [x, *module.parameters()])]


def assert_equal(actual: Any, expected: Any) -> None:
    """The same bits: every thread computes as one alone does."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@each_number
@each_module
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inference(name: str, dtype: torch.dtype, intra_op: int, device: Any) -> None:
    """One module serves several threads."""
    torch.set_num_threads(intra_op)
    module = MODULES[name](device=device, dtype=dtype).eval()
    xs = inputs(dtype)
    with torch.no_grad():
        expected = [module(x) for x in xs]

    def work(number: int) -> list[Tensor]:
        torch.set_num_threads(intra_op)
        with torch.inference_mode():
            return [module(x) for _ in range(3) for x in xs[number:] + xs[:number]]

    for number, results in enumerate(at_once(work)):
        assert_equal(results, (expected[number:] + expected[:number]) * 3)


@each_number
@each_module
def test_gradients_of_shared_parameters(name: str, intra_op: int, device: Any) -> None:
    """Threads that differentiate by the same parameters, each a graph of its own."""
    torch.set_num_threads(intra_op)
    module = MODULES[name](device=device)
    xs = inputs(torch.float32)
    expected = [gradients(module, x) for x in xs]

    def work(number: int) -> list[Any]:
        torch.set_num_threads(intra_op)
        return [gradients(module, x) for x in xs[number:] + xs[:number]]

    for number, results in enumerate(at_once(work)):
        assert_equal(results, expected[number:] + expected[:number])


@each_number
@pytest.mark.parametrize("name", ["mlp", "gated_mlp"])
def test_training(name: str, intra_op: int, device: Any) -> None:
    """Each thread trains a module of its own; each comes to what one thread comes to."""
    torch.set_num_threads(intra_op)
    (_, _, x, _) = inputs(torch.float32)

    def train(number: int) -> list[Tensor]:
        torch.set_num_threads(intra_op)
        torch.set_grad_enabled(True)
        module = MODULES[name](device=device)
        with torch.no_grad():
            for i, parameter in enumerate(module.parameters()):
                parameter.copy_(torch.cos(torch.arange(parameter.numel()) + i + number).view_as(parameter) / 5)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            (module(x) - x).square().mean().backward()
            optimizer.step()
        return [parameter.detach() for parameter in module.parameters()]

    expected = [train(number) for number in range(THREADS)]
    assert_equal(at_once(train), expected)
