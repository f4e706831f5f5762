"""Training on two processes gives the weights of training on one: DDP, FSDP2, tensor parallelism, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from fastops.nn import MLP, GatedMLP
from processes import needs_gloo, run_in_processes

STEPS = 3

MODULES: dict[str, Callable[[], nn.Module]] = {
    "MLP": lambda: MLP(6, [8, 4], 2, activation="silu"),
    "GatedMLP": lambda: GatedMLP(6, 8, 2),
}
# Which layers are split by columns and which by rows.
PLANS = {
    "MLP": {"0": ColwiseParallel(), "2": RowwiseParallel()},
    "GatedMLP": {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()},
}

pytestmark = needs_gloo


def seeded(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return MODULES[kind]().double()


def batch(begin: int = 0, end: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(8, size, generator=generator, dtype=torch.float64) for size in (6, 2))
    return x[begin:end], y[begin:end]


def train(module: nn.Module, x: Tensor, y: Tensor, parts: int = 1) -> None:
    """With the part of the batch's mean loss that x and y contribute."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        ((module(x) - y).square().mean() / parts).backward()
        optimizer.step()


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def assert_trained_like_one_process(module: nn.Module, kind: str) -> None:
    reference = seeded(kind)
    train(reference, *batch())
    expected = reference.state_dict()
    result = module.state_dict()
    assert result.keys() == expected.keys()
    for name, tensor in result.items():
        torch.testing.assert_close(whole(tensor), expected[name], rtol=1e-9, atol=1e-9, msg=name)


# ---- what each process does ----


def data_parallel(rank: int, mesh: DeviceMesh, kind: str, folder: str) -> None:
    module = DistributedDataParallel(seeded(kind))
    train(module, *batch(4 * rank, 4 * rank + 4))
    assert_trained_like_one_process(module.module, kind)


def sharded(rank: int, mesh: DeviceMesh, kind: str, folder: str) -> None:
    module = fully_shard(seeded(kind), mesh=mesh)
    train(module, *batch(4 * rank, 4 * rank + 4))
    assert all(isinstance(parameter, DTensor) for parameter in module.parameters())
    assert_trained_like_one_process(module, kind)


def sharded_by_layer(rank: int, mesh: DeviceMesh, kind: str, folder: str) -> None:
    module = seeded(kind)
    for layer in module.children():
        fully_shard(layer, mesh=mesh)
    train(fully_shard(module, mesh=mesh), *batch(4 * rank, 4 * rank + 4))
    assert_trained_like_one_process(module, kind)


def sharded_with_checkpoints(rank: int, mesh: DeviceMesh, kind: str, folder: str) -> None:
    """By the first FSDP, in whose backward pass the parameters are plain tensors among the layers' attributes."""
    inner = seeded(kind)
    wrapped = checkpoint_wrapper(inner)
    module = FullyShardedDataParallel(wrapped, use_orig_params=True, device_id=torch.device("cpu"))
    train(module, *batch(4 * rank, 4 * rank + 4))
    with FullyShardedDataParallel.summon_full_params(module):
        assert_trained_like_one_process(inner, kind)


def tensor_parallel(rank: int, mesh: DeviceMesh, kind: str, folder: str) -> None:
    module = parallelize_module(seeded(kind), mesh, PLANS[kind])
    train(module, *batch())
    assert any(isinstance(parameter, DTensor) for parameter in module.parameters())
    assert_trained_like_one_process(module, kind)


def tensor_parallel_in_dtensors(rank: int, mesh: DeviceMesh, kind: str, folder: str) -> None:
    """What the layers split by columns give to the activation stays a DTensor."""
    plan = {
        name: ColwiseParallel(use_local_output=False) if isinstance(style, ColwiseParallel) else style
        for name, style in PLANS[kind].items()
    }
    module = parallelize_module(seeded(kind), mesh, plan)
    train(module, *batch())
    assert_trained_like_one_process(module, kind)


def sequence_parallel(rank: int, mesh: DeviceMesh, kind: str, folder: str) -> None:
    """Each process has some of the rows before and after the layers that are split."""
    columns, rows = ColwiseParallel(input_layouts=Shard(0)), RowwiseParallel(output_layouts=Shard(0))
    plan = {name: columns if isinstance(style, ColwiseParallel) else rows for name, style in PLANS[kind].items()}
    if kind == "MLP":
        plan["4"] = ColwiseParallel(input_layouts=Shard(0), output_layouts=Shard(0))
    module = parallelize_module(seeded(kind), mesh, plan)
    train(module, *batch(4 * rank, 4 * rank + 4), parts=2)
    assert_trained_like_one_process(module, kind)


def tensor_parallel_without_hooks(rank: int, mesh: DeviceMesh, kind: str, folder: str) -> None:
    """With parameters that are DTensors, where no layer has hooks: one layer after another."""

    def distribute(name: str, layer: nn.Module, mesh: DeviceMesh) -> None:
        style = PLANS[kind].get(name)
        for key, parameter in list(layer.named_parameters(recurse=False)):
            placement = Shard(0) if isinstance(style, ColwiseParallel) else Replicate()
            if isinstance(style, RowwiseParallel) and key == "weight":
                placement = Shard(1)
            layer.register_parameter(key, nn.Parameter(distribute_tensor(parameter, mesh, [placement])))

    module = distribute_module(
        seeded(kind),
        mesh,
        distribute,
        lambda module, inputs, mesh: distribute_tensor(inputs[0], mesh, [Replicate()]),
        lambda module, output, mesh: output.redistribute(placements=[Replicate()]).to_local(),
    )
    train(module, *batch())
    assert_trained_like_one_process(module, kind)


def checkpoint(rank: int, mesh: DeviceMesh, kind: str, folder: str) -> None:
    module = fully_shard(seeded(kind), mesh=mesh)
    train(module, *batch(4 * rank, 4 * rank + 4))
    dcp.save(get_model_state_dict(module), checkpoint_id=folder)
    restored = fully_shard(MODULES[kind]().double(), mesh=mesh)
    state = get_model_state_dict(restored)
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(restored, state)
    assert_trained_like_one_process(restored, kind)


WAYS = [
    data_parallel,
    sharded,
    sharded_by_layer,
    sharded_with_checkpoints,
    tensor_parallel,
    tensor_parallel_in_dtensors,
    tensor_parallel_without_hooks,
    sequence_parallel,
    checkpoint,
]


def every_way(rank: int, mesh: DeviceMesh, kind: str, folder: str) -> None:
    for way in WAYS:
        way(rank, mesh, kind, folder)


@pytest.mark.parametrize("kind", MODULES)
def test_two_processes(kind: str, tmp_path: Path) -> None:
    """The weights are those of one process that sees the whole batch, whichever way."""
    run_in_processes(every_way, tmp_path, kind, str(tmp_path / "checkpoint"))
