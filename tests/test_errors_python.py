"""Bad input from Python: what is of another kind than an argument, and the entry points that skip torch.ops."""

from __future__ import annotations

import inspect
import re
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import fastops
from calls import ARGUMENTS, Make, call, raises
from fastops import functional
from reference import ACTIVATIONS


def test_errors_do_not_leak(device: Any) -> None:
    """After an error nothing holds on to the arguments."""
    for op, make_arguments in ARGUMENTS.items():
        arguments = make_arguments(lambda *shape: torch.ones(shape, device=device))
        arguments["activation"] = "swish"
        references = [weakref.ref(value) for value in arguments.values() if isinstance(value, Tensor)]
        with pytest.raises(ValueError, match="swish"):
            call(op, arguments)
        del arguments
        assert [reference() for reference in references] == [None] * len(references)


@pytest.mark.parametrize("value", ["tanh", 1, np.bool_(True)], ids=repr)
def test_inplace_is_no_other_argument(value: Any) -> None:
    """``GELU("tanh")`` of torch.nn has another first argument: nothing is written to by mistake."""
    x = torch.ones(3)
    for name, function in (
        ("gelu", lambda: functional.gelu(x, value)),
        ("nn.GELU", lambda: fastops.nn.GELU(value)),
        ("nn.Softshrink", lambda: fastops.nn.Softshrink(0.5, value)),
    ):
        message = re.escape(f"fastops.{name}: inplace must be a bool, but is {value!r}")
        with pytest.raises(TypeError, match=f"^{message}$"):
            function()
    assert x.equal(torch.ones(3))


@pytest.mark.parametrize("name", ["mlp", "mlp_jacobian", "mlp_divergence", "mlp_laplacian", "mlp_hessian"])
def test_no_network(name: str) -> None:
    """All functions of networks say the same of no points and of no list of weights."""
    weight = torch.ones(3, 3)
    for input, weights, error, message in (
        (torch.tensor(1.0), [weight], ValueError, "input must have at least one dimension, but is 0-d"),
        (torch.ones(2, 3), None, TypeError, "weights must be a list of tensors, but is a NoneType"),
        (torch.ones(2, 3), weight, TypeError, "weights must be a list of tensors, but is a Tensor"),
        (torch.ones(2, 3), [weight, 1], TypeError, r"weights\[1\] must be a tensor, but is a int"),
    ):
        with pytest.raises(error, match=f"^fastops.{name}: {message}$"):
            getattr(functional, name)(input, weights)


@pytest.mark.parametrize("value", [[1.0, 2.0], None, np.ones(3, np.float32), 1.0, "relu"], ids=repr)
def test_no_tensor(value: Any) -> None:
    """What is no tensor is a TypeError of functions and modules that names the argument and what it is."""
    weight = torch.ones(3, 3)
    calls: dict[str, Callable[[], Any]] = {
        "relu": lambda: functional.relu(value),
        "relu_": lambda: functional.relu(value, inplace=True),
        "bias_act": lambda: functional.bias_act(value),
        "act_mul": lambda: functional.act_mul(value, weight),
        "gated_act": lambda: functional.gated_act(value),
        "linear_act": lambda: functional.linear_act(value, weight),
        "mlp": lambda: functional.mlp(value, [weight]),
        "gated_mlp": lambda: functional.gated_mlp(value, weight, weight, weight),
        "sequential": lambda: functional.sequential(value, [], "dropout", [0.5]),
        "mlp_jet": lambda: functional.mlp_jet(value, weight, [weight]),
        "mlp_jacobian": lambda: functional.mlp_jacobian(value, [weight]),
        "mlp_divergence": lambda: functional.mlp_divergence(value, [weight]),
        "mlp_laplacian": lambda: functional.mlp_laplacian(value, [weight]),
        "mlp_hessian": lambda: functional.mlp_hessian(value, [weight]),
        "ReLU": lambda: fastops.nn.ReLU()(value),
        "LinearAct": lambda: fastops.nn.LinearAct(3, 3)(value),
        "MLP": lambda: fastops.nn.MLP(3, 3)(value),
        "GatedMLP": lambda: fastops.nn.GatedMLP(3, 3)(value),
    }
    for name, function in calls.items():
        argument = "gate" if name == "act_mul" else "input"
        kind = type(value).__name__
        with pytest.raises(TypeError, match=f"^fastops.*: {argument} must be a tensor, but is a {kind}$"):
            function()


FUNCTIONS = ["bias_act", "act_mul", "gated_act", "linear_act", "mlp", "gated_mlp"]


def function_arguments(name: str, t: Make) -> dict[str, Any]:
    """Good arguments of a function in fastops.functional."""
    return {"input" if key == "self" else key: value for key, value in ARGUMENTS[name](t).items()}


@pytest.mark.parametrize("name", [*ACTIVATIONS, "bias_act", "gated_act"])
def test_input_has_its_name_in_python(name: str, device: Any) -> None:
    """The schemas' self is input in every message, as it is among the function's arguments."""
    function = getattr(functional, name)
    assert "input" in inspect.signature(function).parameters
    text = f"fastops.{name}: input must be float32, float64, bfloat16 or float16, but is Long"
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        function(torch.ones(3, 4, device=device).long())


def test_input_in_other_messages(device: Any) -> None:
    """Where it is what another argument, or its own shape, is compared with."""
    x = torch.ones(3, 5, device=device)
    with pytest.raises(TypeError, match=r"^fastops\.bias_act: bias is Half, but input is Float; they must have"):
        functional.bias_act(x, torch.ones(5, device=device).half())
    with pytest.raises(ValueError, match=r"^fastops\.gated_act: input has shape \[3, 5\], but its last dimension"):
        functional.gated_act(x)
    with pytest.raises(RuntimeError, match=r"^fastops\.relu: out overlaps input in part; it must be input or lie"):
        torch.ops.fastops.relu.out(x[:2], out=x[1:])


# What is given instead of a tensor, a list of tensors, a name, a list of numbers and a bool; what the error asks for.
WRONG_KINDS: dict[type, list[tuple[Any, str, str]]] = {
    Tensor: [("abc", "", "a tensor"), (1.0, "", "a tensor"), ([1.0], "", "a tensor")],
    list: [
        ("abc", "", "a list of tensors"),
        (torch.ones(2, 4, 4), "", "a list of tensors"),
        ([1, 2], "[0]", "a tensor"),
        ((torch.ones(5, 4), "b"), "[1]", "a tensor"),
    ],
    str: [(5, "", "a string"), (None, "", "a string")],
    float: [(0.3, "", "a list of numbers"), ("ab", "", "a list of numbers"), ([None], "[0]", "a number")],
    bool: [("yes", "", "a bool")],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrong_kind(name: str, device: Any) -> None:
    """Any argument that is of another kind than the function takes is a TypeError that names it."""
    arguments = function_arguments(name, lambda *shape: torch.ones(shape, device=device))
    function = getattr(functional, name)
    function(**arguments)
    flag = {"gated_act": {"gate_last": True}, "mlp": {"checkpoint": True}, "gated_mlp": {"checkpoint": True}}
    for argument, good in {**arguments, **flag.get(name, {})}.items():
        is_optional = "bias" in argument
        for value, place, needed in WRONG_KINDS[float if argument.endswith("params") else type(good)]:
            if is_optional:
                needed += " and None" if needed.startswith("a list") else " or None"
            bad = value[int(place[1])] if place else value
            text = f"fastops.{name}: {argument}{place} must be {needed}, but is a {type(bad).__name__}"
            with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
                function(**{**arguments, argument: value})


@pytest.mark.parametrize("name", [name for name, entry in ACTIVATIONS.items() if entry["parameters"]])
def test_wrong_kind_of_parameter(name: str, device: Any) -> None:
    """A parameter that is no number is named; an integer, or a tensor that is one, is a number."""
    x = torch.ones(3, device=device)
    assert torch.equal(getattr(functional, name)(x, 1), getattr(functional, name)(x, 1.0))
    assert torch.equal(getattr(functional, name)(x, torch.tensor(1.0)), getattr(functional, name)(x, 1.0))
    for parameter in ACTIVATIONS[name]["parameters"]:
        for value in ("abc", None, [1.0]):
            text = f"fastops.{name}: {parameter} must be a number, but is a {type(value).__name__}"
            with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
                getattr(functional, name)(x, **{parameter: value})


def test_no_list_of_weights(device: Any) -> None:
    """The same where the number of biases is that of the weights."""
    x, weight = torch.ones(3, 4, device=device), torch.ones(4, 4, device=device)
    for value in (None, 5, (weight for _ in range(2))):
        kind = type(value).__name__
        with pytest.raises(TypeError, match=f"^fastops.mlp: weights must be a list of tensors, but is a {kind}$"):
            functional.mlp(x, value)


def test_direct_entry_points(device: Any) -> None:
    """The entry points that skip torch.ops raise the same errors."""
    from fastops import _C

    def t(*shape: int) -> Tensor:
        return torch.ones(shape, device=device)

    linear_act = ARGUMENTS["linear_act"](t)
    with raises(TypeError, "relu", "self"):
        _C.relu(t(3).int())
    with raises(ValueError, "softshrink", "lambd"):
        _C.softshrink(t(3), -1.0)
    linears = {"0": torch.nn.Linear(3, 4, device=device), "2": torch.nn.Linear(5, 2, device=device)}
    with raises(ValueError, "mlp", "weights[1]"):
        _C.mlp_of_linears(t(2, 3), linears, "relu", "identity", [], [], False)
    with raises(ValueError, "mlp", "weights"):
        _C.mlp_of_linears(t(2, 3), {}, "relu", "identity", [], [], False)
    with raises(ValueError, "linear_act", "bias"):
        _C.linear_act(*{**linear_act, "bias": t(3)}.values())
    with raises(ValueError, "gated_mlp", "down_weight"):
        _C.gated_mlp_of_linears(t(2, 3), linears["0"], linears["0"], linears["2"], "relu", [], False)


class Seen(Tensor):
    """A subclass that notes what is called with it."""

    functions: list[Any]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.functions.append(func)
        return super().__torch_function__(func, types, args, kwargs)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_overrides_see_functions(name: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An override of any tensor, also in a list, sees the op; parameters have none: they skip torch.ops."""
    arguments = function_arguments(name, lambda *shape: torch.ones(shape, device=device))
    function, op = getattr(functional, name), getattr(torch.ops.fastops, name)
    expected = function(**arguments)
    for argument, value in arguments.items():
        values = value if isinstance(value, list) else [value]
        for i in [i for i, item in enumerate(values) if isinstance(item, Tensor)]:
            seen = [item.as_subclass(Seen) if i == j else item for j, item in enumerate(values)]
            monkeypatch.setattr(Seen, "functions", [], raising=False)
            result = function(**{**arguments, argument: seen if isinstance(value, list) else seen[0]})
            assert Seen.functions == [op], (argument, i)
            assert type(result) is Seen
            assert torch.equal(result.as_subclass(Tensor), expected)
    of_parameters = tree_map_only(Tensor, torch.nn.Parameter, arguments)
    monkeypatch.setattr(torch.ops.fastops, name, SimpleNamespace(__name__=name))
    assert torch.equal(function(**of_parameters), expected)
