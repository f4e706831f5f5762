"""What a bug report needs: versions, the torch build, the libraries in use, and which ops are native where."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path
from typing import NamedTuple

import torch

from . import _C, _build, _distributions, _gpu, _torch_internal, backends
from ._library import folders, library_path, op_names
from .memory import Stats, stats

# torch's device types with the dispatch key that their kernels are registered under.
_DEVICES = {"cpu": "CPU", "cuda": "CUDA", "mps": "MPS", "xpu": "XPU"}

_LIBRARIES = {".so", ".dylib", ".dll"}


class Info(NamedTuple):
    """The state of this installation; ``print`` it for a bug report."""

    fastops: str
    """The version."""
    installed_as: str
    """The distribution, and where."""
    torch: str
    """The version that is imported."""
    built_for_torch: str
    """The version whose headers the library was compiled with."""
    library: str
    """The one for this torch."""
    libraries_for_torch: str
    """The minors of torch that this installation has a library for."""
    compiler: str
    """The one that compiled the library, with its version."""
    python: str
    """The version."""
    platform: str
    """``platform.platform()``."""
    cpu_capability: str
    """The instruction set of the CPU kernels in use."""
    threads: int
    """``torch.get_num_threads()``."""
    memory: Stats
    """What is kept of CPU results and workspaces (:mod:`fastops.memory`)."""
    kernels: dict[str, str]
    """For each kind of device, the library of kernels that is loaded, or why none is."""
    environment: dict[str, str]
    """The variables that are set, of ``ATEN_CPU_CAPABILITY`` and those whose names begin with ``FASTOPS_``."""
    backends: dict[str, str]
    """For each installed backend of another package, whether it was loaded, and from where."""
    native: dict[str, dict[str, bool]]
    """For each op, for each available device, whether it has a kernel of its own there. Where it has none it runs
    through PyTorch's ops; the kernels of ``linear_act``, ``mlp`` and ``gated_mlp`` use PyTorch's matrix products where
    those are faster."""

    def __str__(self) -> str:
        lines = [f"{field}: {getattr(self, field)}" for field in self._fields[:-5]]
        lines.append(f"memory kept: {self.memory.kept / 2**20:.1f} MiB of at most {self.memory.limit / 2**20:.1f}")
        lines += [f"kernels for {kind}: {state}" for kind, state in self.kernels.items()]
        lines += [f"{name}={value}" for name, value in self.environment.items()]
        lines += [f"backend {name}: {state}" for name, state in self.backends.items()]
        for device in next(iter(self.native.values())):
            for kind, wanted in (("native kernels", True), ("through PyTorch's ops", False)):
                ops = [op for op, devices in self.native.items() if devices[device] is wanted]
                lines.append(f"{device}, {kind}: {', '.join(ops) or 'none'}")
        return "\n".join(lines)


def info() -> Info:
    """The versions, the CPU capability in use and the native ops of this installation."""
    _gpu.load_now()
    keys = _DEVICES | {_torch_internal.privateuse1_name(): "PrivateUse1"}
    devices = ["cpu"] + [name for name in keys if name != "cpu" and _available(name)]
    ops = sorted(name.removeprefix("fastops::") for name in op_names() if "." not in name and not name.endswith("_"))
    return Info(
        fastops=_build.version,
        installed_as=_installed_as(),
        torch=torch.__version__,
        built_for_torch=_C.torch_version,
        library=library_path(),
        libraries_for_torch=", ".join(folders()),
        compiler=_C.compiler,
        python=platform.python_version(),
        platform=platform.platform(),
        cpu_capability=_C.cpu_capability(),
        threads=torch.get_num_threads(),
        memory=stats(),
        kernels={kind: _kernels(kind) for kind in ("cpu", "cuda", "hip")},
        environment={
            _printable(name): _printable(value)
            for name, value in os.environ.items()
            if name.startswith("FASTOPS_") or name == "ATEN_CPU_CAPABILITY"
        },
        backends=dict(backends.state),
        native={
            op: {device: _torch_internal.has_kernel(f"fastops::{op}", keys[device]) for device in devices} for op in ops
        },
    )


def _installed_as() -> str:
    place = sys.modules["fastops"].__file__
    found = [
        f"{_distributions.label(one)} in {one.locate_file('')}"
        for one in _distributions.installed(sys.modules["fastops"].__path__)
    ]
    return " and ".join(found) or f"no distribution, but copied to {os.path.dirname(place or '')}"


def _kernels(kind: str) -> str:
    if kind in _gpu.state:
        return _gpu.state[kind]
    places = [Path(place) for place in sys.modules["fastops"].__path__]
    files = [file for place in places for file in place.glob(f"*fastops_{kind}.*") if file.suffix in _LIBRARIES]
    if not files:
        return "none, as this fastops was built without them"
    if not _is_loaded(files[0]):
        return f"not loaded, as libfastops was built without {files[0]}"
    return f"loaded, {files[0]}"


def _is_loaded(library: Path) -> bool:
    if sys.platform == "win32":
        return bool(ctypes.windll.kernel32.GetModuleHandleW(library.name))
    try:
        ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return True


def _printable(text: str) -> str:
    r"""Text from the environment, whose bytes need not be UTF-8: others are written as \xff."""
    return os.fsencode(text).decode(errors="backslashreplace")


def _available(device: str) -> bool:
    module = torch.backends.mps if device == "mps" else getattr(torch, device, None)
    return module is not None and module.is_available()
