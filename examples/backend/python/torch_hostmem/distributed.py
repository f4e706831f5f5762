"""A process group for this device: its tensors travel through host memory, with gloo.

``torch.distributed.init_process_group("hostmem")``, or ``"cpu:gloo,hostmem:hostmem"`` for both kinds of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class StagedGroup(dist.ProcessGroup):
    """gloo on copies of the tensors in host memory; what it writes is copied back."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:  # noqa: N802  (PyTorch's name)
        """The name in init_process_group."""
        return "hostmem"

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """Sums, or what the options say."""
        return _staged(tensors, lambda host: self.gloo.allreduce(host, opts or dist.AllreduceOptions()))

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """The tensors of one rank on all."""
        return _staged(tensors, lambda host: self.gloo.broadcast(host, opts or dist.BroadcastOptions()))

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """The tensors of all ranks on all."""
        host = [_to_host(row) for row in outputs]
        self.gloo.allgather(host, _to_host(inputs)).wait()
        for row, host_row in zip(outputs, host, strict=True):
            _copy(row, host_row)
        return _done(outputs)

    def barrier(self, opts: Any = None) -> dist.Work:
        """Waits for all ranks."""
        self.gloo.barrier().wait()
        return _done([])


def _to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().cpu() for tensor in tensors]


def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)


def _staged(tensors: list[torch.Tensor], run: Any) -> dist.Work:
    host = _to_host(tensors)
    run(host).wait()
    _copy(tensors, host)
    return _done(tensors)


def _done(result: Any) -> dist.Work:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return torch._C._distributed_c10d._create_work_from_future(future)


def _create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> StagedGroup:
    return StagedGroup(store, rank, size, timeout)


if dist.is_available():
    dist.Backend.register_backend("hostmem", _create, devices=["hostmem"])
