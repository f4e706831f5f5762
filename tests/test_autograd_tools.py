"""What PyTorch's autograd offers around a backward pass: hooks, anomaly mode, offloading, checkpoints, compilation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch.autograd import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import fastops
from sample import Calls, Sample, close, inputs
from samples import each_differentiable_op, each_differentiable_rule, each_node
from strategies import WIDEST
from test_autograd import gradients, scalar

ops = torch.ops.fastops


@each_differentiable_rule
@pytest.mark.feature("autograd.functional")
def test_autograd_functional(sample: Sample, device: Any) -> None:
    """Jacobians and products with them and with the Hessian, as torch.autograd.functional computes them."""
    tensors = tuple(sample.tensors(device))
    directions = tuple(torch.cos(tensor) for tensor in tensors)
    results = []
    for function in (sample.call, sample.reference):
        loss = lambda *inputs, function=function: scalar(function(*inputs))  # noqa: E731
        results.append(
            [
                functional.jacobian(function, tensors, vectorize=True),
                functional.jacobian(function, tensors),
                functional.jvp(function, tensors, directions)[1],
                functional.vhp(loss, tensors, directions)[1],
                functional.hvp(loss, tensors, directions)[1],
            ]
        )
    close(*results)


@each_differentiable_rule
@pytest.mark.feature("hooks")
def test_hooks(sample: Sample, device: Any) -> None:
    """Hooks on the inputs, on the result and on its node change the gradients that pass through them."""
    tensors = sample.tensors(device, requires_grad=True)
    result = sample.call(*tensors)[0]
    expected = gradients(72 * (result**2).sum(), tensors, retain_graph=True)
    for tensor in tensors:
        tensor.register_hook(lambda grad: None if grad is None else grad * 2)
    result.register_hook(lambda grad: grad * 3)
    result.grad_fn.register_prehook(lambda grads: tuple(None if grad is None else grad * 2 for grad in grads))
    result.grad_fn.register_hook(lambda inputs, outputs: tuple(None if grad is None else grad * 6 for grad in inputs))
    close(gradients((result**2).sum(), tensors), expected)


@each_differentiable_rule
@pytest.mark.feature("anomaly mode")
@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected")
def test_anomaly_mode(sample: Sample, device: Any) -> None:
    """Anomaly mode changes no gradient, and names the node whose gradient is NaN."""
    tensors = sample.tensors(device, requires_grad=True)
    expected = gradients(scalar(sample.call(*tensors)), tensors)
    with torch.autograd.detect_anomaly():
        results = sample.call(*tensors)
        close(gradients(scalar(results), tensors, retain_graph=True), expected)
        spoiled = scalar(tuple(result * torch.nan for result in results))
    if any(grad.isnan().any() for grad in gradients(spoiled, tensors, retain_graph=True)):
        with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan values"):
            torch.autograd.grad(results, tensors, [torch.full_like(r, torch.nan) for r in results], allow_unused=True)


@each_differentiable_rule
@pytest.mark.feature("save_on_cpu")
def test_save_on_cpu(sample: Sample, device: Any) -> None:
    """Saved tensors that wait in the CPU's memory give the same gradients."""
    tensors = sample.tensors(device, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        loss = scalar(sample.call(*tensors))
    close(gradients(loss, tensors), gradients(scalar(sample.call(*tensors)), tensors))


# ---- checkpoints ----


class CallCounter(TorchDispatchMode):
    """Counts the calls of fastops' forward ops."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func.namespace == "fastops" and "backward" not in func.name()
        return func(*args, **(kwargs or {}))


@each_differentiable_rule
@pytest.mark.feature("checkpoint")
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(sample: Sample, use_reentrant: bool, device: Any) -> None:
    """Checkpointed, an op has the same gradients."""
    tensors = sample.tensors(device, requires_grad=True)
    expected = gradients(scalar(sample.call(*tensors)), tensors)
    loss = checkpoint(lambda *inputs: scalar(sample.call(*inputs)), *tensors, use_reentrant=use_reentrant)
    loss.backward()
    close(tuple(torch.zeros_like(t) if t.grad is None else t.grad for t in tensors), expected)


@each_differentiable_op
@pytest.mark.feature("selective checkpoint")
@pytest.mark.parametrize("policy", [CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE])
def test_selective_checkpoint(sample: Sample, policy: CheckpointPolicy, device: Any) -> None:
    """A policy that names the op decides whether the backward pass computes it again."""
    if sample.op.endswith("_") and policy == CheckpointPolicy.MUST_SAVE:
        pytest.skip("what an in-place op wrote cannot be saved for it: PyTorch refuses its own as well")
    tensors = sample.tensors(device, requires_grad=True)
    expected = gradients(scalar(sample.call(*tensors)), tensors)

    def choose(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return policy if op.namespace == "fastops" else CheckpointPolicy.PREFER_RECOMPUTE

    loss = checkpoint(
        lambda *inputs: scalar(sample.call(*inputs)),
        *tensors,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(choose),
    )
    with CallCounter() as counter:
        close(gradients(loss, tensors), expected)
    if "backward" not in sample.op:  # whose derivatives call forward ops
        assert (counter.calls > 0) == (policy == CheckpointPolicy.MUST_RECOMPUTE)


def kept_for_backward(call: Callable[[], Tensor], arguments: list[Tensor]) -> list[torch.Size]:
    """The shapes of the tensors that a call keeps for its backward pass besides its arguments."""
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        call()
    own = {argument.data_ptr() for argument in arguments}
    return [tensor.shape for tensor in kept if tensor.data_ptr() not in own]


@pytest.mark.parametrize("last", ["identity", "tanh", "gelu"])
@pytest.mark.parametrize("hidden", ["tanh", "gelu"])
def test_mlp_with_checkpoint_keeps_its_arguments_only(hidden: str, last: str, device: Any) -> None:
    """mlp(checkpoint=True) keeps no activations, whatever the backward pass takes."""
    generator = torch.Generator().manual_seed(5)
    shapes = ((7, 3), (5, 3), (6, 5), (2, 6), (5,), (2,))
    x, *parameters = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(device, WIDEST).requires_grad_()
        for shape in shapes
    )
    weights, biases = parameters[:3], [parameters[3], None, parameters[4]]
    call = lambda checkpoint: fastops.functional.mlp(x, weights, biases, hidden, last, checkpoint=checkpoint)  # noqa: E731
    assert kept_for_backward(lambda: call(True), [x, *parameters]) == []
    assert kept_for_backward(lambda: call(False), [x, *parameters]) != []
    close(*[gradients(scalar((call(kind),)), [x, *parameters]) for kind in (True, False)])


def test_gated_mlp_with_checkpoint_keeps_its_arguments_only(device: Any) -> None:
    """So does gated_mlp."""
    module = fastops.nn.GatedMLP(4, 6, checkpoint=True, device=device, dtype=WIDEST)
    x = torch.linspace(-2, 2, 20, dtype=WIDEST, device=device).view(5, 4).requires_grad_()
    parameters = list(module.parameters())
    assert kept_for_backward(lambda: module(x), [x, *parameters]) == []
    results = [gradients(scalar((module(x),)), [x, *parameters])]
    module.checkpoint = False
    assert kept_for_backward(lambda: module(x), [x, *parameters]) == [(5, 6), (5, 6)]
    close(*results, gradients(scalar((module(x),)), [x, *parameters]))


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("hooked", [False, True])
def test_module_with_checkpoint(dropout: float, hooked: bool, device: Any) -> None:
    """nn.MLP(checkpoint=True) trains as without, also where it runs layer by layer."""
    results = []
    for kind in (False, True):
        torch.manual_seed(0)
        module = fastops.nn.MLP(4, [6, 5], 2, dropout=dropout, checkpoint=kind, device=device, dtype=WIDEST)
        if hooked:
            module[3 if dropout else 2].register_forward_hook(lambda layer, inputs, output: output * 2)
        x = torch.linspace(-2, 2, 20, dtype=WIDEST, device=device).view(5, 4).requires_grad_()
        inputs = [x, *module.parameters()]
        if kind:
            hidden = [shape for shape in kept_for_backward(lambda: module(x), inputs) if shape[0] == 5]  # noqa: B023
            assert not [shape for shape in hidden if shape[1] in (5, 6)]
        torch.manual_seed(1)
        results.append([module(x), *gradients(scalar((module(x),)), inputs)])
        assert ("checkpoint=True" in repr(module)) == kind
    if not dropout:
        close(*results)
    else:
        close(results[1][0], results[0][0])


# ---- compiled autograd ----


@each_node
@pytest.mark.feature("compiled autograd")
def test_compiled_autograd(samples: list[Sample], device: Any) -> None:
    """The captured and compiled backward pass gives the same gradients, twice, from new numbers and new shapes."""
    torch._dynamo.reset()
    calls, tensors = Calls(samples), inputs(samples, device)
    for scale in (1.0, 0.5):
        leaves = [(tensor * scale).requires_grad_() for tensor in tensors]
        expected = gradients(scalar(tuple(itertools.chain(*calls(*leaves)))), leaves)
        loss = scalar(tuple(itertools.chain(*calls(*leaves))))
        with compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
            loss.backward()
        close(tuple(torch.zeros_like(t) if t.grad is None else t.grad for t in leaves), expected)


@pytest.mark.parametrize("module", [nn.Identity, lambda: fastops.nn.MLP(4, 6, dtype=WIDEST, checkpoint=True)])
def test_compiled_autograd_of_saved_outputs(module: Callable[[], nn.Module], device: Any) -> None:
    """A node whose saved tensor is its own output, or that keeps nothing, is captured as well."""
    torch._dynamo.reset()
    layer = module().to(device)
    x = torch.linspace(-2, 2, 20, dtype=WIDEST, device=device).view(5, 4).requires_grad_()
    expected = gradients(scalar((ops.tanh(layer(x)),)), [x])
    loss = scalar((ops.tanh(layer(x)),))
    with compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        loss.backward()
    close((x.grad,), expected)
