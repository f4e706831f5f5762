"""Compiled graphs with ops of fastops that PyTorch keeps on disk are for the fastops that they were compiled with.

What Inductor generates relies on the strides of an op's results, and the key of its caches knows PyTorch's version, but
not ours. Imported right after ``torch._inductor.codecache``, whose ``FxGraphHashDetails`` is what both that key and
AOTAutograd's are made from.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import torch.compiler.config
from torch import fx

from ._library import library_path
from ._torch_internal import MissingError

try:
    from ._torch_internal import FxGraphHashDetails
except MissingError:
    torch.compiler.config.force_disable_caches = True
    raise

_make = FxGraphHashDetails.__init__


@functools.wraps(_make)
def _make_with_ours(self: Any, gm: Any, *arguments: Any, **keywords: Any) -> None:
    _make(self, gm, *arguments, **keywords)
    if _has_our_ops(gm):
        self.fastops = build_id()


FxGraphHashDetails.__init__ = _make_with_ours


@functools.cache
def build_id() -> str:
    """Tells one build of fastops from every other, released or not."""
    return hashlib.sha256(Path(library_path()).read_bytes()).hexdigest()


def _has_our_ops(module: Any) -> bool:
    if not isinstance(module, fx.GraphModule):
        return False
    graphs = [part.graph for part in module.modules() if isinstance(part, fx.GraphModule)]
    # The name of an op and that of its overloads begin alike; torch.ops.fastops.relu and .relu.default both occur.
    return any(str(node.target).startswith("fastops.") for graph in graphs for node in graph.nodes)
