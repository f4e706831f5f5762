"""Training on two processes gives the weights of training on one: DDP, FSDP2, tensor parallelism, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, multiprocessing, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from fastops.nn import MLP, GatedMLP

WORLD = 2
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

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
each_module = pytest.mark.parametrize("kind", MODULES)


def seeded(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return MODULES[kind]().double()


def batch(begin: int = 0, end: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(8, size, generator=generator, dtype=torch.float64) for size in (6, 2))
    return x[begin:end], y[begin:end]


def train(module: nn.Module, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (module(x) - y).square().mean().backward()
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


def tensor_parallel(rank: int, mesh: DeviceMesh, kind: str, folder: str) -> None:
    module = parallelize_module(seeded(kind), mesh, PLANS[kind])
    train(module, *batch())
    assert any(isinstance(parameter, DTensor) for parameter in module.parameters())
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


def start(rank: int, work: Callable[[int, DeviceMesh, str, str], None], kind: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    work(rank, init_device_mesh("cpu", (WORLD,)), kind, f"{folder}/checkpoint")
    dist.destroy_process_group()
    # Without the interpreter's teardown, during which gloo's threads may still drop Python objects: that aborts.
    os._exit(0)


@each_module
@pytest.mark.parametrize("work", [data_parallel, sharded, sharded_by_layer, tensor_parallel, checkpoint])
def test_two_processes(work: Callable[..., None], kind: str, tmp_path: Path) -> None:
    """The weights are those of one process that sees the whole batch."""
    multiprocessing.spawn(start, (work, kind, str(tmp_path)), nprocs=WORLD)
