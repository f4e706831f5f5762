"""PyTorch's own sample inputs of torch.nn.functional, run through the ops of the same name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

import fastops
from reference import ACTIVATIONS
from strategies import WIDEST

# The ops of PyTorch's database by the name of ours.
INFOS: dict[str, OpInfo] = {}
for entry in op_db:
    name = entry.name.removeprefix("nn.functional.")
    if name in ACTIVATIONS or name in ("linear", "glu"):
        INFOS.setdefault(name, entry)

# Of the keyword arguments of PyTorch's functions, those that ours do not have: they change no value.
WITHOUT_MEANING = {"inplace"}

each_info = pytest.mark.parametrize("name", INFOS)
dtypes = [WIDEST, torch.float32, torch.bfloat16]
each_dtype = pytest.mark.parametrize("dtype", dict.fromkeys(dtypes), ids=lambda dtype: str(dtype)[6:])


def ours(name: str, sample: SampleInput) -> Callable[[Tensor], Tensor] | None:
    """The call of our op that the sample asks for; None where the sample is for a function that we do not have."""
    keywords = {key: value for key, value in sample.kwargs.items() if key not in WITHOUT_MEANING}
    if name == "linear":
        weight, *bias = sample.args
        if weight.dim() != 2 or (bias and bias[0].dim() != 1):
            return None
        return lambda x: fastops.functional.linear_act(x, weight, *(bias or [None]), activation="identity")
    if name == "glu":
        dim = keywords.get("dim", sample.args[0] if sample.args else -1)
        return lambda x: fastops.functional.gated_act(x.movedim(dim, -1), "sigmoid", gate_last=True).movedim(-1, dim)
    if name == "gelu" and keywords.pop("approximate", "none") == "tanh":
        return fastops.functional.gelu_tanh
    return lambda x: getattr(fastops.functional, name)(x, *sample.args, **keywords)


def test_database_has_most_activations() -> None:
    """Only those without a function of the name in torch.nn.functional are missing."""
    missing = set(ACTIVATIONS) - set(INFOS)
    assert missing == {"identity", "gelu_tanh", "quick_gelu", "relu_squared"}


@each_info
@each_dtype
@pytest.mark.feature("OpInfo samples")
@pytest.mark.filterwarnings("ignore")
def test_samples(name: str, dtype: torch.dtype, device: Any) -> None:
    """Values and gradients of PyTorch's sample inputs are PyTorch's."""
    info = INFOS[name]
    tried = 0
    for sample in info.sample_inputs(device, dtype, requires_grad=True):
        call = ours(name, sample)
        if call is None or not isinstance(sample.input, Tensor):
            continue
        tried += 1
        results = []
        for function in (call, lambda x, sample=sample: info(x, *sample.args, **sample.kwargs)):
            x = sample.input.detach().clone().requires_grad_()
            value = function(x)
            results.append([value, *torch.autograd.grad((value * value.detach().cos()).sum(), x)])
        tolerance = torch.finfo(dtype).eps * (64 if dtype == torch.bfloat16 else 256)
        if name == "hardsigmoid":  # whose gradient PyTorch multiplies by a float32 1/6, also in float64
            tolerance = max(tolerance, 1e-7)
        torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)
    assert tried


@each_info
def test_reference_inputs(name: str, device: Any) -> None:
    """So are the values of its larger and odder ones: extremal values, broadcasts of strides, empty tensors."""
    info = INFOS[name]
    for sample in info.reference_inputs(device, torch.float32, requires_grad=False):
        call = ours(name, sample)
        if call is not None and isinstance(sample.input, Tensor):
            expected = info(sample.input, *sample.args, **sample.kwargs)
            torch.testing.assert_close(call(sample.input), expected, rtol=2e-5, atol=2e-5, equal_nan=True)
