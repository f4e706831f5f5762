"""What every op has beside kernels and samples: the list of CONTRIBUTING.md ("Adding an op") as checks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import fastops.functional
from sample import Sample
from samples import SAMPLES

ROOT = Path(__file__).parent.parent
each_op = pytest.mark.parametrize("op", sorted({sample.op for sample in SAMPLES}))


def is_public(op: str) -> bool:
    """Whether people call it: not the passes of another op, and not the forms of an activation with `_` and out=."""
    return not op.endswith(("_backward", "_forward", "_", ".out"))


@each_op
def test_kernels(op: str) -> None:
    """Without kernels of a device, on fake tensors, in autograd; under vmap and functionalization, where it can be."""
    writes_to_out = op.endswith(".out")
    keys = ["CompositeExplicitAutograd", "Meta", "Autograd"]
    keys += ["Functionalize"] if writes_to_out or op.endswith("_") else []
    keys += [] if writes_to_out else ["FuncTorchBatched"]
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    assert not [key for key in keys if not has_kernel(f"fastops::{op}", key)]


@each_op
@pytest.mark.skipif(not torch.distributed.is_available(), reason="there are no DTensors")
def test_sharding(op: str) -> None:
    from torch.distributed.tensor import DTensor

    name, _, overload = op.partition(".")
    rules = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs  # type: ignore[attr-defined]
    assert getattr(getattr(torch.ops.fastops, name), overload or "default") in rules


@each_op
def test_python(op: str) -> None:
    """A function, and the families that the documentation is made of."""
    if is_public(op):
        assert callable(getattr(fastops.functional, op))
        assert op in fastops.functional.__all__


@each_op
def test_is_named_in_the_headers(op: str) -> None:
    """Its schema stands above the struct of its arguments."""
    text = "".join(header.read_text() for header in (ROOT / "src/ops").glob("*.h"))
    name = op.removesuffix(".out")
    is_activation = name.removesuffix("_") in (ROOT / "src/activations/table.h").read_text()
    assert is_activation or f"// {name}(" in text or f"// {name}:" in text


# What is to be counted of a backward op depends on the gradients that are wanted: test_flops.py.
@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if not sample.op.endswith("_backward")], ids=str)
def test_flops(sample: Sample, device: torch.device) -> None:
    """The matrix products of an op are counted, as those of what it stands for."""
    tensors = sample.tensors(device)
    with FlopCounterMode(display=False) as expected:
        sample.expected(*tensors)
    with FlopCounterMode(display=False) as counter:
        sample.overload(*sample.arguments(*tensors), **sample.keywords(*tensors))
    assert counter.get_total_flops() == expected.get_total_flops()


def test_public_headers() -> None:
    """What a header includes that other packages compile is there for them, too."""
    public = set(re.findall(r"[\w/]+\.h\b", (ROOT / "cmake/package.cmake").read_text()))
    assert "ops/device.h" in public
    for header in public:
        included = re.findall(r'^#include "(.*)"', (ROOT / "src" / header).read_text(), re.MULTILINE)
        assert not set(included) - public, header
