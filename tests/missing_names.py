"""What fastops does where torch lacks a private name: a server that tries it in a process of its own for each name.

Reads lines ``place<tab>use`` (as in fastops._torch_internal) and answers each with a line of JSON: the warnings, the
error of the feature that needs the name, and what else went wrong. The processes are forked from one that has loaded
torch, which takes longer than all else.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
import torch._dynamo.backends.registry
import torch._functorch.aot_autograd
import torch._inductor.compile_fx
import torch.distributed.tensor
import torch.nn.functional as F
from torch import Tensor, nn


def remove(place: str) -> None:
    """Lets fastops._torch_internal find a module that lacks a name. torch itself still has it."""
    name, _, path = place.partition(":")
    copy = ModuleType(name)
    copy.__dict__.update(vars(importlib.import_module(name)))
    first, _, rest = path.partition(".")
    if rest:
        setattr(copy, first, SimpleNamespace())
    else:
        delattr(copy, path)
    import_module = importlib.import_module

    def import_without(wanted: str, package: str | None = None) -> ModuleType:
        is_ours = sys._getframe(1).f_globals["__name__"] == "fastops._torch_internal"
        return copy if is_ours and wanted == name else import_module(wanted, package)

    importlib.import_module = import_without


def check_op() -> None:
    """Whether an op gives what PyTorch's does."""
    import fastops

    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.ops.fastops.softshrink(x, 0.3), F.softshrink(x, 0.3))
    torch.testing.assert_close(fastops.functional.gelu(x), F.gelu(x))


def modules() -> None:
    """Modules as one op: their hooks are called, and the results are right, compiled as well."""
    import fastops

    model = fastops.nn.MLP(4, [5], 3, activation="gelu")
    first, _, last = model
    x = torch.randn(2, 4)
    expected = last(F.gelu(first(x)))
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(torch.compile(model, backend="aot_eager")(x), expected)
    called: list[nn.Module] = []
    with nn.modules.module.register_module_forward_hook(lambda module, args, result: called.append(module)):
        model(x)
    assert first in called


def checkpoints() -> None:
    """Modules with checkpoint=True are trained as without."""
    import fastops

    x = torch.randn(3, 6)
    mlp = fastops.nn.MLP(6, [8, 8], 6, activation="silu", norm="rms", norm_first=True, checkpoint=True)
    gradients = []
    for mlp.checkpoint in (True, False):
        gradients.append(torch.autograd.grad(mlp(x).square().sum(), list(mlp.parameters())))
    torch.testing.assert_close(*gradients)


def fuse() -> None:
    """A function that is an op of ours, and one that is not; both where they are differentiated, too."""
    import fastops

    ours = fastops.fuse(lambda x: (F.relu(x), F.relu(x)))
    other = fastops.fuse(lambda x: torch.sin(x) * x)
    x = torch.randn(5)

    def results(relu: Callable[[Tensor], tuple[Tensor, ...]], sine: Callable[[Tensor], Tensor]) -> list[Tensor]:
        tangents = torch.func.jvp(sine, (x,), (torch.ones(5),))
        return [*relu(x), sine(x), *tangents, torch.func.vmap(sine)(x.reshape(5, 1))]

    torch.testing.assert_close(results(ours, other), results(lambda x: (F.relu(x),) * 2, lambda x: torch.sin(x) * x))


def sequential() -> tuple[nn.Module, Tensor]:
    """A model, and an input."""
    return nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3), nn.Softmax(-1)), torch.randn(2, 4)


def backend() -> None:
    """The backend of torch.compile, with another one for the rest."""
    model, x = sequential()
    compiled = torch.compile(model, backend="fastops", options={"backend": "eager"})
    torch.testing.assert_close(compiled(x), model(x))


def backend_with_inductor() -> None:
    """The same with Inductor, which there is no time for."""
    model, x = sequential()
    torch.compile(model, backend="fastops")(x)


def explain() -> None:
    """fastops.compile.explain."""
    import fastops

    fastops.compile.explain(*sequential())


def caches() -> None:
    """Nothing may be kept under a key that does not know fastops."""
    assert torch._inductor.config.force_disable_caches


def sharding() -> None:
    """None of the rules is registered, or all are."""
    propagator = torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator
    assert not any(str(op).startswith("fastops.") for op in propagator.op_strategy_funcs)


def roofs() -> None:
    """What is not known has no roof."""
    from fastops.bench.roofs import _has_bfloat16_matrices

    assert _has_bfloat16_matrices()


def gpu() -> None:
    """A torch for NVIDIA's GPUs, with a library of kernels for them."""
    from fastops import _gpu

    torch.version.cuda, torch.version.hip = "13.0", None
    _gpu._BINDINGS = Path(__file__)
    _gpu._libraries = lambda: [Path("libfastops_cuda.so")]
    _gpu.load_when_used()
    if _gpu.state["cuda"] != "not loaded, as torch has used no GPU":
        raise RuntimeError(_gpu.state["cuda"])


FEATURES: dict[str, Callable[[], object]] = {
    "modules as one op": modules,
    "modules with checkpoint=True under torch.func": checkpoints,
    "fastops.fuse": fuse,
    "torch.compile with backend='fastops'": backend,
    "what backend='fastops' leaves to Inductor": backend_with_inductor,
    "fastops.compile.explain": explain,
    "caching compiled graphs": caches,
    "fastops.info": lambda: importlib.import_module("fastops").info(),
    "fastops.decompositions": lambda: importlib.import_module("fastops").decompositions(),
    "ops on DTensors": sharding,
    "kernels for GPUs that are loaded once torch uses one": gpu,
    "fastops.bench": roofs,
    "fastops.bench with zentorch": lambda: importlib.import_module("fastops._torch_internal").inductor_config,
}


def attempt(place: str, use: str) -> dict[str, object]:
    """Imports fastops, runs an op and the feature."""
    remove(place)
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_op()
        try:
            FEATURES[use.partition(" and ")[0]]()
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
    return {"warnings": [str(warning.message) for warning in caught], "error": error, "failed": None}


def main() -> None:
    importlib.import_module("torch._inductor.codecache")
    print("ready", flush=True)
    for line in sys.stdin:
        place, use = line.rstrip("\n").split("\t")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                answer = attempt(place, use)
            except BaseException:
                answer = {"failed": traceback.format_exc()}
            with open(writing, "wb") as pipe:
                pipe.write(json.dumps(answer).encode())
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            print(pipe.read().decode(), flush=True)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
