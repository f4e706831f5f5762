"""torch.compile beyond single ops: Inductor's modes and fusions, gradients off, recompilation, checkpointing."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest
import torch
import torch._functorch.config
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor import metrics
from torch._inductor.utils import fresh_cache

import fastops
from sample import Calls, Sample, close, inputs
from samples import each_graph
from strategies import DEVICE, WIDEST
from test_opcheck import batch, forward_and_backward, module

ops = torch.ops.fastops


@pytest.fixture(autouse=True)
def forget_compiled() -> None:
    """Each test compiles anew."""
    torch._dynamo.reset()


@each_graph
@pytest.mark.feature("compile")
def test_every_op(samples: list[Sample], device: Any) -> None:
    """Every op compiles without graph breaks, with gradients and without."""
    calls = Calls(samples)
    compiled = torch.compile(calls, fullgraph=True, backend="aot_eager")
    tensors = inputs(samples, device)
    expected = iter(tensors)
    with torch.no_grad():
        for sample, results in zip(samples, compiled(*tensors), strict=True):
            close(results, sample.reference(*itertools.islice(expected, len(sample.shapes))))
    differentiable = [sample for sample in samples if sample.differentiable]
    if not differentiable:
        return
    calls = Calls(differentiable)
    tensors = inputs(differentiable, device)
    gradients = []
    for function in (torch.compile(calls, fullgraph=True, backend="aot_eager"), calls):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        loss = sum((result**2).sum() for results in function(*leaves) for result in results)
        gradients.append(torch.autograd.grad(loss, leaves, materialize_grads=True))
    close(*gradients)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
@pytest.mark.filterwarnings("ignore")
def test_inductor(mode: str, device: Any) -> None:
    """Compiled by Inductor, whatever the mode, a network has the eager values and gradients."""
    eager = module("MLP", device)
    compiled = torch.compile(eager, fullgraph=True, mode=mode)
    x = batch(5, device)
    parameters = list(eager.parameters())
    close(forward_and_backward(compiled, parameters, x), forward_and_backward(eager, parameters, x))
    with torch.no_grad():
        close(compiled(x), eager(x))


def test_inductor_fuses_around_ops(device: Any) -> None:
    """What stands before and after an op becomes one kernel each, as around PyTorch's own matrix products."""
    if device.type == "mps" and not torch.backends.mps.is_built():
        pytest.skip("Inductor's kernels need a Mac")
    mlp = module("MLP", device)

    def function(x: Tensor) -> Tensor:
        return mlp((x.sin() + 1).cos() * 2).exp().sub(1).abs()

    metrics.reset()
    x = batch(5, device).detach()
    with torch.no_grad(), torch._inductor.utils.fresh_cache():
        close(torch.compile(function, fullgraph=True)(x), function(x))
    assert metrics.generated_kernel_count == 2


def test_out_of_inputs_with_odd_strides(device: Any) -> None:
    """Compiled code relies on the strides that the Meta kernels promise: they are the real ones."""
    mlp = module("MLP", device)

    def function(x: Tensor) -> Tensor:
        return mlp(ops.gelu(x.mT).mT.flip(0)).mT.contiguous() + 1

    x = torch.linspace(-2, 2, 36, dtype=WIDEST, device=device).view(6, 6)[::2]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    close(compiled(x), function(x))
    assert compiled(x).stride() == function(x).stride()


@pytest.mark.parametrize("kind", ["MLP", "GatedMLP"])
def test_checkpoint(kind: str, device: Any) -> None:
    """checkpoint=True gives the same gradients when compiled."""
    eager = module(kind, device)
    eager.checkpoint = True
    compiled = torch.compile(eager, fullgraph=True, backend="aot_eager")
    x, parameters = batch(5, device), list(eager.parameters())
    close(forward_and_backward(compiled, parameters, x), forward_and_backward(eager, parameters, x))


def test_torch_checkpoint(device: Any) -> None:
    """So does torch.utils.checkpoint inside a compiled function."""
    mlp = module("MLP", device)

    def function(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(mlp, x, use_reentrant=False)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    x, parameters = batch(5, device), list(mlp.parameters())
    close(forward_and_backward(compiled, parameters, x), forward_and_backward(mlp, parameters, x))


@pytest.mark.parametrize("budget", [0.9, 0.1])
def test_dropout_with_a_memory_budget(budget: float, device: Any) -> None:
    """The backward pass drops what the forward pass dropped, though much is computed again.

    Without biases the result is linear in the input, whatever is dropped: it is the sum of input times gradient.
    """
    network = fastops.nn.MLP(16, [64, 64], 4, activation="identity", bias=False, dropout=0.5, device=device)
    x = torch.randn(32, 16, device=device, requires_grad=True)
    with torch._functorch.config.patch(activation_memory_budget=budget):
        result = torch.compile(network, backend="aot_eager_decomp_partition")(x).sum()
        (gradient,) = torch.autograd.grad(result, x)
    torch.testing.assert_close((gradient * x).sum(), result)


@pytest.mark.parametrize("name", ["MLP", "GatedMLP", "norm"])
def test_rows_that_a_mask_leaves(name: str, device: Any) -> None:
    """Two equal masks have two sizes that nobody knows; Inductor then computes one of them, and takes it for both."""
    network = fastops.nn.MLP(6, 8, 4, norm="layer") if name == "norm" else module(name, device)
    network.to(device, WIDEST)
    x = batch(9, device)
    function = lambda x: (network(x[x[:, 0] > 0]), network(x[x[:, 0] > 0]))  # noqa: E731
    gradients = []
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for call in (torch.compile(function, fullgraph=True), function):
            a, b = call(x)
            gradients.append(torch.autograd.grad(a.sum() + b.cos().sum(), list(network.parameters())))
    torch.testing.assert_close(*gradients)


def test_autocast_inside(device: Any) -> None:
    """Autocast regions are compiled as they run eagerly."""
    mlp = fastops.nn.MLP(6, [8, 5], 4, device=device)

    def function(x: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return mlp(x)

    x = batch(5, device).float()
    result = torch.compile(function, fullgraph=True, backend="aot_eager")(x)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result, function(x))


@pytest.mark.skipif(DEVICE != "cpu", reason="needs no device")
def test_cached_graphs_belong_to_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that an earlier fastops left in PyTorch's caches is not taken; one without ops of fastops is."""
    mlp = fastops.nn.MLP(5, 3, 1)

    def compiled_anew(function: Any, build: str) -> bool:
        monkeypatch.setattr(sys.modules["fastops._compile_cache"], "build_id", lambda: build)
        torch._dynamo.reset()
        counters.clear()
        torch.compile(function)(torch.ones(2, 5))
        hits = counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_hit"]
        return not any(hits)

    with fresh_cache():
        ours = [compiled_anew(lambda x: mlp(x) + 1, build) for build in ("one", "one", "another")]
        assert ours == [True, False, True]
        assert [compiled_anew(lambda x: x.sin() + 1, build) for build in ("one", "another")] == [True, False]
