"""A sample call of an op, with the plain-PyTorch function that it must equal."""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from expected import Function
from strategies import WIDEST

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Sample:
    """A call of an op as a function of tensors of the given shapes."""

    op: str  # as registered, with the overload
    label: str
    shapes: tuple[Shape, ...]
    arguments: Function  # of the tensors: the op's arguments
    expected: Function  # of the tensors: the result in plain PyTorch
    keywords: Function = lambda *tensors: {}
    outputs: Function = lambda result: result  # those of the op that are differentiable
    scale: float = 1.0
    differentiable: bool = True
    of_points: int = 0  # so many tensors have the rows of points, whose number follows from other arguments

    def __str__(self) -> str:
        return f"{self.op}-{self.label}".rstrip("-")

    @property
    def overload(self) -> torch._ops.OpOverload:
        """The op with its overload."""
        name, _, overload = self.op.partition(".")
        return getattr(getattr(torch.ops.fastops, name), overload or "default")

    def tensors(self, device: Any, requires_grad: bool = False, draw: int = 0) -> list[Tensor]:
        """Tensors of the widest dtype, evenly spread over [-scale, scale] in random order, the same for each draw."""
        generator = torch.Generator().manual_seed(zlib.crc32(str(self).encode()) + draw)
        made = []
        for shape in self.shapes:
            count = torch.Size(shape).numel()
            values = torch.linspace(-self.scale, self.scale, count, dtype=torch.float64)
            values = values[torch.randperm(count, generator=generator)]
            values = values + 0.1 * torch.randn(count, generator=generator, dtype=torch.float64)
            made.append(values.reshape(shape).to(device, WIDEST).requires_grad_(requires_grad))
        return made

    def call(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The op's differentiable results."""
        return as_tuple(self.outputs(self.overload(*self.arguments(*tensors), **self.keywords(*tensors))))

    def reference(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The same results in plain PyTorch."""
        return as_tuple(self.expected(*tensors))


def as_tuple(result: Any) -> tuple[Tensor, ...]:
    """A tensor or several, as a tuple."""
    return (result,) if isinstance(result, Tensor) else tuple(result)


def close(actual: Any, expected: Any) -> None:
    """Equal in float64, up to what PyTorch's own formulas lose by cancellation in a third derivative."""
    tolerance = 1e-3 if WIDEST is torch.float32 else 1e-6
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


class Calls(nn.Module):
    """Calls samples with tensors, one after another."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        super().__init__()
        self.calls = [(sample.call, len(sample.shapes)) for sample in samples]

    def forward(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """The results of each."""
        rest = iter(tensors)
        return [call(*itertools.islice(rest, count)) for call, count in self.calls]


def inputs(samples: Sequence[Sample], device: Any, dtype: torch.dtype = WIDEST) -> tuple[Tensor, ...]:
    """The tensors for it."""
    return tuple(tensor.to(dtype) for sample in samples for tensor in sample.tensors(device))


def detached(function: Function, *arguments: Any) -> Any:
    """The function of arguments without gradients and tangents: what an op keeps for its backward pass."""

    def detach(value: Any) -> Any:
        if isinstance(value, list):
            return [detach(item) for item in value]
        return value.detach() if isinstance(value, Tensor) else value

    return function(*map(detach, arguments))
