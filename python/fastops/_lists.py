"""Lists that callers may leave out, as the ops take them; for TorchScript, too."""

from __future__ import annotations

from torch import Tensor

NOT_TRACED = (
    "fastops.{}: torch.jit.trace has no lists of optional tensors; use torch.jit.script, torch.export or torch.compile"
)


def list_of(params: list[float] | None) -> list[float]:
    empty: list[float] = []
    return empty if params is None else params


def biases_of(weights: list[Tensor], biases: list[Tensor | None] | None) -> list[Tensor | None]:
    if biases is not None:
        return biases
    none: list[Tensor | None] = []
    for _ in weights:
        none.append(None)  # noqa: PERF401  (TorchScript has no list of None)
    return none
