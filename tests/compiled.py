"""What the tests of fastops.compile share: compiling with a note of what was fused, and comparing with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager

from fastops.compile.fusion import Report, fuse_graph


class Noting:
    """A backend that notes what was fused, and runs the fused graph as it is or with AOTAutograd."""

    def __init__(self, aot: bool) -> None:
        self.aot = aot
        self.reports: list[Report] = []

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
        self.reports.append(fuse_graph(graph))
        return aot_eager(graph, inputs) if self.aot else graph.forward

    @property
    def ops(self) -> list[str]:
        """The fused ops of all graphs."""
        return [fused.op for report in self.reports for fused in report.fused]

    @property
    def reasons(self) -> list[str]:
        """Why the rest was left."""
        return [left.reason for report in self.reports for left in report.left]


def compiled(function: Callable[..., Any], aot: bool = False, **options: Any) -> tuple[Callable[..., Any], Noting]:
    """The function compiled with the pass, and the backend's notes."""
    torch._dynamo.reset()
    noting = Noting(aot)
    return torch.compile(function, backend=noting, **options), noting


def assert_same(
    function: Callable[..., Any], inputs: Sequence[Any], tolerance: float = 1e-10, **options: Any
) -> Noting:
    """Compares outputs, gradients of inputs and parameters, and what becomes of the inputs; gives the notes."""
    after, noting = compiled(function, **options)
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    pairs = zip(results(function, inputs, parameters), results(after, inputs, parameters), strict=True)
    for (kind, expected), (_, actual) in pairs:
        assert type(actual) is type(expected)
        if isinstance(expected, Tensor):
            assert kind == "gradient" or actual.stride() == expected.stride()
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    return noting


def results(function: Callable[..., Any], inputs: Sequence[Any], parameters: Sequence[Tensor]) -> list[tuple[str, Any]]:
    """The outputs of a function, the gradients, and its inputs afterwards."""
    torch.manual_seed(0)
    leaves = [leaf(value) for value in inputs]
    arguments = [value.clone() if isinstance(value, Tensor) else value for value in leaves]
    outputs = function(*arguments)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    differentiable = [output for output in outputs if isinstance(output, Tensor) and output.requires_grad]
    wanted = [value for value in (*leaves, *parameters) if isinstance(value, Tensor) and value.requires_grad]
    gradients: Sequence[Any] = []
    if differentiable and wanted:
        loss = sum((out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum() for out in differentiable)
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
    kinds = {"output": outputs, "input": arguments, "gradient": gradients}
    return [(kind, value) for kind, values in kinds.items() for value in values]


def leaf(value: Any) -> Any:
    """A copy of a tensor for autograd to begin at, where it can."""
    return value.detach().clone().requires_grad_(value.is_floating_point()) if isinstance(value, Tensor) else value


def rand(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Random numbers, the same in each call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# The operands of small layers, and a network of them.
V, W, B, B5 = rand(6, 6, seed=1), rand(5, 6, seed=2), rand(6, seed=3), rand(5, seed=4)
X = rand(4, 6)


def two_layers(x: Tensor, dropout: float = 0.0, training: bool = False) -> Tensor:
    """The plainest MLP."""
    return F.linear(F.dropout(F.gelu(F.linear(x, V, B)), dropout, training), W, B5)
