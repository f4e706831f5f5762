"""Trains a gated network on many devices, with sharded parameters, tensor parallelism and restarts.

On one machine, with two processes (on CPUs by gloo, on GPUs by NCCL or RCCL):

    torchrun --standalone --nproc-per-node=2 examples/distributed.py

docs/distributed.md has the commands for several machines, and what else works. The network is a stack of residual
blocks ``x + down(silu(gate(norm(x))) * up(norm(x)))`` of ``fastops.nn.GatedMLP``; it learns what a network with random
weights says of random rows. The processes form a mesh of two dimensions. Over the first, ``data``, each has rows of its
own and a part of every parameter (FSDP2). Over the second, ``tensor``, of the size ``--tensor-parallel``, the hidden
features of each block are split, and one sum brings them together.

With ``--checkpoints FOLDER`` the state is saved every few steps, and whoever starts again begins with the last complete
checkpoint. Which rows a step sees follows from the seed and the step alone, so that nothing else has to be saved: a
worker that is killed (``--kill-at STEP`` does it on purpose) and started again by ``torchrun --max-restarts`` continues
the loss curve of a run that was not. ``--losses`` writes the curve, ``--compare`` fails if another run's is another:

    torchrun --standalone --nproc-per-node=2 examples/distributed.py --losses whole.csv
    torchrun --standalone --nproc-per-node=2 --max-restarts=1 examples/distributed.py \\
        --checkpoints checkpoints --kill-at 25 --losses killed.csv --compare whole.csv
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from common import announce, arguments, console, folder, positive
from rich.console import Console
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import fastops

ROWS, FEATURES, CLASSES = 4096, 32, 10
WIDTH, HIDDEN, BLOCKS = 64, 192, 3
BATCH_SIZE = 96  # of all processes together
# Of losses, in float32. The sums of other numbers of processes have another order; Adam carries that along.
TOLERANCE = 1e-4


def restarts() -> int:
    """How often torchrun has started the processes again because one of this machine failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def processes() -> Iterator[torch.device]:
    """The processes that torchrun started, or this one alone; gives the device of this one."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    os.environ.update({name: value for name, value in alone.items() if name not in os.environ})
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = torch.device("cpu")
    if accelerator is not None and dist.get_default_backend_for_device(accelerator) != "gloo":
        device = torch.device(accelerator.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    store, rank, size = next(dist.rendezvous("env://"))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # torchrun's own store outlives the processes: a restart would find the addresses of those that are gone.
        store = dist.PrefixStore(f"restart-{restarts()}", store)
    dist.init_process_group(dist.get_default_backend_for_device(device), store=store, rank=rank, world_size=size)
    yield device
    dist.destroy_process_group()


def make_network(mesh: DeviceMesh, seed: int) -> nn.Module:
    """The network, with the same weights on any mesh.

    Each process makes it whole and keeps its part. One that is too large for that is made on the meta device, and gets
    its weights from a checkpoint.
    """
    torch.manual_seed(seed)
    blocks = [fastops.nn.GatedMLP(WIDTH, HIDDEN, norm="rms", residual=True) for _ in range(BLOCKS)]
    network = nn.Sequential(nn.Linear(FEATURES, WIDTH), *blocks, nn.RMSNorm(WIDTH), nn.Linear(WIDTH, CLASSES))
    network.to(mesh.device_type)
    for block in blocks:
        if mesh["tensor"].size() > 1:
            plan = {
                "gate_proj": ColwiseParallel(),
                "up_proj": ColwiseParallel(),
                "down_proj": RowwiseParallel(),
            }
            parallelize_module(block, mesh["tensor"], plan)
        fully_shard(block, mesh=mesh["data"])
    return fully_shard(network, mesh=mesh["data"])


class Rows:
    """Rows with labels, of which a step takes the same ones whenever it is computed, and by how many processes."""

    def __init__(self, mesh: DeviceMesh, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        features = torch.randn(ROWS, FEATURES, generator=random)
        hidden, last = (torch.randn(FEATURES, size, generator=random) for size in (FEATURES, CLASSES))
        labels = ((features @ hidden).relu() @ last).argmax(1)
        self.features, self.labels = features.to(mesh.device_type), labels.to(mesh.device_type)
        self.rank, self.ranks, self.seed = mesh["data"].get_local_rank(), mesh["data"].size(), seed

    def of_step(self, step: int) -> tuple[Tensor, Tensor]:
        """This process's part of the batch. Processes that share the parts of a tensor see the same rows."""
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        batch = torch.randint(len(self.labels), (BATCH_SIZE,), generator=random)
        mine = batch[self.rank :: self.ranks].to(self.labels.device)
        return self.features[mine], self.labels[mine]


class Training(Stateful):
    """Network, optimizer and the number of steps so far: what a checkpoint has."""

    def __init__(self, mesh: DeviceMesh, rows: Rows, seed: int) -> None:
        self.mesh, self.rows = mesh, rows
        self.network = make_network(mesh, seed)
        self.adam = torch.optim.AdamW(self.network.parameters(), lr=1e-3)
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        network, adam = get_state_dict(self.network, self.adam)
        return {"network": network, "adam": adam, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.network, self.adam, model_state_dict=state["network"], optim_state_dict=state["adam"])
        self.step = state["step"]

    def train_step(self) -> float:
        """One step; gives the loss of the whole batch."""
        features, labels = self.rows.of_step(self.step)
        loss = F.cross_entropy(self.network(features), labels)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        self.step += 1
        mean = loss.detach() / self.rows.ranks
        dist.all_reduce(mean, group=self.mesh["data"].get_group())
        return float(mean)


class Checkpoints:
    """Folders ``step-N``. One is complete when it has its metadata, which is written last."""

    def __init__(self, path: Path, every: int, is_asynchronous: bool) -> None:
        self.path, self.every, self.is_asynchronous = path, every, is_asynchronous
        # The training's own messages must not meet those of a checkpoint that is written meanwhile.
        self.group = dist.new_group(backend="gloo")
        self.saving: Future[Any] | None = None

    def load_last(self, training: Training) -> None:
        """Loads the last complete checkpoint, if there is one."""
        complete = sorted(int(metadata.parent.name[5:]) for metadata in self.path.glob("step-*/.metadata"))
        last = complete[-1:]
        dist.broadcast_object_list(choice := [last], src=0, group=self.group)  # all take what the first one sees
        for step in choice[0]:
            dcp.load({"training": training}, checkpoint_id=self.folder(step), process_group=self.group)

    def save(self, training: Training) -> None:
        """Saves where it is time to; asynchronously, this process waits only for its state to be copied."""
        if training.step % self.every:
            return
        self.wait()
        state, where = {"training": training}, self.folder(training.step)
        if self.is_asynchronous:
            self.saving = dcp.async_save(state, checkpoint_id=where, process_group=self.group)
        else:
            dcp.save(state, checkpoint_id=where, process_group=self.group)

    def wait(self) -> None:
        if self.saving is not None:
            self.saving.result()
            self.saving = None

    def folder(self, step: int) -> str:
        return str(self.path / f"step-{step}")


class Log:
    """The loss of every step, in a file that the restarts of a run share; written by one process."""

    def __init__(self, path: Path | None, is_continued: bool) -> None:
        self.path = path if dist.get_rank() == 0 else None
        if self.path is not None and not is_continued:
            folder(self.path.parent)
            self.path.write_text("step,loss\n")

    def append(self, step: int, loss: float) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(f"{step},{loss!r}\n")


def read_log(path: Path) -> list[tuple[int, float]]:
    """Steps and losses. Those between a checkpoint and the end of a worker are there twice."""
    with path.open() as file:
        return [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file)]


def compare(ours: Path, other: Path, steps: int, out: Console) -> None:
    """Ends the program if there is a step in which the losses differ, or that is missing."""
    losses, references = read_log(ours), dict(read_log(other))
    missing = set(range(steps)) - (dict(losses).keys() & references.keys())
    if missing:
        raise SystemExit(f"distributed: {ours} or {other} lacks {len(missing)} steps, first {min(missing)}")
    differences = [abs(loss - references[step]) / (1 + references[step]) for step, loss in losses]
    out.print(f"{len(losses)} losses of {steps} steps: those of {other} differ by at most {max(differences):.1e}")
    for (step, _), difference in zip(losses, differences, strict=True):
        if not difference <= TOLERANCE:  # so that a NaN fails
            raise SystemExit(f"distributed: the losses differ by {difference:.1e} at step {step}")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("Trains a gated network on many devices.", threads=1)
    parser.add_argument("--steps", type=positive, default=60, help="steps of the whole run")
    parser.add_argument("--tensor-parallel", type=positive, default=1, help="processes that share each block")
    parser.add_argument("--checkpoints", type=Path, help="folder that all processes reach; none without it")
    parser.add_argument("--every", type=positive, default=10, help="steps between two checkpoints")
    parser.add_argument("--asynchronous", action="store_true", help="train on while a checkpoint is written")
    parser.add_argument("--kill-at", type=int, help="the step at which the last process is killed the first time")
    parser.add_argument("--losses", type=Path, help="file for the loss of every step")
    parser.add_argument("--compare", type=Path, help="the log of another run, which --losses must equal")
    options = parser.parse_args(argv)
    if options.compare and not options.losses:
        parser.error("--compare needs --losses")
    return options


def make_mesh(device: torch.device, tensor_parallel: int) -> DeviceMesh:
    data, rest = divmod(dist.get_world_size(), tensor_parallel)
    if rest or HIDDEN % tensor_parallel or BATCH_SIZE % data:
        raise SystemExit(
            f"distributed: --tensor-parallel must divide the number of processes, {dist.get_world_size()}, and "
            f"{HIDDEN} hidden features, and the rest of the processes {BATCH_SIZE} rows; it is {tensor_parallel}"
        )
    return init_device_mesh(device.type, (data, tensor_parallel), mesh_dim_names=("data", "tensor"))


def run(options: argparse.Namespace, device: torch.device, out: Console) -> None:
    mesh = make_mesh(device, options.tensor_parallel)
    training = Training(mesh, Rows(mesh, options.seed), options.seed)
    checkpoints = Checkpoints(options.checkpoints, options.every, options.asynchronous) if options.checkpoints else None
    if checkpoints is not None:
        checkpoints.load_last(training)
    what = (
        f"{BLOCKS} gated blocks of {WIDTH} and {HIDDEN} on {mesh.size()} processes, {options.tensor_parallel} a block"
    )
    announce(out, what)
    out.print(f"Begins with step {training.step}, after {restarts()} restarts")
    log = Log(options.losses, is_continued=restarts() > 0 or training.step > 0)
    while training.step < options.steps:
        if training.step == options.kill_at and restarts() == 0 and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        step = training.step
        loss = training.train_step()
        log.append(step, loss)
        if training.step % options.every == 0:
            out.print(f"step {training.step:5}: loss {loss:.5f}")
        if checkpoints is not None:
            checkpoints.save(training)
    if checkpoints is not None:
        checkpoints.wait()
    if options.compare and dist.get_rank() == 0:
        compare(options.losses, options.compare, options.steps, out)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    torch.set_num_threads(options.threads)
    with processes() as device:
        out = console()
        out.quiet = dist.get_rank() > 0
        run(options, device, out)


if __name__ == "__main__":
    main()
