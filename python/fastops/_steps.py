"""The steps of fastops.functional.sequential, as its op takes them: names, and what each takes from the lists."""

from __future__ import annotations

import torch
from torch import Tensor

# How many of the parameters a step takes; the others, activations among them, take none.
TENSORS = {"linear": 2, "gated_linear": 4, "layer_norm": 2, "rms_norm": 1, "scale": 1}


def linears(steps: str) -> list[tuple[int, int]]:
    """The places of the weights of linear layers among the parameters, and of the first parameter of their step."""
    places, place = [], 0
    for step in steps.split():
        if step in ("linear", "gated_linear"):
            places += [(weight, place) for weight in range(place, place + TENSORS[step], 2)]
        place += TENSORS.get(step, 0)
    return places


def dropout_seed(input: Tensor) -> Tensor:
    """A number from the default generator of the input's device, which decides what dropout drops."""
    return torch.randint(0x7FFFFFFFFFFFFFFF, [], dtype=torch.int64, device=input.device)
