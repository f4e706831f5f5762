"""Good calls of every op by keyword, of which the tests of errors spoil one argument."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

ops = torch.ops.fastops

Make = Callable[..., Tensor]

# Good arguments of every op that takes an activation's name; the tests replace one of them. `t` makes a tensor.
ARGUMENTS: dict[str, Callable[[Make], dict[str, Any]]] = {
    "activation_backward": lambda t: {"grad_output": t(3, 4), "saved": t(3, 4), "activation": "gelu", "params": []},
    "bias_act": lambda t: {"self": t(3, 4), "bias": t(4), "activation": "gelu", "params": []},
    "bias_act.out": lambda t: {"self": t(3, 4), "bias": t(4), "activation": "gelu", "params": [], "out": t(3, 4)},
    "bias_act_backward": lambda t: {
        **{"grad_output": t(3, 4), "saved": t(3, 4), "bias": t(4), "activation": "gelu", "params": []},
        **{"from_output": False, "output_mask": [True, True]},
    },
    "act_mul": lambda t: {"gate": t(3, 4), "up": t(3, 4), "activation": "silu", "params": []},
    "act_mul_backward": lambda t: {
        **{"grad_output": t(3, 4), "gate": t(3, 4), "up": t(3, 4), "activation": "silu", "params": []},
        "output_mask": [True, True],
    },
    "gated_act": lambda t: {"self": t(3, 4), "activation": "silu", "params": [], "gate_last": False},
    "gated_act_backward": lambda t: {
        **{"grad_output": t(3, 2), "self": t(3, 4), "activation": "silu", "params": [], "gate_last": False},
    },
    "linear_act": lambda t: {"input": t(3, 4), "weight": t(2, 4), "bias": t(2), "activation": "gelu", "params": []},
    "mlp": lambda t: mlp_arguments(t),
    "mlp_forward": lambda t: mlp_arguments(t),
    "mlp_backward": lambda t: {
        **{"grad_output": t(3, 2), **mlp_arguments(t), "output": t(3, 2), "saved": [t(3, 5)]},
        "output_mask": [True] * 5,
    },
    "gated_mlp": lambda t: {**gated_mlp_arguments(t), "down_bias": t(2)},
    "gated_mlp_forward": lambda t: {**gated_mlp_arguments(t), "down_bias": t(2)},
    "gated_mlp_backward": lambda t: {
        **{"grad_output": t(3, 2), **gated_mlp_arguments(t), "gate": t(3, 5), "up": t(3, 5)},
        "output_mask": [True] * 7,
    },
}


def mlp_arguments(t: Make) -> dict[str, Any]:
    """Two layers."""
    return {
        **{"input": t(3, 4), "weights": [t(5, 4), t(2, 5)], "biases": [t(5), t(2)]},
        **{"activation": "gelu", "output_activation": "tanh", "params": [], "output_params": []},
    }


def gated_mlp_arguments(t: Make) -> dict[str, Any]:
    """Four input features, five hidden ones, two outputs."""
    return {
        **{"input": t(3, 4), "gate_weight": t(5, 4), "up_weight": t(5, 4), "down_weight": t(2, 5)},
        **{"gate_bias": t(5), "up_bias": t(5), "activation": "silu", "params": []},
    }


def call(op: str, arguments: dict[str, Any]) -> Any:
    """Calls an op by name and keywords; with out=, which takes no part in differentiation, without gradients."""
    name, _, overload = op.partition(".")
    if overload == "out":
        differentiable = lambda value: isinstance(value, Tensor) and value.requires_grad  # noqa: E731
        arguments = {key: value.detach() if differentiable(value) else value for key, value in arguments.items()}
    return getattr(getattr(ops, name), overload or "default")(**arguments)


def replaced(arguments: dict[str, Any], argument: str, value: Any) -> dict[str, Any]:
    """The arguments with another value for one, which may be `name[index]`."""
    name, _, index = argument.partition("[")
    if index:
        value = [value if i == int(index[:-1]) else item for i, item in enumerate(arguments[name])]
    return {**arguments, name: value}


def tensor_arguments(op: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors among an op's arguments by name: bias, weights[0], ..."""
    for name, value in ARGUMENTS[op](torch.empty).items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, list) and value and isinstance(value[0], Tensor):
            yield from ((f"{name}[{i}]", item) for i, item in enumerate(value))


def raises(error: type[Exception], op: str, argument: str) -> Any:
    """Expects an error that starts with the op (a backward op may name the op it belongs to) and names the argument.

    What schemas call self is input in errors, as it is in Python.
    """
    argument = re.sub(r"^self\b", "input", argument)
    family = r"\w+" if op.endswith("_backward") else re.sub(r"(_forward|\.out|_)$", "", op) + r"\w*"
    return pytest.raises(error, match=rf"(?s)^fastops\.{family}: .*{re.escape(argument)}")
