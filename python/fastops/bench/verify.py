"""Whether a result is right: compared with PyTorch in float64, by the measure of PyTorch's own error.

The error of a tensor is the largest difference from the reference, relative to the reference's largest element. It may
be 4 times that of PyTorch eager, which computes in the same dtype, plus 4 units in the last place.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .workloads import Contender, Tensors, Workload

TIMES_EAGER = 4
UNITS_IN_LAST_PLACE = 4


def reference(workload: Workload, tensors: Tensors) -> list[Tensor]:
    """The output and the gradients in float64, by PyTorch on the CPU, from the same rounded weights and inputs."""
    eager = workload.pytorch(torch.device("cpu"))
    if isinstance(eager.call, nn.Module):
        eager = Contender.of(copy.deepcopy(eager.call).double())
    return workload.results(eager, workload.distinct(tensors).to(dtype=torch.float64))


def errors(results: Sequence[Tensor], references: Sequence[Tensor]) -> list[float]:
    """The error of each tensor; infinite where a shape is wrong or a value is not a number."""
    return [_error(result.detach(), expected) for result, expected in zip(results, references, strict=True)]


def _error(result: Tensor, expected: Tensor) -> float:
    if result.numel() % expected.numel() or result.shape[1:] != expected.shape[1:]:
        return math.inf
    scale = expected.abs().max().item()
    difference = 0.0
    for part in result.split(len(expected)):  # a large input repeats itself
        largest = (part.cpu().double() - expected).abs().max().item()
        difference = math.inf if math.isnan(largest) else max(difference, largest)
    return difference / scale if scale else difference


def complaint(own: Sequence[float], eager: Sequence[float], dtype: torch.dtype) -> str | None:
    """What is wrong with results that have these errors, where PyTorch eager has those; None if nothing is."""
    slack = UNITS_IN_LAST_PLACE * torch.finfo(dtype).eps
    for index, (error, yardstick) in enumerate(zip(own, eager, strict=True)):
        budget = TIMES_EAGER * yardstick + slack
        if not error <= budget:
            what = "the output" if index == 0 else f"gradient {index - 1}"
            return f"{what} is off by {error:.1e} of its size; PyTorch by {yardstick:.1e}, so {budget:.1e} is allowed"
    return None
