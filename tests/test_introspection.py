"""What PyTorch's tools see of every op: profilers, modes, tensor subclasses, timers."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.testing._internal.logging_tensor import capture_logs_with_logging_tensor_mode
from torch.utils import benchmark
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

import fastops
from sample import Sample, as_tuple, close
from samples import each_op

ops = torch.ops.fastops


# ---- profiler ----


@each_op
@pytest.mark.feature("profiler")
def test_profiler(sample: Sample, device: Any, tmp_path: Path) -> None:
    """The profiler's events and its trace have the op by name, with the shapes of its tensors."""
    tensors = sample.tensors(device)
    arguments = sample.arguments(*tensors), sample.keywords(*tensors)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        sample.overload(*arguments[0], **arguments[1])
    name = f"fastops::{sample.op.partition('.')[0]}"
    (event,) = [event for event in profile.events() if event.name == name]
    assert event.input_shapes[0] == list(tensors[0].shape)
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert name in {entry.get("name") for entry in trace["traceEvents"]}


@pytest.mark.parametrize("make", [fastops.nn.MLP, fastops.nn.GatedMLP])
def test_profiler_shows_phases(make: Any, device: Any) -> None:
    """A training step of a network shows its forward and backward op, the node, and what these spend their time on."""
    module = make(64, 256, device=device)
    x = torch.randn(64, 64, device=device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        module(x).sum().backward()
    names = {event.name for event in profile.events()}
    op = "mlp" if make is fastops.nn.MLP else "gated_mlp"
    node = "FastopsMlpBackward" if make is fastops.nn.MLP else "FastopsGatedMlpBackward"
    assert {f"fastops::{op}_forward", f"fastops::{op}_backward", node} <= names
    products = {"fastops::pack", "fastops::layers", "fastops::parameter_gradients"}
    assert products <= names or names & {"aten::mm", "aten::addmm", "fastops::product", "fastops::unpacked_network"}


def test_profiler_shows_networks(device: Any) -> None:
    """Those of an ensemble in one entry each way, whatever their number."""
    module = fastops.nn.EnsembleMLP(7, 5, 15, 1, device=device)
    x = torch.randn(7, 9, 5, device=device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        module(x).sum().backward()
    counts = Counter(event.name for event in profile.events())
    assert counts["fastops::mlp_forward"] == 1
    if not {"aten::bmm", "aten::baddbmm"} & counts.keys():
        assert counts["fastops::networks"] == 2
        assert "fastops::layers" not in counts


# ---- the graph ----


@each_op
def test_node_has_a_class(sample: Sample, device: Any) -> None:
    """The node of an op is of a class named as it, which is what PyTorch shows of a tensor and tells nodes by."""
    if not sample.differentiable:
        return
    result = as_tuple(sample.call(*sample.tensors(device, requires_grad=True)))[0]
    node = result.grad_fn
    if node.name().startswith("Fastops"):
        assert type(node).__name__ == node.name()
    assert f"grad_fn=<{node.name()}>" in repr(result)


# ---- modes ----


class SeenByDispatch(TorchDispatchMode):
    """Notes the ops that reach the dispatcher's Python key."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class SeenByFunction(TorchFunctionMode):
    """Notes the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@each_op
@pytest.mark.feature("modes")
def test_modes(sample: Sample, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modes of both kinds and PyTorch's logging see the op, as the only one, and get its results."""
    tensors = sample.tensors(device)
    arguments, keywords = sample.arguments(*tensors), sample.keywords(*tensors)
    with SeenByDispatch() as below, SeenByFunction() as above:
        results = sample.overload(*arguments, **keywords)
    assert below.seen == above.seen == [sample.overload]
    close(as_tuple(sample.outputs(results)), sample.reference(*tensors))
    monkeypatch.setattr(logging.getLogger("LoggingTensor"), "propagate", False)  # pytest cannot format its records
    with capture_logs_with_logging_tensor_mode() as logs:
        sample.overload(*sample.arguments(*tensors), **sample.keywords(*tensors))
    assert any(f"fastops.{sample.op.partition('.')[0]}." in line for line in logs)


@pytest.mark.parametrize("make", [fastops.nn.MLP, fastops.nn.GatedMLP])
def test_modes_see_modules(make: Any, device: Any) -> None:
    """The modules' direct way to the ops is not taken where a mode or a subclass would miss them."""
    module = make(4, 6, device=device)
    x = torch.randn(3, 4, device=device)
    name = "mlp" if make is fastops.nn.MLP else "gated_mlp"
    with torch.no_grad(), SeenByDispatch() as below, SeenByFunction() as above:
        module(x)
    assert [func.name() for func in below.seen] == [f"fastops::{name}"]
    assert getattr(ops, name) in above.seen


# ---- subclasses ----


class Named(Tensor):
    """A subclass that PyTorch's own __torch_function__ keeps."""


class Wrapper(Tensor):
    """A subclass that holds another tensor, and notes the ops that are called with it."""

    seen: list[Any]

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        return Tensor._make_wrapper_subclass(
            cls, inner.size(), inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func)
        inner = tree_map_only(Wrapper, lambda tensor: tensor.inner, (args, kwargs or {}))
        results = tree_map_only(Tensor, Wrapper, func(*inner[0], **inner[1]))
        return return_and_correct_aliasing(func, args, kwargs or {}, results)


@each_op
@pytest.mark.feature("subclasses")
def test_subclasses(sample: Sample, device: Any) -> None:
    """The results of subclasses are of the subclass, with the same values."""
    tensors = sample.tensors(device)
    expected = sample.call(*tensors)
    named = sample.call(*[tensor.as_subclass(Named) for tensor in tensors])
    assert all(isinstance(result, Named) for result in named)
    close([result.as_subclass(Tensor) for result in named], list(expected))
    Wrapper.seen = []
    wrapped = sample.call(*[Wrapper(tensor) for tensor in tensors])
    assert sample.overload in Wrapper.seen
    assert all(isinstance(result, Wrapper) for result in wrapped)
    close([result.inner for result in wrapped], list(expected))


# ---- timers ----


@each_op
def test_timer(sample: Sample, device: Any) -> None:
    """torch.utils.benchmark times a call."""
    tensors = sample.tensors(device)
    variables = {"call": sample.call, "tensors": tensors}
    assert benchmark.Timer("call(*tensors)", globals=variables).timeit(2).times[0] > 0
