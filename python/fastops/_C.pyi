from collections.abc import Callable
from typing import Any, TypedDict

from torch import Tensor
from torch.nn import Module

torch_version: str
compiler: str

class Activation(TypedDict):
    name: str
    class_name: str
    parameters: dict[str, float]
    constraint: str
    formula: str

def activations() -> list[Activation]: ...
def cpu_capability() -> str: ...
def peak_flops(dtype: str, seconds: float) -> float | None: ...
def copy_bandwidth(bytes: int, nontemporal: bool, seconds: float) -> float: ...
def memory_stats() -> tuple[int, int, int, int, int]: ...
def set_memory_limit(bytes: int) -> None: ...
def empty_memory(seconds_unused: float) -> None: ...
def mlp_of_linears(
    input: Tensor,
    modules: dict[Any, Module | None],
    activation: str,
    output_activation: str,
    params: list[float],
    output_params: list[float],
    checkpoint: bool,
) -> Tensor | None: ...
def linear_act(input: Tensor, weight: Tensor, bias: Tensor | None, activation: str, params: list[float]) -> Tensor: ...
def gated_mlp_of_linears(
    input: Tensor, gate: Module, up: Module, down: Module, activation: str, params: list[float], checkpoint: bool
) -> Tensor | None: ...
def __getattr__(name: str) -> Callable[..., Tensor]: ...  # a function for every activation
