"""The check of a fused graph against the one that it was made from: ``options={"check": True}``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

# The largest difference that is taken for rounding, relative to the largest element of the expected tensor.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def checked(
    compiled: Callable[..., Any], original: fx.GraphModule, fused: fx.GraphModule, ops: Sequence[str]
) -> Callable[..., Any]:
    """``compiled``, with a comparison of the two graphs before the first call."""
    pending = bool(ops)

    def call(*inputs: Any) -> Any:
        nonlocal pending
        if pending:
            compare(original, fused, inputs, ops)
            pending = False
        return compiled(*inputs)

    return call


def compare(original: fx.GraphModule, fused: fx.GraphModule, inputs: Sequence[Any], ops: Sequence[str]) -> None:
    """Runs both graphs on copies of the inputs, with the same random numbers.

    Raises:
        RuntimeError: an output, the gradient of an input, or an input that is written to differs by more than rounding.
    """
    for (name, expected), (_, actual) in zip(_results(original, inputs), _results(fused, inputs), strict=True):
        if problem := _difference(actual, expected):
            raise RuntimeError(
                f'torch.compile(backend="fastops"): {name} of the fused graph is wrong: {problem}. The fused ops are '
                f"{', '.join(ops)}. Please report this with the model; fastops.compile.explain shows the graphs"
            )


def _results(graph: fx.GraphModule, inputs: Sequence[Any]) -> list[tuple[str, Any]]:
    """The outputs, the gradients of a sum of them with fixed random weights, and the inputs afterwards."""
    generator = torch.Generator().manual_seed(0)
    with _seeded({value.device for value in inputs if isinstance(value, Tensor)}):
        leaves = [_leaf(value) for value in inputs]
        arguments = [leaf.clone() if isinstance(leaf, Tensor) and leaf.requires_grad else leaf for leaf in leaves]
        outputs = graph(*arguments)
        found = [(f"output {i}", output) for i, output in enumerate(outputs)]
        found += [(f"input {i}", argument) for i, argument in enumerate(arguments)]
        loss: Any = 0
        for output in outputs:
            if isinstance(output, Tensor) and output.requires_grad and output.is_floating_point():
                weights = torch.rand(output.shape, generator=generator, dtype=torch.float64)
                loss = loss + (output * weights.to(output)).sum()
        wanted = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad}
        if isinstance(loss, Tensor) and wanted:
            gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
            found += [(f"the gradient of input {i}", gradient) for i, gradient in zip(wanted, gradients, strict=True)]
    return found


@contextlib.contextmanager
def _seeded(devices: Collection[torch.device]) -> Iterator[None]:
    """With the same random numbers each time on the CPU and these devices; afterwards as if nothing had happened."""
    with contextlib.ExitStack() as stack:
        state = torch.get_rng_state()
        stack.callback(torch.set_rng_state, state)
        torch.default_generator.manual_seed(0)  # torch.manual_seed would seed all devices
        for device in devices:
            module: Any = torch.get_device_module(device) if device.type not in ("cpu", "meta") else None
            if not hasattr(module, "get_rng_state"):
                continue
            stack.enter_context(torch.accelerator.device_index(device.index))
            stack.callback(module.set_rng_state, module.get_rng_state())
            module.manual_seed(0)
        yield


def _leaf(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def _difference(actual: Any, expected: Any) -> str | None:
    if not isinstance(expected, Tensor):
        return None if actual is None or actual == expected else f"it is {actual}, but should be {expected}"
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        return f"{actual.dtype} of {list(actual.shape)}, but should be {expected.dtype} of {list(expected.shape)}"
    if expected.dtype not in TOLERANCE:
        return None if torch.equal(actual, expected) else "its elements differ"
    off = (actual.detach().double() - expected.detach().double()).abs()
    off = torch.where(actual.isnan() & expected.isnan() | (actual == expected), 0.0, off)
    finite = expected.detach().double().nan_to_num(0.0, 0.0, 0.0)
    bound = TOLERANCE[expected.dtype] * finite.abs().amax().item() if finite.numel() else 0.0
    if (off <= bound).all():
        return None
    return f"an element is off by {off.nan_to_num(torch.inf).amax().item():.3g}, where {bound:.3g} would be rounding"
