"""fastops: fused neural-network ops for PyTorch, differentiable to any order.

``fastops.nn`` has the modules, ``fastops.functional`` the functions, ``torch.ops.fastops`` the ops themselves.
``fastops.compile`` has what belongs to ``torch.compile(model, backend="fastops")``, ``fastops.memory`` what belongs to
the memory that is kept on the CPU.
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import _library  # noqa: F401  (loads the native library: must come first)
from . import _gpu, backends, functional, memory, nn
from ._build import version as __version__
from ._decompositions import decompositions
from ._fuse import fuse
from ._import_after import import_after
from ._library import library_path
from .info import info

if TYPE_CHECKING:
    from . import compile as compile

__all__ = ["__version__", "backends", "decompositions", "functional", "fuse", "info", "library_path", "memory", "nn"]

# What needs a part of torch that `import torch` leaves out, and that takes longer to import than all of fastops, waits
# for whoever imports that first.
import_after("torch.distributed.tensor", "fastops._sharding")
import_after("torch.utils.flop_counter", "fastops._flops")  # imports triton
import_after("torch._dynamo.backends.registry", "fastops._dynamo")
import_after("torch._inductor.codecache", "fastops._compile_cache")
import_after("torch.fx.experimental.proxy_tensor", "fastops._dropout_seeds")

_gpu.load_when_used()
backends.load_all()


def __getattr__(name: str) -> Any:
    # Importing it takes longer than importing all of fastops.
    if name == "compile":
        return importlib.import_module("fastops.compile")
    raise AttributeError(f"module 'fastops' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "compile"]
