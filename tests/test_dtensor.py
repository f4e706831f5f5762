"""Ops on DTensors: the results and gradients of plain tensors, without communication where none is needed."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from fastops.nn import MLP, EnsembleMLP, GatedMLP
from processes import needs_gloo, run_in_processes
from reference import ACTIVATIONS
from sample import Sample, close
from samples import COVERING, EACH_OP, SAMPLES

needs_flattening = pytest.mark.skipif(
    torch.__version__.startswith("2.11."), reason="there no view flattens a dimension in shards"
)


class Call:
    """A sample's call with every tensor among its arguments taken out."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        made = sample.tensors("cpu")
        self.leaves, self.spec = tree_flatten((sample.arguments(*made), sample.keywords(*made)))
        self.at = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)]

    @property
    def tensors(self) -> list[Tensor]:
        return [self.leaves[i] for i in self.at]

    def arguments(self, tensors: list[Tensor]) -> Any:
        leaves = list(self.leaves)
        for i, tensor in zip(self.at, tensors, strict=True):
            leaves[i] = tensor
        return tree_unflatten(leaves, self.spec)

    def __call__(self, tensors: list[Tensor]) -> Any:
        if self.sample.op.endswith("_"):
            tensors = [copy(tensor) for tensor in tensors]
        arguments, keywords = self.arguments(tensors)
        return self.sample.overload(*arguments, **keywords)

    def gradients(self, tensors: list[Tensor]) -> list[Tensor | None]:
        """Of the results' sum with fixed weights, by the tensors."""
        tensors = [tensor.detach().requires_grad_() for tensor in tensors]
        results = tree_leaves(self.sample.outputs(self(tensors)))
        weights = [torch.linspace(0.5, 1.5, r.numel(), dtype=r.dtype).reshape(r.shape) for r in results]
        if isinstance(results[0], DTensor):
            weights = [spread(weight, results[0].device_mesh, Replicate()) for weight in weights]
        return list(torch.autograd.grad(results, tensors, weights, allow_unused=True))


def spread(tensor: Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    """The tensor, which every process has, as a DTensor; a sum has different terms on each."""
    if isinstance(placement, Partial):
        share = (mesh.get_local_rank() + 1) / sum(range(1, mesh.size() + 1))
        return DTensor.from_local(tensor * share, mesh, [placement], run_check=False)
    return distribute_tensor(tensor.clone(), mesh, [placement], src_data_rank=None)


def copy(tensor: Tensor) -> Tensor:
    """In the same placement: clone() of a DTensor adds up a sum."""
    if not isinstance(tensor, DTensor):
        return tensor.clone()
    like = {"shape": tensor.shape, "stride": tensor.stride(), "run_check": False}
    return DTensor.from_local(tensor.to_local().clone(), tensor.device_mesh, tensor.placements, **like)


def whole(value: Any) -> Any:
    return tree_map_only(DTensor, DTensor.full_tensor, value)


def flattened(specs: Any) -> list[DTensorSpec]:
    return [specs] if isinstance(specs, DTensorSpec) else [spec for group in specs for spec in flattened(group)]


def layouts(call: Call, mesh: DeviceMesh) -> Iterator[tuple[list[Placement], list[Placement]]]:
    """The placements of tensors and results that the op's rule has on offer."""
    arguments, keywords = call.arguments([spread(tensor, mesh, Replicate()) for tensor in call.tensors])
    dispatcher = DTensor._op_dispatcher
    propagator = dispatcher.sharding_propagator
    # Of the op out of place: DTensor tells an op in place only what fits the placement that its tensor has.
    overload = getattr(torch.ops.fastops, call.sample.op.removesuffix("_").removesuffix(".out"), None)
    op = overload.default if overload else call.sample.overload
    schema = dispatcher.unwrap_to_op_info(op, arguments, {}).schema
    for spec in propagator.op_strategy_funcs[op](propagator._wrap_with_op_strategy(schema)).strategies:
        inputs = [each.placements[0] for each in spec.input_specs]
        outputs = [each.placements[0] for each in flattened(spec.output_specs)]
        yield inputs + outputs * ("out" in keywords), outputs


# What is compared: a description, what there is, what there should be. Nothing is raised on the way, where one process
# would leave the other alone in its communication.
Comparisons = Iterator[tuple[str, Any, Any]]


def compare_layouts(call: Call, mesh: DeviceMesh) -> Comparisons:
    """What the rule offers is computed without communication, placed as it says, and right."""
    for inputs, outputs in layouts(call, mesh):
        tensors = [spread(tensor, mesh, placement) for tensor, placement in zip(call.tensors, inputs, strict=True)]
        with CommDebugMode() as communication:
            result = call(tensors)
        yield f"communication of {inputs}", communication.get_total_counts(), 0
        placed = [tensor.placements[0] for tensor in tree_leaves(result)]
        yield f"placements of {inputs}: {placed}, not {outputs}", placed == outputs, True
        yield from compare_values(call, tensors)


def compare_mixture(call: Call, mesh: DeviceMesh) -> Comparisons:
    """Tensors in whatever placements come together."""
    choose = random.Random(str(call.sample))
    tensors = []
    for tensor in call.tensors:
        shards = [Replicate(), *map(Shard, range(tensor.dim()))]
        tensors.append(spread(tensor, mesh, choose.choice([*shards, Partial()])))
    # DTensor leaves what an op writes to where it is.
    for written in [0] * call.sample.op.endswith("_") + [-1] * call.sample.op.endswith(".out"):
        tensors[written] = spread(call.tensors[written], mesh, choose.choice(shards))
    yield from compare_values(call, tensors)


def compare_values(call: Call, tensors: list[Tensor]) -> Comparisons:
    placements = [tensor.placements[0] for tensor in tensors]
    yield f"results of {placements}", whole(call(tensors)), call(call.tensors)
    if call.sample.differentiable and not torch_is_wrong(call, placements):
        yield f"gradients of {placements}", whole(call.gradients(tensors)), call.gradients(call.tensors)


def torch_is_wrong(call: Call, placements: list[Placement]) -> bool:
    """Whether the derivative of a backward op comes to what torch 2.13 computes wrongly on DTensors."""
    grad_output = call.tensors[0]
    if call.sample.op == "mlp_backward":  # linear() of a vector without bias gives a matrix
        return grad_output.dim() == 1
    if call.sample.op == "gated_act_backward":  # the gradient of narrow(), where it is sharded
        return placements[0] == Shard(grad_output.dim() - 1)
    return False


def compute_samples(rank: int, mesh: DeviceMesh, names: list[str]) -> None:
    failures = []
    for call in [Call(sample) for sample in SAMPLES if str(sample) in names]:
        for what, actual, expected in chain(compare_layouts(call, mesh), compare_mixture(call, mesh)):
            failures += [f"{call.sample}: {what}: {difference}" for difference in differences(actual, expected)]
    assert not failures, "\n".join(failures)


def differences(actual: Any, expected: Any) -> list[AssertionError]:
    try:
        close(actual, expected)
    except AssertionError as error:
        return [error]
    return []


# The rules tell identity from other activations, and no more: these two are enough where one call has many samples.
ENOUGH = [
    sample
    for sample in SAMPLES
    # Of sequential one without dropout, whose seed is a tensor of integers, and with rows that can be spread.
    if (sample.label == "norms" or not sample.op.startswith("sequential"))
    and (
        sample in EACH_OP
        or (sample in COVERING and not sample.op.startswith((*ACTIVATIONS, "activation")))
        or (sample.op == "activation_backward" and sample.label.startswith(("identity", "tanh-")))
    )
]


@needs_gloo
@needs_flattening
@pytest.mark.feature("DTensor", ops=ENOUGH)
@pytest.mark.parametrize("mlp", [False, True], ids=["elementwise", "mlp"])
def test_samples(mlp: bool, tmp_path: Path) -> None:
    """Every op in every layout that its rule offers and in a mixture of placements, with gradients."""
    names = [str(sample) for sample in ENOUGH if ("mlp" in sample.op or sample.op == "linear_act") == mlp]
    run_in_processes(compute_samples, tmp_path, names)


# ---- what needs no other process ----


@pytest.fixture
def grid() -> Iterator[DeviceMesh]:
    """A mesh of 2 by 2 devices, of which only the first one is there: what it receives is without meaning."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "features"))
    dist.destroy_process_group()


def parallel(module: nn.Module, mesh: DeviceMesh, columns: list[str], rows: list[str]) -> nn.Module:
    """The module with layers split by columns and by rows over the last mesh dimension; its layers stay plain ones."""

    def distribute(name: str, layer: nn.Module, mesh: DeviceMesh) -> None:
        for key, parameter in list(layer.named_parameters(recurse=False)):
            by_rows = Shard(1) if key == "weight" else Replicate()
            placement = Shard(0) if name in columns else by_rows if name in rows else Replicate()
            placements = [*[Replicate()] * (mesh.ndim - 1), placement]
            layer.register_parameter(key, nn.Parameter(distribute_tensor(parameter, mesh, placements)))

    return distribute_module(module, mesh, distribute)


MODULES: dict[str, Callable[[DeviceMesh], nn.Module]] = {
    "MLP": lambda mesh: parallel(MLP(6, 8, 4), mesh, ["0"], ["2"]),
    "GatedMLP": lambda mesh: parallel(GatedMLP(6, 8, 4, bias=True), mesh, ["gate_proj", "up_proj"], ["down_proj"]),
}


@pytest.mark.parametrize("kind", MODULES)
def test_columns_and_rows_need_one_sum(kind: str, grid: DeviceMesh) -> None:
    """One all-reduce in the forward pass, one in the backward pass for the input's gradient."""
    mesh = grid["features"]
    module = MODULES[kind](mesh)
    x = distribute_tensor(torch.randn(3, 6), mesh, [Replicate()]).requires_grad_()
    with CommDebugMode() as communication:
        output = module(x)
        assert output.placements == (Partial(),)
        output = output.redistribute(placements=[Replicate()])
        assert communication.get_total_counts() == 1
        output.sum().backward()
        assert communication.get_total_counts() == 1
        x.grad.full_tensor()
        assert communication.get_total_counts() == 2
    for parameter in module.parameters():
        assert parameter.grad.placements == parameter.placements


@pytest.mark.parametrize("kind", MODULES)
def test_batch_and_features_on_a_grid(kind: str, grid: DeviceMesh) -> None:
    """With the batch shared out on one mesh dimension and the layers on the other, nothing is communicated."""
    module = MODULES[kind](grid)
    x = distribute_tensor(torch.randn(4, 3, 6), grid, [Shard(0), Replicate()]).requires_grad_()
    gradient = distribute_tensor(torch.randn(4, 3, 4), grid, [Shard(0), Replicate()])
    with CommDebugMode() as communication:
        output = module(x)
        assert output.placements == (Shard(0), Partial())
        output.backward(gradient)
        assert communication.get_total_counts() == 0
    for parameter in module.parameters():
        assert parameter.grad.placements == (Partial(), parameter.placements[1])


@needs_flattening
def test_shards_of_a_flattened_batch(grid: DeviceMesh) -> None:
    """A batch and a sequence in shards, seen as one dimension, stay where they are."""
    x = distribute_tensor(torch.randn(4, 6, 3), grid, [Shard(0), Shard(1)]).flatten(0, 1)
    weight = distribute_tensor(torch.randn(2, 3), grid, [Replicate(), Replicate()]).requires_grad_()
    assert x.placements != (Shard(0), Shard(0))
    with CommDebugMode() as communication:
        output = torch.ops.fastops.mlp(torch.ops.fastops.relu(x), [weight], [None], "relu", "gelu")
        assert output.placements == x.placements
        output.backward(torch.ones_like(output))
        assert communication.get_total_counts() == 0
    assert weight.grad.placements == (Partial(), Partial())


def test_strategies_are_not_taken_from_another_call(grid: DeviceMesh) -> None:
    """DTensor keeps what it found for a call: what a rule looks at must tell calls apart."""
    mesh = grid["features"]
    x, weight = (distribute_tensor(torch.randn(4, 4), mesh, [placement]) for placement in (Shard(1), Shard(1)))
    bias = distribute_tensor(torch.randn(4), mesh, [Shard(0)])
    ops = torch.ops.fastops
    assert ops.linear_act(x, weight, None, "identity").placements == (Partial(),)
    assert ops.linear_act(x, weight, None, "tanh").placements != (Partial(),)
    for mask in ([True, True], [True, False], [False, True]):
        assert len(ops.bias_act_backward(x, x, bias, "tanh", [], True, mask)) == sum(mask)
    square = distribute_tensor(torch.randn(4, 4), mesh, [Replicate()])
    for place in range(3):
        biases = [bias if i == place else None for i in range(3)]
        assert ops.gated_mlp(square, square, square, square, *biases).shape == (4, 4)


def test_process_outside_the_mesh(grid: DeviceMesh) -> None:
    """It takes part with empty results, and in ops with lists of them is told that it can't."""
    elsewhere = DeviceMesh("cpu", [1])
    x = distribute_tensor(torch.randn(4, 3), elsewhere, [Replicate()])
    weight = distribute_tensor(torch.randn(2, 3), elsewhere, [Replicate()]).requires_grad_()
    torch.ops.fastops.gated_mlp(x, weight, weight, weight.t()).sum().backward()
    assert weight.grad.to_local().numel() == 0
    with torch.no_grad():
        assert torch.ops.fastops.mlp(x, [weight], [None], "relu").to_local().numel() == 0
    with pytest.raises(NotImplementedError, match="not in the mesh"):
        torch.ops.fastops.mlp(x, [weight], [None], "relu")


def test_members_of_an_ensemble(grid: DeviceMesh) -> None:
    """The layers that to_modules() makes have DTensors, too."""
    ensemble = distribute_module(EnsembleMLP(2, 6, [5], 3), grid)
    for i, member in enumerate(ensemble.to_modules()):
        assert all(isinstance(parameter.data, DTensor) for parameter in member.parameters())
        assert torch.equal(member[0].weight.to_local(), ensemble[0].weight.to_local()[i])


def test_every_op_has_a_rule() -> None:
    """None was forgotten."""
    rules = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
    ops = [op for op in torch._C._dispatch_get_all_op_names() if op.startswith("fastops::")]
    for op in ops:
        name, _, overload = op.removeprefix("fastops::").partition(".")
        assert getattr(getattr(torch.ops.fastops, name), overload or "default") in rules, op
    assert ops


@pytest.mark.parametrize("first", ["fastops", "torch.distributed.tensor"])
def test_either_may_be_imported_first(first: str) -> None:
    """The rules are there as soon as both are, and fastops does not import DTensor itself."""
    program = f"""
import sys
import pytest
import torch
import {first}
assert {first == "fastops"} == ("torch.distributed.tensor" not in sys.modules)
import fastops, torch.distributed.tensor
from torch.distributed.tensor import DTensor
assert torch.ops.fastops.gelu.default in DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
from fastops._import_after import _Finder
assert "torch.distributed.tensor" not in [finder._name for finder in sys.meta_path if isinstance(finder, _Finder)]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
