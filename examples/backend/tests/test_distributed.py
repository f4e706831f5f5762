"""Two processes that train one model, their tensors on the device."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def model_and_data() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """The same in every process."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return model, torch.randn(8, 6), torch.randn(8, 1)


def step(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """One step of training."""
    torch.nn.functional.mse_loss(model(x), y).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def work(rank: int, folder: str) -> None:
    """One of two processes."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("hostmem", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
    device = torch.device("hostmem", rank)
    x = torch.full((3,), rank + 1.0, device=device)
    dist.all_reduce(x)
    assert x.tolist() == [3, 3, 3]
    dist.broadcast(x.fill_(rank), 1)
    assert x.tolist() == [1, 1, 1]
    parts = [torch.zeros(2, device=device) for _ in range(2)]
    dist.all_gather(parts, torch.full((2,), float(rank), device=device))
    assert [part.tolist() for part in parts] == [[0, 0], [1, 1]]
    dist.barrier()

    model, x, y = model_and_data()
    if rank == 1:
        torch.nn.init.ones_(model[0].weight)  # DDP makes it that of rank 0
    model = torch.nn.parallel.DistributedDataParallel(model.to(device))
    mine = slice(4 * rank, 4 * rank + 4)
    for _ in range(3):
        model.zero_grad()
        step(model, x[mine].to(device), y[mine].to(device))
    torch.save([parameter.detach().cpu() for parameter in model.parameters()], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")
def test_ddp(tmp_path: Path) -> None:
    """The parameters are those of one process with the whole batch."""
    mp.start_processes(work, (str(tmp_path),), nprocs=2, start_method="spawn")
    model, x, y = model_and_data()
    for _ in range(3):
        model.zero_grad()
        step(model, x, y)
    for rank in range(2):
        for result, expected in zip(torch.load(tmp_path / f"{rank}.pt"), model.parameters(), strict=True):
            torch.testing.assert_close(result, expected.detach())
