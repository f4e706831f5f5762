"""Kernels for GPUs in libraries that any torch can load, ``libfastops_hip.so`` and ``libfastops_cuda.so``.

Beside each lies the list of the GPUs that it has code for, and in the folder for a torch the ops in terms of them. They
are loaded when torch begins to use its GPUs: neither on machines without, nor while anybody imports fastops. Without
them the ops run through PyTorch's on a GPU, so whatever goes wrong is a line of :func:`fastops.info`, never an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path
from typing import Any

import torch

from . import _torch_internal
from ._library import folder

_BINDINGS = folder / "gpu_bindings.so"
_UNUSABLE = "_ZN7fastops3hip8unusableEv"  # fastops::hip::unusable(), in src/backends/hip/kernels.h

state: dict[str, str] = {}
"""What became of each library that is there, by its kind."""


def load_when_used() -> None:
    """Sees to it that the library for this torch is loaded once torch uses a GPU, if there is one."""
    if not _BINDINGS.exists():
        return
    kind = "hip" if torch.version.hip else "cuda" if torch.version.cuda else ""
    found = {library.stem.removeprefix("libfastops_"): library for library in _libraries()}
    for other in found.keys() - {kind}:
        state[other] = f"not loaded, as this torch is not built for {'AMD' if other == 'hip' else 'NVIDIA'}'s GPUs"
    if kind in found:
        state[kind] = "not loaded, as torch has used no GPU"
        try:
            _torch_internal.call_with_first_gpu(lambda: _load(kind, found[kind]))
        except _torch_internal.MissingError as error:
            state[kind] = f"not loaded: {error}"


def load_now() -> None:
    """What would come with the first use of a GPU, if there is one."""
    if state and torch.cuda.is_available():
        with contextlib.suppress(RuntimeError):  # in a process that was forked from one which uses GPUs
            torch.cuda.init()


def _libraries() -> list[Path]:
    places = [Path(place) for place in sys.modules["fastops"].__path__]
    return [file.with_suffix(".so") for place in places for file in place.glob("libfastops_*.txt")]


def _load(kind: str, library: Path) -> None:
    if state[kind].startswith("loaded"):
        return
    try:
        trouble = _trouble(library)
        if not trouble:
            torch.ops.load_library(str(_BINDINGS))
        state[kind] = f"not loaded, as {trouble}" if trouble else f"loaded, {library}"
    except Exception as error:
        state[kind] = f"not loaded: {type(error).__name__}: {error}"


def _trouble(library: Path) -> str:
    """Loads the launchers. What keeps them from being used here; empty if nothing does."""
    code = library.with_suffix(".txt").read_text().split()
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpu = _name(properties)
        if not any(_runs(one, gpu) for one in code):
            return f"GPU {index}, {properties.name}, is {gpu}, and {library} has code for {', '.join(code)}"
    unusable = getattr(ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL), _UNUSABLE)
    unusable.restype = ctypes.c_char_p
    return (unusable() or b"").decode()


def _name(properties: Any) -> str:
    """A GPU's name as compilers have it."""
    if torch.version.hip:
        return properties.gcnArchName.partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def _runs(code: str, gpu: str) -> bool:
    """Whether a GPU runs code.

    NVIDIA's run that of their generation and PTX of their own and of earlier GPUs. Code with what is special to a GPU
    ("sm_90a") runs on that one alone, and with what is special to a family ("sm_100f") on its generation.
    """
    if code.startswith("gfx"):
        return code == gpu
    kind, _, number = code.partition("_")
    if number.endswith("a"):
        return gpu == f"sm_{number[:-1]}"
    has, wants = (divmod(int(text), 10) for text in (gpu.partition("_")[2], number.removesuffix("f")))
    is_for_later = kind == "compute" and not number.endswith("f")
    return has >= wants and (is_for_later or has[0] == wants[0])
