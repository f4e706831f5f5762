"""What a result was measured on, and with."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

import fastops


@dataclass(frozen=True)
class Machine:
    """The machine and the versions, as they go with every result."""

    cpu: str
    cores: int
    device: str
    threads: int
    capability: str
    fastops: str
    torch: str
    zentorch: str
    platform: str
    date: str

    def __str__(self) -> str:
        other = "" if self.device == "cpu" else f", {self.device}"
        return (
            f"{self.cpu}{other}, {self.threads} thread(s) on {self.cores} core(s), {self.capability}; "
            f"fastops {self.fastops}, torch {self.torch}" + (f", zentorch {self.zentorch}" if self.zentorch else "")
        )


def this_machine(device: torch.device) -> Machine:
    """The machine that this runs on, using this device."""
    return Machine(
        cpu=cpu_model(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        device=device_name(device),
        threads=torch.get_num_threads(),
        capability=fastops._C.cpu_capability(),
        fastops=fastops.__version__,
        torch=torch.__version__,
        zentorch=_version("zentorch"),
        platform=platform.platform(),
        date=datetime.date.today().isoformat(),
    )


def warning() -> str:
    """A sentence where other programs run beside this one, else nothing: threads then wait for each other."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return f"The load average is {load:.1f}: on a busy machine times and roofs are far off." if load > 0.5 else ""


def cpu_model() -> str:
    """The processor's name; Python's platform.processor() has only the architecture on Linux."""
    if platform.system() == "Linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return " ".join(value.split())
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return platform.processor() or platform.machine()


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
