"""What fastops is compared with, each made ready for a workload."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from . import models
from .workloads import INFERENCE, Contender, Network, Workload

FASTOPS = "fastops"
PEERS = ("eager", "func", "cuda-graphs", "compile", "fastops-compile", "zentorch", "zentorch-linear")
EAGER, FUNC, CUDA_GRAPHS, COMPILE, FASTOPS_COMPILE, ZENTORCH, ZENTORCH_LINEAR = PEERS

DESCRIPTIONS = {
    FASTOPS: "fastops, eagerly",
    EAGER: "PyTorch, eagerly",
    FUNC: "PyTorch's torch.func: derivatives by jacfwd over jacrev, ensembles by vmap",
    CUDA_GRAPHS: "PyTorch, as CUDA graphs (torch.cuda.make_graphed_callables)",
    COMPILE: "torch.compile of PyTorch's model (Inductor, static shapes)",
    FASTOPS_COMPILE: "torch.compile of PyTorch's model with fastops' backend",
    ZENTORCH: "torch.compile of PyTorch's model with zentorch's backend, weights frozen and packed",
    ZENTORCH_LINEAR: "zentorch's linear op with its fused activation, or PyTorch's where it has none",
}


class UnavailableError(Exception):
    """A peer cannot do a workload here; the message says why."""


def prepare(peer: str, workload: Workload, mode: str, device: torch.device) -> Contender:
    """The peer's way to do the workload. Compilers compile at the first call.

    Raises:
        UnavailableError: the peer cannot do this.
    """
    return _PREPARE[peer](workload, mode, device)


def installed(peer: str) -> bool:
    """Whether what the peer needs is there: a GPU, a package."""
    if peer == CUDA_GRAPHS:
        return torch.cuda.is_available()
    return not peer.startswith(ZENTORCH) or importlib.util.find_spec("zentorch") is not None


def _func(workload: Workload, mode: str, device: torch.device) -> Contender:
    eager = workload.pytorch(device)
    if isinstance(eager.call, models.Ensemble):
        return Contender(models.EnsembleByVmap(eager.call), eager.parameters)
    if not isinstance(eager.call, models.Derivative):
        raise UnavailableError("it is for derivatives and ensembles")
    transformed = eager.call.by_transforms()
    if transformed is None:
        raise UnavailableError("PyTorch has no forward mode of an activation's backward")
    return Contender(transformed, eager.parameters)


def _not_derivatives(contender: Contender) -> Contender:
    if isinstance(contender.call, models.Derivative):
        raise UnavailableError("it does not take torch.autograd.grad within what it compiles")
    return contender


def _cuda_graphs(workload: Workload, mode: str, device: torch.device) -> Contender:
    eager = _not_derivatives(workload.pytorch(device))
    if device.type != "cuda":
        raise UnavailableError("it is for GPUs that PyTorch calls cuda")
    if not isinstance(workload, Network) or not isinstance(eager.call, nn.Module):
        raise UnavailableError("it is for networks")
    return graphed(workload, eager.call, mode, device)


def graphed(workload: Network, model: nn.Module, mode: str, device: torch.device) -> Contender:
    """PyTorch's model as CUDA graphs.

    They keep what they were captured with: dropouts that are on or off, and an input that needs a gradient or not.

    Raises:
        UnavailableError: a graph with dropout cannot be compared.
    """
    training = mode != INFERENCE
    if training and models.has_dropout(model):
        raise UnavailableError("its graphs drop what they were captured with, and are compared without dropout")
    models.set_dropout(model, on=training)
    input = workload.tensors().input.to(device).requires_grad_(training and workload.input_gradient)
    call: Any = torch.cuda.make_graphed_callables(model, (input,))
    return Contender(call, list(model.parameters()))


def _compile(workload: Workload, mode: str, device: torch.device) -> Contender:
    eager = _not_derivatives(workload.pytorch(device))
    return Contender(torch.compile(eager.call), eager.parameters)


def _fastops_compile(workload: Workload, mode: str, device: torch.device) -> Contender:
    eager = _not_derivatives(workload.pytorch(device))
    if not isinstance(eager.call, nn.Module):
        raise UnavailableError("it is for networks")
    return Contender(torch.compile(eager.call, backend="fastops"), eager.parameters)


def _zentorch_for(workload: Workload, mode: str, device: torch.device) -> Any:
    """The package, if it can do the workload better than PyTorch does."""
    if device.type != "cpu":
        raise UnavailableError("it is for CPUs")
    if not isinstance(workload.pytorch(device).call, nn.Module):
        raise UnavailableError("it has matrix products only")
    if mode != INFERENCE:
        raise UnavailableError("it is for inference")
    try:
        import zentorch
    except ImportError as error:
        raise UnavailableError(f"it cannot be imported: {error}") from error
    if not zentorch._C.is_avx512_supported():
        raise UnavailableError("it finds no AVX-512 that it knows in this CPU, and leaves PyTorch as it is")
    if workload.dtype == torch.bfloat16 and not zentorch._C.is_bf16_supported():
        raise UnavailableError("it finds no bfloat16 instructions in this CPU")
    return zentorch


def _zentorch(workload: Workload, mode: str, device: torch.device) -> Contender:
    _zentorch_for(workload, mode, device)
    eager = _not_derivatives(workload.pytorch(device))
    compiled = torch.compile(eager.call, backend="zentorch")

    def call(input: Tensor) -> Tensor:
        return compiled(input)

    from .._torch_internal import inductor_config

    # Compiled here and now: weights are packed only where this option is set.
    with inductor_config.patch(freezing=True), torch.inference_mode():
        compiled(workload.tensors().input.to(device))
    return Contender(call, eager.parameters)


_POST_OPS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.SiLU: "silu"}


def _post_op(activation: nn.Module) -> str | None:
    """zentorch's name of an activation that its linear op can apply, if it can."""
    if isinstance(activation, nn.GELU):
        return "gelu_tanh" if activation.approximate == "tanh" else "gelu_erf"
    return _POST_OPS.get(type(activation))


def _zentorch_linear(workload: Workload, mode: str, device: torch.device) -> Contender:
    _zentorch_for(workload, mode, device)
    eager = workload.pytorch(device)
    linear = torch.ops.zentorch.zentorch_linear_unary
    if isinstance(eager.call, models.GatedMLP):
        gate, up, down = (layer.weight for layer in (eager.call.gate_proj, eager.call.up_proj, eager.call.down_proj))
        return Contender(lambda x: linear(linear(x, gate, post_op="silu") * linear(x, up), down), eager.parameters)
    if not isinstance(eager.call, nn.Sequential):
        raise UnavailableError(f"it is not written for {type(eager.call).__name__}")
    steps: list[Callable[[Tensor], Tensor]] = []
    for module, following in pairwise([*eager.call, nn.Identity()]):
        if isinstance(module, nn.Linear):
            steps.append(_linear_step(linear, module, _post_op(following) or "none"))
        elif _post_op(module) is None:
            steps.append(module)

    def call(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x

    return Contender(call, eager.parameters)


def _linear_step(linear: Any, layer: nn.Linear, post_op: str) -> Callable[[Tensor], Tensor]:
    weight, bias = layer.weight, layer.bias
    return lambda x: linear(x, weight, bias, post_op=post_op)


_PREPARE: dict[str, Callable[[Workload, str, torch.device], Contender]] = {
    FASTOPS: lambda workload, mode, device: workload.fastops(device),
    EAGER: lambda workload, mode, device: workload.pytorch(device),
    FUNC: _func,
    CUDA_GRAPHS: _cuda_graphs,
    COMPILE: _compile,
    FASTOPS_COMPILE: _fastops_compile,
    ZENTORCH: _zentorch,
    ZENTORCH_LINEAR: _zentorch_linear,
}
